"""`DeviceOps` with torch: on the CPU, and on any other device that torch knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from foreshard.calibration.ops import torch_ids, torch_rows, torch_vectors
from foreshard.calibration.ops.device_ops import Bags, Bucketised, Modes, RowGradients, Tables
from foreshard.calibration.ops.optimizers import Adagrad, Adam, EmbeddingOptimizer, RowWiseAdagrad
from foreshard.kernels import FeatureRoute
from foreshard.kernels.reference_codecs import Codec
from foreshard.topologies.errors import InputError

__all__ = ["TorchOps", "check_state"]

_ROW_FORMATS = (torch.float32, torch.float16, torch.bfloat16)


class TorchOps:
    """Implements `device_ops.DeviceOps`, where every method is described."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    # -- ids ----------------------------------------------------------------------------------------------------

    def find_owners(
        self, routes: Sequence[FeatureRoute], ids: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Owners and rows, feature by feature. Waits for the device, for `starts`."""
        return torch_ids.find_owners(routes, ids, starts)

    def bucketise(self, owners: torch.Tensor, members: int) -> Bucketised:
        """A stable sort."""
        return torch_ids.bucketise(owners, members)

    def deduplicate(self, ids: torch.Tensor, *, num_embeddings: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Marks the rows of small tables, sorts the ids of large ones."""
        return torch_ids.deduplicate(ids, num_embeddings)

    def permute(self, values: torch.Tensor, permutation: torch.Tensor) -> torch.Tensor:
        """A gather."""
        return values.index_select(0, permutation)

    def permute_segments(self, values: torch.Tensor, lengths: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """A gather by the permutation of the elements."""
        return torch_ids.permute_segments(values, lengths, order)

    def bags(self, ids: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None = None) -> Bags:
        """A running sum of the lengths."""
        return torch_ids.jagged(ids, lengths, weights)

    def recat(self, ids: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None = None) -> Bags:
        """A permutation of segments."""
        return torch_ids.recat(ids, lengths, weights)

    # -- rows ---------------------------------------------------------------------------------------------------

    def tables(
        self,
        weights: Sequence[torch.Tensor],
        *,
        feature_tables: Sequence[int] | None = None,
        optimizer: EmbeddingOptimizer | None = None,
        state: Sequence[Sequence[torch.Tensor]] | None = None,
    ) -> Tables:
        """The tables as they are."""
        features = tuple(range(len(weights)) if feature_tables is None else map(int, feature_tables))
        _check_tables(weights, features, self.device)
        own = _new_state(weights, optimizer) if state is None else tuple(map(tuple, state))
        columns = (0, *accumulate(int(weights[table].shape[1]) for table in features))
        return Tables(weights=tuple(weights), state=own, feature_tables=features, columns=columns)

    def pooled_lookup(self, tables: Tables, bags: Bags, *, mode: Modes = "sum") -> torch.Tensor:
        """One `embedding_bag` a feature."""
        return torch_rows.pooled_lookup(tables, bags, mode)

    def sequence_lookup(self, tables: Tables, bags: Bags) -> tuple[torch.Tensor, ...]:
        """One gather a feature."""
        return torch_rows.sequence_lookup(tables, bags)

    def update_pooled(
        self, tables: Tables, optimizer: EmbeddingOptimizer, gradients: torch.Tensor, bags: Bags, *, mode: Modes = "sum"
    ) -> None:
        """Sums by row, then steps."""
        self._step(tables, optimizer, self.sum_pooled(tables, gradients, bags, mode=mode))

    def update_sequence(
        self, tables: Tables, optimizer: EmbeddingOptimizer, gradients: Sequence[torch.Tensor], bags: Bags
    ) -> None:
        """Sums by row, then steps."""
        self._step(tables, optimizer, self.sum_sequence(tables, gradients, bags))

    def sum_pooled(
        self, tables: Tables, gradients: torch.Tensor, bags: Bags, *, mode: Modes = "sum"
    ) -> tuple[RowGradients, ...]:
        """A sort by row, then an `embedding_bag` over the gradients."""
        return torch_rows.sum_pooled(tables, gradients, bags, mode)

    def sum_sequence(self, tables: Tables, gradients: Sequence[torch.Tensor], bags: Bags) -> tuple[RowGradients, ...]:
        """A sort by row, then an `embedding_bag` over the gradients."""
        return torch_rows.sum_sequence(tables, gradients, bags)

    def update_rows(self, tables: Tables, optimizer: EmbeddingOptimizer, gradients: Sequence[RowGradients]) -> None:
        """Sums by row, then steps."""
        pairs = zip(tables.weights, gradients, strict=True)
        summed = [torch_rows.sum_repeated(one.rows, one.sums, len(rows)) for rows, one in pairs]
        self._step(tables, optimizer, summed)

    def _step(self, tables: Tables, optimizer: EmbeddingOptimizer, gradients: Sequence[RowGradients]) -> None:
        check_state(tables, optimizer)
        for rows, state, own in zip(tables.weights, tables.state, gradients, strict=True):
            torch_rows.step_rows(rows, state, optimizer, own)

    def add_pooled(
        self,
        targets: Sequence[torch.Tensor],
        feature_tables: Sequence[int],
        gradients: torch.Tensor,
        bags: Bags,
        *,
        mode: Modes = "sum",
    ) -> None:
        """Sums by row, then one addition a row."""
        tables = self.tables(targets, feature_tables=feature_tables)
        _add(targets, self.sum_pooled(tables, gradients, bags, mode=mode))

    def add_sequence(
        self,
        targets: Sequence[torch.Tensor],
        feature_tables: Sequence[int],
        gradients: Sequence[torch.Tensor],
        bags: Bags,
    ) -> None:
        """Sums by row, then one addition a row."""
        tables = self.tables(targets, feature_tables=feature_tables)
        _add(targets, self.sum_sequence(tables, gradients, bags))

    # -- vectors ------------------------------------------------------------------------------------------------

    def join(
        self,
        received: torch.Tensor,
        samples: int,
        widths: Sequence[Sequence[int]],
        order: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """One copy; none where all comes from one source in order."""
        return torch_vectors.join(received, samples, widths, order)

    def split(
        self, vectors: torch.Tensor, widths: Sequence[Sequence[int]], order: Sequence[int] | None = None
    ) -> torch.Tensor:
        """One copy."""
        return torch_vectors.split(vectors, widths, order)

    def mean(self, vectors: torch.Tensor, lengths: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """A division."""
        return torch_vectors.mean(vectors, lengths, widths)

    def from_distinct(
        self, vectors: Sequence[torch.Tensor], feature_tables: Sequence[int], bags: Bags, *, mode: Modes = "sum"
    ) -> torch.Tensor:
        """A pooled look-up in the vectors."""
        return self.pooled_lookup(self.tables(vectors, feature_tables=feature_tables), bags, mode=mode)

    def expand(
        self, vectors: Sequence[torch.Tensor], feature_tables: Sequence[int], bags: Bags
    ) -> tuple[torch.Tensor, ...]:
        """A sequence look-up in the vectors."""
        return self.sequence_lookup(self.tables(vectors, feature_tables=feature_tables), bags)

    # -- the wire and memory ------------------------------------------------------------------------------------

    def encode(self, rows: torch.Tensor, codec: Codec, widths: Sequence[int] | None = None) -> torch.Tensor:
        """The formats of `kernels.reference_codecs`, bit for bit."""
        return torch_vectors.encode(rows, codec, widths)

    def decode(self, encoded: torch.Tensor, codec: Codec, widths: Sequence[int] | None = None) -> torch.Tensor:
        """The formats of `kernels.reference_codecs`, bit for bit."""
        return torch_vectors.decode(encoded, codec, widths)

    def clear(self, tensors: Sequence[torch.Tensor]) -> None:
        """All at once."""
        if tensors:
            torch._foreach_zero_(list(tensors))

    def synchronize(self) -> None:
        """Waits for a CUDA device's current stream's work; CPU work is done when it returns."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _add(targets: Sequence[torch.Tensor], gradients: Sequence[RowGradients]) -> None:
    for target, own in zip(targets, gradients, strict=True):
        target.index_add_(0, own.rows, own.sums)


def _new_state(
    weights: Sequence[torch.Tensor], optimizer: EmbeddingOptimizer | None
) -> tuple[tuple[torch.Tensor, ...], ...]:
    """Zeros of the shapes that the optimizer keeps for each table."""

    def zeros(rows: torch.Tensor, *dims: int) -> torch.Tensor:
        return torch.zeros((len(rows), *dims), dtype=torch.float32, device=rows.device)

    match optimizer:
        case RowWiseAdagrad():
            return tuple((zeros(rows),) for rows in weights)
        case Adagrad():
            return tuple((zeros(rows, rows.shape[1]),) for rows in weights)
        case Adam():
            return tuple((zeros(rows, rows.shape[1]), zeros(rows, rows.shape[1])) for rows in weights)
    return ((),) * len(weights)


def _check_tables(weights: Sequence[torch.Tensor], features: tuple[int, ...], device: torch.device) -> None:
    problems = list(_table_problems(weights, features, device))
    if problems:
        raise InputError(problems, where="tables")


def _table_problems(weights: Sequence[torch.Tensor], features: tuple[int, ...], device: torch.device) -> Iterator[str]:
    if not weights:
        yield "no table was given: expected at least one"
    if not features:
        yield "no feature was given: expected at least one"
    wrong = [table for table in features if not 0 <= table < len(weights)]
    if wrong:
        yield f"feature_tables names tables {wrong}: expected 0 to {len(weights) - 1}"
    for number, rows in enumerate(weights):
        if rows.ndim != 2 or not rows.shape[1]:
            yield f"table {number} has shape {list(rows.shape)}: expected [num_embeddings, dim]"
        if rows.dtype not in _ROW_FORMATS:
            yield f"table {number} has dtype {rows.dtype}: expected float32, float16 or bfloat16"
        if rows.device.type != device.type:
            yield f"table {number} lies on {rows.device}: expected {device}"


def check_state(tables: Tables, optimizer: EmbeddingOptimizer) -> None:
    """Raise InputError unless the tables keep the state that the optimizer needs."""
    wanted = {RowWiseAdagrad: 1, Adagrad: 1, Adam: 2}.get(type(optimizer), 0)
    short = [number for number, state in enumerate(tables.state) if len(state) < wanted]
    if short:
        name = type(optimizer).__name__
        raise InputError(f"{name} keeps state, tables {short} have none: give it to DeviceOps.tables(optimizer=...)")
