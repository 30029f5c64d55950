"""`DeviceOps` with the CUDA kernels, on torch CUDA tensors by DLPack and on torch's current stream.

A kernel takes tables of one row format (of sequences: of one dim) and one pooling mode in a launch. Where a family has
one of each, which is the rule, nothing is copied; else its features are taken apart first. What the kernels have not
(permutations, joins, element-wise optimizers) is torch's.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate, pairwise

import torch

from foreshard import kernels
from foreshard.calibration.ops.device_ops import Bags, Bucketised, Mode, Modes, RowGradients, Tables
from foreshard.calibration.ops.optimizers import EmbeddingOptimizer, RowWiseAdagrad, Sgd
from foreshard.calibration.ops.torch_ids import feature_starts, starts_of
from foreshard.calibration.ops.torch_ops import TorchOps, check_state
from foreshard.calibration.ops.torch_rows import empty_gradients, modes_of
from foreshard.calibration.ops.torch_vectors import by_vector
from foreshard.kernels.cupy_device import cupy_device
from foreshard.kernels.device import Device
from foreshard.kernels.reference_codecs import ROW_OVERHEAD, Codec

__all__ = ["KernelOps"]

# SGD with this rate on zeros leaves the sum of the gradients: 0 - (-1) x sum, exact.
_ADD = Sgd(learning_rate=-1.0)


class KernelOps(TorchOps):
    """Implements `device_ops.DeviceOps`, where every method is described. Raises as `kernels` does without CuPy."""

    def __init__(self, device: torch.device, kernel_device: Device | None = None) -> None:
        super().__init__(device)
        self._kernels = kernel_device or cupy_device()

    # -- ids ----------------------------------------------------------------------------------------------------

    def find_owners(
        self, routes: Sequence[kernels.FeatureRoute], ids: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All features in one launch."""
        return kernels.find_owners(routes, ids, starts, device=self._kernels)

    def bucketise(self, owners: torch.Tensor, members: int) -> Bucketised:
        """A counting sort."""
        done = kernels.bucketise(owners, members, device=self._kernels)
        return Bucketised(permutation=done.permutation, inverse=done.inverse, counts=done.counts)

    def deduplicate(self, ids: torch.Tensor, *, num_embeddings: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A sort of keys with their positions."""
        return kernels.deduplicate(ids, limit=num_embeddings, device=self._kernels)

    # -- rows ---------------------------------------------------------------------------------------------------

    def tables(
        self,
        weights: Sequence[torch.Tensor],
        *,
        feature_tables: Sequence[int] | None = None,
        optimizer: EmbeddingOptimizer | None = None,
        state: Sequence[Sequence[torch.Tensor]] | None = None,
    ) -> Tables:
        """The tables, with an empty store of descriptors: they are made when a launch first needs them."""
        made = super().tables(weights, feature_tables=feature_tables, optimizer=optimizer, state=state)
        return Tables(
            weights=made.weights,
            state=made.state,
            feature_tables=made.feature_tables,
            columns=made.columns,
            handle={},
        )

    def _group(self, tables: Tables, features: tuple[int, ...], optimizer: EmbeddingOptimizer | None) -> _Group:
        """The descriptors of some features and their tables, kept with `tables`."""
        key = (features, isinstance(optimizer, RowWiseAdagrad))
        if key not in tables.handle:
            tables.handle[key] = self._describe(tables, *key)
        made: _Group = tables.handle[key]
        return made

    def _describe(self, tables: Tables, features: tuple[int, ...], adaptive: bool) -> _Group:
        used = _used(tables, features)
        return kernels.table_group(
            [tables.weights[table] for table in used],
            feature_tables=[used.index(tables.feature_tables[f]) for f in features],
            momentum=[tables.state[table][0] for table in used] if adaptive else (),
            device=self._kernels,
        )

    def pooled_lookup(self, tables: Tables, bags: Bags, *, mode: Modes = "sum") -> torch.Tensor:
        """One launch for each row format and mode."""
        parts = [
            (features, self._pool(tables, features, own_mode, bags))
            for features, own_mode in _pooled_parts(tables, mode)
        ]
        return parts[0][1] if len(parts) == 1 else _interleave(tables, parts)

    def _pool(self, tables: Tables, features: tuple[int, ...], mode: Mode, bags: Bags) -> torch.Tensor:
        own, group = _some(bags, features), self._group(tables, features, None)
        return kernels.pooled_lookup(group, own.ids, own.offsets, mode=mode, weights=own.weights)

    def sequence_lookup(self, tables: Tables, bags: Bags) -> tuple[torch.Tensor, ...]:
        """One launch for each row format and dim."""
        out: dict[int, torch.Tensor] = {}
        for features in _sequence_parts(tables):
            own, group = _some(bags, features), self._group(tables, features, None)
            starts = feature_starts(own)
            vectors = kernels.sequence_lookup(group, own.ids, _feature_offsets(own))
            out |= {f: vectors[begin:end] for f, (begin, end) in zip(features, pairwise(starts), strict=True)}
        return tuple(out[f] for f in range(bags.features))

    def update_pooled(
        self, tables: Tables, optimizer: EmbeddingOptimizer, gradients: torch.Tensor, bags: Bags, *, mode: Modes = "sum"
    ) -> None:
        """Fused into the backward for SGD and row-wise AdaGrad; else sums by row, then torch's steps."""
        check_state(tables, optimizer)
        if not isinstance(optimizer, Sgd | RowWiseAdagrad):
            self._step(tables, optimizer, self.sum_pooled(tables, gradients, bags, mode=mode))
            return
        for features, own_mode in _pooled_parts(tables, mode):
            own, group = _some(bags, features), self._group(tables, features, optimizer)
            part = _columns(tables, features, gradients)
            kernels.update_pooled(group, optimizer, part, own.ids, own.offsets, mode=own_mode, weights=own.weights)

    def update_sequence(
        self, tables: Tables, optimizer: EmbeddingOptimizer, gradients: Sequence[torch.Tensor], bags: Bags
    ) -> None:
        """Fused into the backward for SGD and row-wise AdaGrad; else sums by row, then torch's steps."""
        check_state(tables, optimizer)
        if not isinstance(optimizer, Sgd | RowWiseAdagrad):
            self._step(tables, optimizer, self.sum_sequence(tables, gradients, bags))
            return
        for features in _sequence_parts(tables):
            own, group = _some(bags, features), self._group(tables, features, optimizer)
            part = _joined([gradients[f] for f in features])
            kernels.update_sequence(group, optimizer, part, own.ids, _feature_offsets(own))

    def sum_pooled(
        self, tables: Tables, gradients: torch.Tensor, bags: Bags, *, mode: Modes = "sum"
    ) -> tuple[RowGradients, ...]:
        """The update kernel's sums."""
        out = [empty_gradients(rows) for rows in tables.weights]
        for features, own_mode in _pooled_parts(tables, mode):
            own, group = _some(bags, features), self._group(tables, features, None)
            part = _columns(tables, features, gradients)
            sums = kernels.sum_pooled(group, part, own.ids, own.offsets, mode=own_mode, weights=own.weights)
            _put(out, _used(tables, features), sums)
        return tuple(out)

    def sum_sequence(self, tables: Tables, gradients: Sequence[torch.Tensor], bags: Bags) -> tuple[RowGradients, ...]:
        """The update kernel's sums."""
        out = [empty_gradients(rows) for rows in tables.weights]
        for features in _sequence_parts(tables):
            own, group = _some(bags, features), self._group(tables, features, None)
            part = _joined([gradients[f] for f in features])
            _put(out, _used(tables, features), kernels.sum_sequence(group, part, own.ids, _feature_offsets(own)))
        return tuple(out)

    def update_rows(self, tables: Tables, optimizer: EmbeddingOptimizer, gradients: Sequence[RowGradients]) -> None:
        """A sequence's update, one feature a table."""
        given = [one.rows for one in gradients]
        lengths = torch.tensor([[len(rows)] for rows in given], device=self.device)
        own = self._one_feature_a_table(tables)
        self.update_sequence(own, optimizer, [one.sums for one in gradients], self.bags(_joined(given), lengths))

    def _one_feature_a_table(self, tables: Tables) -> Tables:
        if "one feature a table" not in tables.handle:
            tables.handle["one feature a table"] = self.tables(tables.weights, state=tables.state)
        made: Tables = tables.handle["one feature a table"]
        return made

    def add_pooled(
        self,
        targets: Sequence[torch.Tensor],
        feature_tables: Sequence[int],
        gradients: torch.Tensor,
        bags: Bags,
        *,
        mode: Modes = "sum",
    ) -> None:
        """The update kernel, which adds where its rate is -1."""
        self.update_pooled(self.tables(targets, feature_tables=feature_tables), _ADD, gradients, bags, mode=mode)

    def add_sequence(
        self,
        targets: Sequence[torch.Tensor],
        feature_tables: Sequence[int],
        gradients: Sequence[torch.Tensor],
        bags: Bags,
    ) -> None:
        """The update kernel, which adds where its rate is -1."""
        self.update_sequence(self.tables(targets, feature_tables=feature_tables), _ADD, gradients, bags)

    # -- the wire -----------------------------------------------------------------------------------------------

    def encode(self, rows: torch.Tensor, codec: Codec, widths: Sequence[int] | None = None) -> torch.Tensor:
        """The codec kernels; bf16 comes as bfloat16."""
        if codec in ("fp16", "bf16"):
            encoded = kernels.encode(rows.contiguous(), codec, device=self._kernels)
            return encoded.view(torch.bfloat16) if codec == "bf16" else encoded
        return by_vector(rows, widths, 0, lambda part: kernels.encode(part.contiguous(), codec, device=self._kernels))

    def decode(self, encoded: torch.Tensor, codec: Codec, widths: Sequence[int] | None = None) -> torch.Tensor:
        """The codec kernels."""

        def decoded(part: torch.Tensor) -> torch.Tensor:
            return kernels.decode(part.contiguous(), codec, device=self._kernels)

        return (
            decoded(encoded) if codec in ("fp16", "bf16") else by_vector(encoded, widths, ROW_OVERHEAD[codec], decoded)
        )


_Group = kernels.TableGroup


def _parts(keys: Sequence[Hashable]) -> list[tuple[int, ...]]:
    """Features of equal keys together, in order of the first of each."""
    return [tuple(f for f, own in enumerate(keys) if own == key) for key in dict.fromkeys(keys)]


def _pooled_parts(tables: Tables, mode: Modes) -> list[tuple[tuple[int, ...], Mode]]:
    """Features whose tables have one row format and one mode, and that mode."""
    modes = modes_of(mode, len(tables.weights))
    parts = _parts([(tables.weights[table].dtype, modes[table]) for table in tables.feature_tables])
    return [(features, modes[tables.feature_tables[features[0]]]) for features in parts]


def _sequence_parts(tables: Tables) -> list[tuple[int, ...]]:
    """Features whose tables have one row format and one dim."""
    rows = [tables.weights[table] for table in tables.feature_tables]
    return _parts([(one.dtype, one.shape[1]) for one in rows])


def _used(tables: Tables, features: tuple[int, ...]) -> list[int]:
    """The tables of some features, as their group has them."""
    return sorted({tables.feature_tables[f] for f in features})


def _put(out: list[RowGradients], used: Sequence[int], sums: Sequence[kernels.RowSums]) -> None:
    """Put the sums of a group's tables in their places."""
    for table, own in zip(used, sums, strict=True):
        out[table] = RowGradients(rows=own.rows, sums=own.sums)


def _some(bags: Bags, features: tuple[int, ...]) -> Bags:
    """The bags of some features, as they are if those are all. Waits for the device otherwise."""
    if features == tuple(range(bags.features)):
        return bags
    starts, lengths = feature_starts(bags), bags.offsets.diff().view(bags.features, -1)
    spans = [slice(starts[f], starts[f + 1]) for f in features]
    return Bags(
        ids=_joined([bags.ids[span] for span in spans]),
        offsets=starts_of(torch.cat([lengths[f] for f in features])),
        features=len(features),
        weights=None if bags.weights is None else _joined([bags.weights[span] for span in spans]),
    )


def _feature_offsets(bags: Bags) -> torch.Tensor:
    """Where each feature's ids begin, and their number at the end, int64 [features + 1], on the device."""
    if not bags.batch:
        return bags.offsets.new_zeros(bags.features + 1)
    return bags.offsets[:: bags.batch].contiguous()


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(list(parts))


def _columns(tables: Tables, features: tuple[int, ...], gradients: torch.Tensor) -> torch.Tensor:
    """The gradients of some features side by side, contiguous."""
    if len(features) == len(tables.feature_tables):
        return gradients.contiguous()
    return torch.cat([gradients[:, tables.columns[f] : tables.columns[f + 1]] for f in features], dim=1)


def _interleave(tables: Tables, parts: Sequence[tuple[tuple[int, ...], torch.Tensor]]) -> torch.Tensor:
    """The pooled vectors of all features in order, from those of its parts."""
    widths = [end - begin for begin, end in pairwise(tables.columns)]
    piece = {}
    for features, vectors in parts:
        columns = pairwise((0, *accumulate(widths[f] for f in features)))
        piece |= {f: vectors[:, begin:end] for f, (begin, end) in zip(features, columns, strict=True)}
    return torch.cat([piece[f] for f in range(len(widths))], dim=1)
