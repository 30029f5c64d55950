"""How replicas of a 2D layout are kept equal: weights averaged, gradients of touched rows exchanged, or fully sharded.

Where sharding groups have one size, replicas hold the same shards, which are averaged in place. Else they have *pieces*
of shards in common (see `simulator.lookups.overlap`): rows that each holder finds in its own shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foreshard.calibration.ops.device_ops import DeviceOps, RowGradients, Tables
from foreshard.calibration.ops.optimizers import EmbeddingOptimizer
from foreshard.calibration.runner.collectives import all_gather, all_reduce, in_turn, reduce_scatter
from foreshard.calibration.runner.family import Family
from foreshard.calibration.runner.shards import Shard, Shards
from foreshard.calibration.runner.state import BatchState, Issue
from foreshard.simulator.lookups.overlap import Overlap
from foreshard.simulator.plans.rows import PartFinder
from foreshard.simulator.step.prediction import Prediction

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["Piece", "ReplicaOps", "pieces_of"]

IntArray = NDArray[np.int64]

_WORDS_PER_ID = 2  # row numbers are int64, gradients float32: both travel as 4-byte words


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Piece:
    """Rows that replicas have in common: of shard `place` of a family the local rows `rows` int64, by rising id.

    `number` of each of the shard's rows is its place in the piece, -1 where it is not part of it. Both are None of a
    piece that is the whole shard.
    """

    family: str
    place: int
    shard: Shard
    rows: torch.Tensor | None = None
    number: torch.Tensor | None = None


def pieces_of(prediction: Prediction, shards: Shards, rank: int, device: torch.device) -> tuple[tuple[Piece, ...], ...]:
    """The pieces that a rank synchronises, round by round, in the order that all holders share."""
    held = [_Held(name, place, one) for name, own in shards.by_family.items() for place, one in enumerate(own)]
    if prediction.layout.even:
        return (
            tuple(Piece(family=one.family, place=one.place, shard=one.shard) for one in held if len(one.shard.weights)),
        )
    by_place = {(one.shard.table.table.name, one.shard.column): one for one in held}
    rounds = Overlap(prediction.plans, prediction.layout).pieces_of(rank)
    cut = [
        [_cut(by_place[table.table.name, column], table.find, piece, device) for table, column, piece in own]
        for own in rounds
    ]
    return tuple(tuple(piece for piece in own if piece.rows is not None and len(piece.rows)) for own in cut)


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    family: str
    place: int
    shard: Shard


def _cut(held: _Held, find: PartFinder, piece: int, device: torch.device) -> Piece:
    """The part of a shard that belongs to a piece of its table."""
    import torch

    inside = find(held.shard.rows) == piece
    number = np.where(inside, np.cumsum(inside) - 1, -1)
    return Piece(
        family=held.family,
        place=held.place,
        shard=held.shard,
        rows=torch.from_numpy(np.flatnonzero(inside)).to(device),
        number=torch.from_numpy(number).to(device),
    )


class ReplicaOps:
    """The operations of replica synchronisation of one rank; `pieces` [rounds] are those it has in common."""

    def __init__(
        self, shards: Shards, pieces: Sequence[Sequence[Piece]], tables: dict[str, Tables | None],
        ops: DeviceOps, *, replicas: int,
    ) -> None:  # fmt: skip
        self._shards = shards
        self._pieces = tuple(map(tuple, pieces))
        self._tables = tables
        self._ops = ops
        self._replicas = replicas
        self._parts: dict[str, list[torch.Tensor]] = {}
        self._counts: dict[int, torch.Tensor] = {}
        self._gathered: dict[int, tuple[torch.Tensor, IntArray]] = {}

    # -- whole weights -----------------------------------------------------------------------------------------

    def average(self, number: int, *, state: bool, group: dist.ProcessGroup) -> Issue | None:
        """Average the weights, or the optimizer state, of a round over the replicas; None where there are none."""
        pieces = self._pieces[number]
        if all(piece.rows is None for piece in pieces):
            buffers = [self._shards.state] if state else list(self._shards.buffers.values())
            return all_reduce([one for one in buffers if one.numel()], group, mean=True) if pieces else None
        return self._average_copies([one for piece in pieces for one in _tensors(piece, state)], group)

    def _average_copies(self, parts: list[tuple[torch.Tensor, torch.Tensor]], group: dist.ProcessGroup) -> Issue | None:
        """Average rows picked from (tensor, rows); they are put back when the collective has been waited for."""
        import torch

        picked = [(tensor, rows, tensor.index_select(0, rows)) for tensor, rows in parts]
        buffers = [
            torch.cat([values.reshape(-1) for _, _, values in picked if values.dtype == dtype])
            for dtype in dict.fromkeys(tensor.dtype for tensor, _ in parts)
        ]
        if not any(buffer.numel() for buffer in buffers):
            return None

        def put_back() -> None:
            for buffer in buffers:
                own = [(tensor, rows, values) for tensor, rows, values in picked if values.dtype == buffer.dtype]
                for (tensor, rows, values), mean in zip(
                    own, buffer.split([values.numel() for _, _, values in own]), strict=True
                ):
                    tensor.index_copy_(0, rows, mean.view(values.shape))

        return all_reduce(buffers, group, mean=True, finish=put_back)

    # -- fully sharded -----------------------------------------------------------------------------------------

    def pad(self, family: Family) -> None:
        """Copy a family's weights to where they divide evenly among the replicas."""
        self._parts[family.name] = [self._padded(weights) for weights in self._weights(family)]

    def release(self, family: Family, group: dist.ProcessGroup) -> Issue | None:
        """Average a family's weights and keep a part of them: a reduce_scatter for each row format."""
        given = self._parts.get(family.name) or self._weights(family)
        parts = [weights.new_empty(len(weights) // self._replicas) for weights in given]
        self._parts[family.name] = parts
        pairs = zip(parts, given, strict=True)
        return _together([reduce_scatter(part, weights, group, mean=True) for part, weights in pairs])

    def gather(self, family: Family, group: dist.ProcessGroup) -> Issue | None:
        """Fetch the averaged weights of a family back."""
        weights, parts = self._weights(family), self._parts.pop(family.name)
        whole = [
            one if len(one) == len(part) * self._replicas else one.new_empty(len(part) * self._replicas)
            for one, part in zip(weights, parts, strict=True)
        ]

        def put_back() -> None:
            for one, padded in zip(weights, whole, strict=True):
                if padded is not one:
                    one.copy_(padded[: len(one)])

        pairs = zip(whole, parts, strict=True)
        return _together([all_gather(one, part, group) for one, part in pairs], finish=put_back)

    def _weights(self, family: Family) -> list[torch.Tensor]:
        spans = self._shards.spans[family.name]
        return [self._shards.buffers[dtype][span] for dtype, span in spans.items() if span.stop > span.start]

    def _padded(self, weights: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.nn.functional.pad(weights, (0, -len(weights) % self._replicas)).clone()

    # -- gradients of touched rows -----------------------------------------------------------------------------

    def count(self, number: int, batch: BatchState, group: dist.ProcessGroup) -> Issue | None:
        """Tell the replicas how many rows of every piece were touched, int64 [pieces]."""
        import torch

        pieces = self._pieces[number]
        if not pieces:
            return None
        counts = torch.tensor(
            [len(self._touched(piece, batch)[0]) for piece in pieces], dtype=torch.int64, device=self._ops.device
        )
        self._counts[number] = counts.new_empty(group.size() * len(pieces))
        return all_gather(self._counts[number], counts, group)

    def rows(self, number: int, batch: BatchState, group: dist.ProcessGroup) -> Issue | None:
        """Exchange numbers and summed gradients of touched rows; shorter lists are padded to the longest."""
        import torch

        pieces = self._pieces[number]
        if not pieces:
            return None
        counts = self._counts.pop(number).view(-1, len(pieces)).cpu().numpy()
        widths = np.array([piece.shard.weights.shape[1] for piece in pieces])
        longest = int((counts @ (widths + _WORDS_PER_ID)).max())
        touched = [self._touched(piece, batch) for piece in pieces]
        words = [rows.view(torch.int32) for rows, _ in touched]
        words += [sums.reshape(-1).view(torch.int32) for _, sums in touched]
        own = torch.cat(words)
        own = torch.nn.functional.pad(own, (0, longest - len(own)))
        whole = own.new_empty(len(counts) * longest)
        self._gathered[number] = whole, counts
        return all_gather(whole, own, group)

    def _touched(self, piece: Piece, batch: BatchState) -> tuple[torch.Tensor, torch.Tensor]:
        """(Numbers in the piece, gradients) of the touched rows of a piece."""
        import torch

        gradients = batch.families[piece.family].row_gradients
        if not gradients:
            empty = torch.empty((0, piece.shard.weights.shape[1]), device=self._ops.device)
            return torch.empty(0, dtype=torch.int64, device=self._ops.device), empty
        own = gradients[piece.place]
        if piece.number is None:
            return own.rows, own.sums
        number = piece.number.index_select(0, own.rows)
        return number[number >= 0], own.sums[number >= 0]

    def apply(self, optimizer: EmbeddingOptimizer) -> None:
        """Step the rows that any replica touched by the sum of all replicas' gradients."""
        import torch

        found: dict[tuple[str, int], list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for number in sorted(self._gathered):
            self._read(number, found)
        self._gathered.clear()
        for name, tables in self._tables.items():
            if tables is None:
                continue
            gradients = []
            for place, weights in enumerate(tables.weights):
                parts = found.get((name, place)) or [_none(weights)]
                rows, sums = (torch.cat(list(each)) for each in zip(*parts, strict=True))
                gradients.append(RowGradients(rows=rows, sums=sums))
            self._ops.update_rows(tables, optimizer, gradients)

    def _read(self, number: int, found: dict[tuple[str, int], list[tuple[torch.Tensor, torch.Tensor]]]) -> None:
        """What every replica sent in a round, as rows of this rank's shards, replica by replica."""
        import torch

        whole, counts = self._gathered[number]
        pieces = self._pieces[number]
        for words, own in zip(whole.view(len(counts), -1), counts.tolist(), strict=True):
            sizes = [_WORDS_PER_ID * count for count in own]
            sizes += [count * piece.shard.weights.shape[1] for count, piece in zip(own, pieces, strict=True)]
            parts = words[: sum(sizes)].split(sizes)
            for place, piece in enumerate(pieces):
                rows = parts[place].clone().view(torch.int64)  # a clone is aligned to 8 bytes
                sums = parts[len(pieces) + place].view(torch.float32).view(own[place], piece.shard.weights.shape[1])
                local = rows if piece.rows is None else piece.rows.index_select(0, rows)
                found.setdefault((piece.family, piece.place), []).append((local, sums))


def _none(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    rows = torch.empty(0, dtype=torch.int64, device=weights.device)
    return rows, torch.empty((0, weights.shape[1]), dtype=torch.float32, device=weights.device)


def _tensors(piece: Piece, state: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    assert piece.rows is not None
    return [(one, piece.rows) for one in (piece.shard.state if state else (piece.shard.weights,))]


def _together(issues: list[Issue], finish: Callable[[], None] | None = None) -> Issue | None:
    """Several collectives of one kind, one after the other, as one; None where there is none."""
    if not issues:
        return None
    return in_turn(
        issues[0].kind, [issue.start for issue in issues], sum(issue.nbytes for issue in issues), finish=finish
    )
