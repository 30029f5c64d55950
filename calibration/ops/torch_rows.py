"""Rows with torch on any device: pooled and sequence look-ups, gradients summed by distinct row, optimizer steps.

Sums are taken by `embedding_bag`, which adds one row after the other in fp32: unweighted sums equal the kernels' and
the NumPy reference bit for bit. Weighted ones may be fused into multiply-adds, which round once instead of twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from foreshard.calibration.ops.device_ops import Bags, Mode, Modes, RowGradients, Tables
from foreshard.calibration.ops.optimizers import Adagrad, Adam, EmbeddingOptimizer, RowWiseAdagrad, Sgd
from foreshard.calibration.ops.torch_ids import Segments, feature_starts, segment, starts_of
from foreshard.kernels.reference_update import LONG_SEGMENT

__all__ = [
    "empty_gradients",
    "modes_of",
    "pooled_lookup",
    "sequence_lookup",
    "step_rows",
    "sum_pooled",
    "sum_repeated",
    "sum_sequence",
]

_SUM, _MEAN = 0, 1  # torch.embedding_bag's numbers of modes


def modes_of(mode: Modes, tables: int) -> tuple[Mode, ...]:
    """The mode of every table."""
    return (mode,) * tables if isinstance(mode, str) else tuple(mode)


def _bag(
    rows: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor, mode: int, weights: torch.Tensor | None
) -> torch.Tensor:
    """The pooled vectors float32 [bags, dim]; 16-bit rows are made fp32 before they are added up."""
    if rows.dtype != torch.float32:
        rows = rows.index_select(0, ids).to(torch.float32)
        ids = torch.arange(ids.numel(), device=ids.device)
    return torch.embedding_bag(rows, ids, offsets, False, mode, False, weights, True)[0]


# -- look-ups ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Span:
    """One feature's bags: where its ids begin and end, and its own offsets [batch + 1], from 0."""

    begin: int
    end: int
    offsets: torch.Tensor


def _spans(bags: Bags) -> list[_Span]:
    starts, batch = feature_starts(bags), bags.batch
    return [
        _Span(begin=begin, end=end, offsets=bags.offsets[f * batch : (f + 1) * batch + 1] - begin)
        for f, (begin, end) in enumerate(pairwise(starts))
    ]


def pooled_lookup(tables: Tables, bags: Bags, mode: Modes) -> torch.Tensor:
    """`DeviceOps.pooled_lookup`."""
    modes, used = modes_of(mode, len(tables.weights)), zip(tables.feature_tables, _spans(bags), strict=True)
    pooled = [_pool(tables.weights[table], span, modes[table], bags) for table, span in used]
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)


def _pool(rows: torch.Tensor, span: _Span, mode: Mode, bags: Bags) -> torch.Tensor:
    ids = bags.ids[span.begin : span.end]
    weights = None if bags.weights is None else bags.weights[span.begin : span.end]
    if mode == "mean" and weights is not None:  # embedding_bag has no weighted mean: divide by the number of ids
        return _bag(rows, ids, span.offsets, _SUM, weights) / _divisors(span.offsets)
    return _bag(rows, ids, span.offsets, _MEAN if mode == "mean" else _SUM, weights)


def _divisors(offsets: torch.Tensor) -> torch.Tensor:
    """Ids of every bag, at least 1, float32 [bags, 1]."""
    return offsets.diff().clamp_(min=1).to(torch.float32)[:, None]


def sequence_lookup(tables: Tables, bags: Bags) -> tuple[torch.Tensor, ...]:
    """`DeviceOps.sequence_lookup`."""
    used = zip(tables.feature_tables, pairwise(feature_starts(bags)), strict=True)
    return tuple(
        tables.weights[table].index_select(0, bags.ids[begin:end]).to(torch.float32) for table, (begin, end) in used
    )


# -- gradients by row -------------------------------------------------------------------------------------------------


def empty_gradients(table: torch.Tensor) -> RowGradients:
    """No gradients for any row of `table`."""
    rows = torch.empty(0, dtype=torch.int64, device=table.device)
    return RowGradients(rows=rows, sums=torch.empty((0, table.shape[1]), dtype=torch.float32, device=table.device))


def sum_pooled(tables: Tables, gradients: torch.Tensor, bags: Bags, mode: Modes) -> tuple[RowGradients, ...]:
    """`DeviceOps.sum_pooled`: a row's gradients are added in the order of its look-ups, in chunks as the kernels do."""
    spans, modes = _spans(bags), modes_of(mode, len(tables.weights))
    columns = [gradients[:, begin:end] for begin, end in pairwise(tables.columns)]
    out = []
    for table, (rows, own_mode) in enumerate(zip(tables.weights, modes, strict=True)):
        features = [f for f, used in enumerate(tables.feature_tables) if used == table]
        own = [(spans[f], columns[f]) for f in features if spans[f].end > spans[f].begin]
        out.append(_looked(own, bags, own_mode).sum(rows.shape[0]) if own else empty_gradients(rows))
    return tuple(out)


def _looked(features: Sequence[tuple[_Span, torch.Tensor]], bags: Bags, mode: Mode) -> _Looked:
    """The look-ups of one table, given the bags of its features and their gradients [batch, dim]."""
    parts = [part / _divisors(span.offsets) if mode == "mean" else part for span, part in features]
    weights = [bags.weights[span.begin : span.end] for span, _ in features] if bags.weights is not None else None
    return _Looked(
        ids=torch.cat([bags.ids[span.begin : span.end] for span, _ in features]),
        weights=None if weights is None else torch.cat(weights),
        source=torch.cat(parts) if len(parts) > 1 else parts[0].contiguous(),
        place=torch.cat([_bag_of_each(span, at * bags.batch) for at, (span, _) in enumerate(features)]),
    )


