"""The rows that one rank holds: its shards of every family, side by side in one flat buffer for each row format.

Shards of a family are neighbours there, families in the order of the program, so that replicas can be averaged in
place: all of a rank's weights at once, or family by family. Optimizer state lies in a flat float32 buffer of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foreshard.calibration.ops.device_ops import DeviceOps, Tables
from foreshard.calibration.runner.family import Family
from foreshard.calibration.runner.initial import table_rows
from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import DataType
from foreshard.simulator.plans.rows import global_rows

if TYPE_CHECKING:
    import torch

__all__ = ["HeldRows", "Shard", "Shards"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shard:
    """Row part `part` of column part `column` of a table: weights [rows, width] and state tensors, views of buffers."""

    table: ShardedTable
    number: int
    column: int
    part: int
    weights: torch.Tensor
    state: tuple[torch.Tensor, ...]

    @property
    def columns(self) -> range:
        """The table's columns that it holds."""
        bounds = self.table.col_bounds
        return range(int(bounds[self.column]), int(bounds[self.column + 1]))

    @property
    def rows(self) -> IntArray:
        """The ids of its rows, in order."""
        return global_rows(self.table, self.part)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HeldRows:
    """A copy of what a rank holds of one table: ids `rows` [rows], `columns`, weights float32 and state."""

    table: str
    rows: IntArray
    columns: range
    weights: NDArray[np.float32]
    state: tuple[NDArray[np.float32], ...]


class Shards:
    """All shards of a rank, by family, and its replicated tables, with their initial values."""

    def __init__(
        self, families: Sequence[Family], replicated: Sequence[tuple[int, ShardedTable]], ops: DeviceOps,
        *, optimizer: Optimizer, seed: int, exact: bool, phase: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._device = ops.device
        self._optimizer = optimizer
        cuts = {family.name: list(_cuts(family)) for family in families}
        self.buffers, self.spans = self._allocate(cuts)
        self.state = self._state_buffer(cut for own in cuts.values() for cut in own)
        self._state_at = 0
        self.by_family = {name: tuple(self._shards(name, own)) for name, own in cuts.items()}
        self.replicated = tuple(self._whole(number, table) for number, table in replicated)
        for shard in (*(one for own in self.by_family.values() for one in own), *self.replicated):
            phase(f"initial rows of table {shard.number}")
            _fill(shard, seed, exact=exact)

    def tables_of(self, family: Family, ops: DeviceOps) -> Tables | None:
        """What look-ups of a family read, one feature a lane; None where the rank owns none of it."""
        shards = self.by_family[family.name]
        if not shards:
            return None
        place = {(shard.number, shard.column): index for index, shard in enumerate(shards)}
        lanes = [family.slots[slot] for slot in family.mine]
        return ops.tables(
            [shard.weights for shard in shards],
            feature_tables=[place[family.number_of[slot.table.table.name], slot.column] for slot in lanes],
            state=[shard.state for shard in shards],
        )

    def held(self) -> Iterator[HeldRows]:
        """Copies of all rows that the rank holds, shard by shard, replicated tables last."""
        for shard in (*(one for own in self.by_family.values() for one in own), *self.replicated):
            yield HeldRows(
                table=shard.table.table.name,
                rows=shard.rows,
                columns=shard.columns,
                weights=shard.weights.float().cpu().numpy().copy(),
                state=tuple(one.cpu().numpy().copy() for one in shard.state),
            )

    def _allocate(
        self, cuts: dict[str, list[_Cut]]
    ) -> tuple[dict[torch.dtype, torch.Tensor], dict[str, dict[torch.dtype, slice]]]:
        """One flat buffer for each row format, and where each family lies in it."""
        import torch

        spans: dict[str, dict[torch.dtype, slice]] = {name: {} for name in cuts}
        sizes: dict[torch.dtype, int] = {}
        for name, own in cuts.items():
            for dtype in dict.fromkeys(_torch_type(cut.table.table.data_type) for cut in own):
                elements = sum(cut.elements for cut in own if _torch_type(cut.table.table.data_type) == dtype)
                begin = sizes.get(dtype, 0)
                spans[name][dtype] = slice(begin, begin + elements)
                sizes[dtype] = begin + elements
        return {dtype: torch.empty(size, dtype=dtype, device=self._device) for dtype, size in sizes.items()}, spans

    def _state_buffer(self, cuts: Iterator[_Cut]) -> torch.Tensor:
        import torch

        shapes = [shape for cut in cuts for shape in _state_shapes(self._optimizer, cut.rows, cut.width)]
        size = sum(int(np.prod(shape)) for shape in shapes)
        return torch.zeros(size, dtype=torch.float32, device=self._device)

    def _shards(self, name: str, cuts: list[_Cut]) -> Iterator[Shard]:
        at = {dtype: span.start for dtype, span in self.spans[name].items()}
        for cut in cuts:
            dtype = _torch_type(cut.table.table.data_type)
            begin, at[dtype] = at[dtype], at[dtype] + cut.elements
            weights = self.buffers[dtype][begin : at[dtype]].view(cut.rows, cut.width)
            yield Shard(
                table=cut.table, number=cut.number, column=cut.column, part=cut.part, weights=weights,
                state=tuple(map(self._next_state, _state_shapes(self._optimizer, cut.rows, cut.width))),
            )  # fmt: skip

    def _next_state(self, shape: tuple[int, ...]) -> torch.Tensor:
        begin, self._state_at = self._state_at, self._state_at + int(np.prod(shape))
        return self.state[begin : self._state_at].view(shape)

    def _whole(self, number: int, table: ShardedTable) -> Shard:
        import torch

        rows, width = table.table.num_embeddings, table.table.embedding_dim
        dtype = _torch_type(table.table.data_type)
        return Shard(
            table=table, number=number, column=0, part=0,
            weights=torch.empty((rows, width), dtype=dtype, device=self._device),
            state=tuple(
                torch.zeros(shape, dtype=torch.float32, device=self._device)
                for shape in _state_shapes(self._optimizer, rows, width)
            ),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """A shard before it has memory."""

    table: ShardedTable
    number: int
    column: int
    part: int
    rows: int
    width: int

    @property
    def elements(self) -> int:
        return self.rows * self.width


def _cuts(family: Family) -> Iterator[_Cut]:
    """The shards of a family at this rank's position, table by table, column part by column part."""
    for number, one in zip(family.numbers, family.tables, strict=True):
        widths = np.diff(one.col_bounds).tolist()
        for column, part in np.argwhere(one.owners == family.position).tolist():
            yield _Cut(one, number, column, part, len(global_rows(one, part)), widths[column])


def _state_shapes(optimizer: Optimizer, rows: int, width: int) -> tuple[tuple[int, ...], ...]:
    match optimizer:
        case "sgd":
            return ()
        case "rowwise_adagrad":
            return ((rows,),)
        case "adagrad":
            return ((rows, width),)
        case "adam":
            return ((rows, width), (rows, width))


def _torch_type(data_type: DataType) -> torch.dtype:
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[data_type]


def _fill(shard: Shard, seed: int, *, exact: bool) -> None:
    import torch

    rows = torch.from_numpy(shard.rows).to(shard.weights.device)
    values = table_rows(seed, shard.number, rows, shard.columns, shard.table.table.num_embeddings, exact=exact)
    shard.weights.copy_(values)