def _bag_of_each(span: _Span, first: int) -> torch.Tensor:
    """The bag of every id, counted from `first`, [ids]."""
    bags = torch.arange(first, first + span.offsets.numel() - 1, device=span.offsets.device)
    return torch.repeat_interleave(bags, span.offsets.diff(), output_size=span.end - span.begin)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Looked:
    """The look-ups of one table: `ids` [ids], and the row of `source` [.., dim] that holds each one's gradient."""

    ids: torch.Tensor
    weights: torch.Tensor | None
    source: torch.Tensor
    place: torch.Tensor

    def sum(self, num_rows: int) -> RowGradients:
        groups = segment(self.ids, num_rows)
        weights = None if self.weights is None else self.weights.index_select(0, groups.order)
        sums = _sum_runs(self.source, self.place.index_select(0, groups.order), groups, weights)
        return RowGradients(rows=groups.rows, sums=sums)


def _sum_runs(
    source: torch.Tensor, place: torch.Tensor, groups: Segments, weights: torch.Tensor | None
) -> torch.Tensor:
    """The sum of every segment, float32 [segments, dim]; long ones chunk by chunk, then chunk sums in order."""
    lengths = groups.starts.diff()
    if int(lengths.max()) <= LONG_SEGMENT:
        return _bag(source, place, groups.starts, _SUM, weights)
    pieces = torch.div(lengths + (LONG_SEGMENT - 1), LONG_SEGMENT, rounding_mode="floor")
    piece_starts = starts_of(pieces)
    turn = torch.arange(int(piece_starts[-1]), device=place.device) - torch.repeat_interleave(piece_starts[:-1], pieces)
    begins = torch.repeat_interleave(groups.starts[:-1], pieces) + LONG_SEGMENT * turn
    chunks = _bag(source, place, torch.cat([begins, groups.starts[-1:]]), _SUM, weights)
    return _bag(chunks, torch.arange(len(chunks), device=place.device), piece_starts, _SUM, None)


def sum_sequence(tables: Tables, gradients: Sequence[torch.Tensor], bags: Bags) -> tuple[RowGradients, ...]:
    """`DeviceOps.sum_sequence`."""
    starts, out = feature_starts(bags), []
    for table, rows in enumerate(tables.weights):
        features = [f for f, used in enumerate(tables.feature_tables) if used == table]
        if not any(len(gradients[f]) for f in features):
            out.append(empty_gradients(rows))
            continue
        ids = torch.cat([bags.ids[starts[f] : starts[f + 1]] for f in features])
        out.append(sum_repeated(ids, torch.cat([gradients[f] for f in features]), rows.shape[0]))
    return tuple(out)


def sum_repeated(ids: torch.Tensor, gradients: torch.Tensor, num_rows: int) -> RowGradients:
    """Gradients [ids, dim] summed by distinct row, in the order of the ids."""
    if not ids.numel():
        return RowGradients(rows=ids, sums=gradients)
    place = torch.arange(ids.numel(), device=ids.device)
    return _Looked(ids=ids, weights=None, source=gradients.contiguous(), place=place).sum(num_rows)


# -- steps ------------------------------------------------------------------------------------------------------------


def step_rows(
    weights: torch.Tensor, state: Sequence[torch.Tensor], optimizer: EmbeddingOptimizer, gradients: RowGradients
) -> None:
    """Step distinct rows of one table in place; fp32 arithmetic, rounded to the row's own format once."""
    if not gradients.rows.numel():
        return
    change = _change(state, optimizer, gradients)
    if weights.dtype == torch.float32:
        weights.index_add_(0, gradients.rows, change, alpha=-1)
    else:
        stepped = weights.index_select(0, gradients.rows).to(torch.float32) - change
        weights.index_copy_(0, gradients.rows, stepped.to(weights.dtype))


def _change(state: Sequence[torch.Tensor], optimizer: EmbeddingOptimizer, gradients: RowGradients) -> torch.Tensor:
    """What is taken off the rows, float32 [distinct, dim]; brings the state up to date."""
    sums = gradients.sums
    match optimizer:
        case Sgd():
            return sums * optimizer.learning_rate
        case RowWiseAdagrad():
            v = _added(state[0], gradients.rows, sums.square().mean(dim=1))
            steps = optimizer.learning_rate / (v.div_(optimizer.replicas).sqrt_() + optimizer.eps)
            return sums * steps[:, None]
        case Adagrad():
            v = _added(state[0], gradients.rows, sums.square())
            return optimizer.learning_rate * sums / (v.sqrt_() + optimizer.eps)
        case Adam():
            m = _mixed(state[0], gradients.rows, sums, optimizer.beta1) / (1 - optimizer.beta1**optimizer.step)
            v = _mixed(state[1], gradients.rows, sums.square(), optimizer.beta2) / (1 - optimizer.beta2**optimizer.step)
            return optimizer.learning_rate * m / (v.sqrt_() + optimizer.eps)


def _added(state: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Add `values` to the state of `rows`; a copy of what is there now."""
    now = state.index_select(0, rows).add_(values)
    state.index_copy_(0, rows, now)
    return now


def _mixed(state: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, share: float) -> torch.Tensor:
    """Exponential average: `share` of the state of `rows` and the rest of `values`; a copy of what is there now."""
    now = state.index_select(0, rows).mul_(share).add_(values, alpha=1 - share)
    state.index_copy_(0, rows, now)
    return now
