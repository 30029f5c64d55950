"""The backward with a fused optimizer on the device: gradients summed once per distinct row, then one step for it.

Or the sums alone, for replicas that exchange them before they step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from foreshard.kernels.checks import Problems, id_suffix
from foreshard.kernels.device import MAX_GRID, SHARED_BYTES, WARP, Device, blocks_for
from foreshard.kernels.lookup import Jagged, check_mode, one_dim, require_one_bag, take_jagged
from foreshard.kernels.reference_lookup import Mode
from foreshard.kernels.reference_update import LONG_SEGMENT, RowWiseAdagrad, Sgd
from foreshard.kernels.segments import DeviceSegments, position_bits, segment_values
from foreshard.kernels.tables import TableGroup, lanes_for

__all__ = ["RowSums", "sum_pooled", "sum_sequence", "update_pooled", "update_sequence"]

_FLOAT = 4  # bytes


class RowSums(NamedTuple):
    """Summed gradients of one table: distinct rows int64 [distinct], rising, and `sums` float32 [distinct, dim]."""

    rows: Any
    sums: Any


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Backward:
    """One backward: the gradients and where each look-up finds its own."""

    group: TableGroup
    jagged: Jagged
    gradients: Any
    bag_of: Any | None  # of each look-up; None where gradients belong to look-ups themselves
    mean: bool

    @property
    def vector(self) -> int:
        """4 where rows, gradients and their columns allow 4 elements at once, else 1."""
        address = self.group.device.address
        arrays = [(self.gradients, self.gradients.shape[1]), *zip(self.group.weights, self.group.dims, strict=True)]
        aligned = all(address(item) % (4 * item.dtype.itemsize) == 0 and dim % 4 == 0 for item, dim in arrays)
        return 4 if aligned else 1

    @property
    def source(self) -> tuple[Any, ...]:
        """Kernel arguments that describe struct Gradients of update.cu."""
        stride = np.int64(self.gradients.shape[1])
        places = (self.bag_of, self.jagged.offsets, self.jagged.weights)
        return (self.gradients, stride, self.group.features, *places, np.int64(self.jagged.bags), np.int32(self.mean))


def update_pooled(
    group: TableGroup,
    optimizer: Sgd | RowWiseAdagrad,
    gradients: object,
    ids: object,
    offsets: object,
    *,
    mode: Mode = "sum",
    weights: object | None = None,
    checked: bool = False,
    chunk: int = LONG_SEGMENT,
) -> None:
    """Update the tables in place from the gradients of `pooled_lookup`'s output, float32 [batch, sum of dims].

    Arguments are those of the look-up. Every distinct row is stepped once, with the sum of its gradients; results do
    not depend on the schedule. Raises InputError for wrong input, or where AdaGrad has no momentum.
    """
    check_mode(mode)
    with group.device.on(gradients, ids, offsets, weights, *group.weights):
        jagged = take_jagged(group, ids, offsets, weights, checked=checked)
        _update(_pooled(group, jagged, gradients, mode, chunk, _optimizer_problems(group, optimizer)), optimizer, chunk)


def _pooled(
    group: TableGroup, jagged: Jagged, gradients: object, mode: Mode, chunk: int, problems: Iterable[str] = ()
) -> _Backward:
    """The backward of a pooled look-up; raises InputError for what is wrong with it, and for `problems`."""
    taken = group.device.take(gradients, "gradients")
    _check(group, taken, (jagged.bags, group.width), chunk, problems)
    bag_of = group.device.xp.empty(jagged.ids.size, dtype=np.int32)
    return _Backward(group=group, jagged=jagged, gradients=taken, bag_of=bag_of, mean=mode == "mean")


def _sequence(
    group: TableGroup, jagged: Jagged, gradients: object, chunk: int, problems: Iterable[str] = ()
) -> _Backward:
    """The same of a sequence look-up."""
    require_one_bag(jagged, group)
    taken = group.device.take(gradients, "gradients")
    _check(group, taken, (int(jagged.ids.size), one_dim(group)), chunk, problems)
    return _Backward(group=group, jagged=jagged, gradients=taken, bag_of=None, mean=False)


def update_sequence(
    group: TableGroup,
    optimizer: Sgd | RowWiseAdagrad,
    gradients: object,
    ids: object,
    starts: object,
    *,
    checked: bool = False,
    chunk: int = LONG_SEGMENT,
) -> None:
    """Update the tables in place from the gradients of `sequence_lookup`'s output, float32 [ids, dim]."""
    with group.device.on(gradients, ids, starts, *group.weights):
        jagged = take_jagged(group, ids, starts, None, checked=checked, name="starts")
        _update(_sequence(group, jagged, gradients, chunk, _optimizer_problems(group, optimizer)), optimizer, chunk)


def sum_pooled(
    group: TableGroup,
    gradients: object,
    ids: object,
    offsets: object,
    *,
    mode: Mode = "sum",
    weights: object | None = None,
    checked: bool = False,
    chunk: int = LONG_SEGMENT,
) -> tuple[RowSums, ...]:
    """What `update_pooled` steps by, table by table, without a step. Waits for the device once: how many rows?"""
    check_mode(mode)
    with group.device.on(gradients, ids, offsets, weights, *group.weights):
        jagged = take_jagged(group, ids, offsets, weights, checked=checked)
        return _sums(_pooled(group, jagged, gradients, mode, chunk), chunk, like=ids)


def sum_sequence(
    group: TableGroup,
    gradients: object,
    ids: object,
    starts: object,
    *,
    checked: bool = False,
    chunk: int = LONG_SEGMENT,
) -> tuple[RowSums, ...]:
    """What `update_sequence` steps by, table by table, without a step. Waits for the device once: how many rows?"""
    with group.device.on(gradients, ids, starts, *group.weights):
        jagged = take_jagged(group, ids, starts, None, checked=checked, name="starts")
        return _sums(_sequence(group, jagged, gradients, chunk), chunk, like=ids)


def _check(
    group: TableGroup, gradients: Any, shape: tuple[int, int], chunk: int, optimizer_problems: Iterable[str] = ()
) -> None:
    problems = Problems("update")
    problems.dtype(gradients, "gradients", ("float32",))
    problems.shape(gradients, "gradients", str(list(shape)), tuple(gradients.shape) == shape)
    problems.unless(chunk > 0, f"chunk is {chunk}: expected at least 1")
    problems.found += optimizer_problems
    widest = SHARED_BYTES // _FLOAT
    fits = max(group.dims) <= widest
    problems.unless(fits, f"a row of dim {max(group.dims)} is wider than {widest}: shard the table column_wise")
    problems.raise_any()


def _optimizer_problems(group: TableGroup, optimizer: object) -> Iterator[str]:
    if not isinstance(optimizer, Sgd | RowWiseAdagrad):
        yield f"optimizer is a {type(optimizer).__name__}: expected Sgd or RowWiseAdagrad"
    elif isinstance(optimizer, RowWiseAdagrad):
        if not group.momentum:
            yield "row-wise AdaGrad needs momentum: give table_group one float32 array [rows] a table"
        if not optimizer.eps > 0:
            yield f"eps is {optimizer.eps}: expected above 0, a row without gradient has v = 0"
        if not optimizer.replicas >= 1:
            yield f"replicas is {optimizer.replicas}: expected at least 1"


def _values(backward: _Backward, bits: int) -> Any:
    """The row of every look-up, counted over all tables, and its position in `bits`; fills `bag_of` on the way."""
    group, jagged = backward.group, backward.jagged
    count = int(jagged.ids.size)
    values = group.device.xp.empty(count, dtype=np.int64)
    spans = (group.features, group.first_row, jagged.offsets, np.int64(jagged.bags), np.int32(group.num_features))
    args = (*spans, jagged.ids, np.int64(count), np.int32(bits), values, backward.bag_of)
    kernel = f"look_up_keys_{id_suffix(jagged.ids)}"
    group.device.launch(kernel, blocks_for(group.device, count), args, threads=group.device.threads)
    return values


def _update(backward: _Backward, optimizer: Sgd | RowWiseAdagrad, chunk: int) -> None:
    if not backward.jagged.ids.size:
        return
    segments = _segments(backward)
    _step(backward, optimizer, segments, chunk, *_sum_long_segments(backward, segments, chunk))


def _segments(backward: _Backward) -> DeviceSegments:
    """Look-ups grouped by row, rows counted over all tables."""
    bits = position_bits(int(backward.jagged.ids.size), backward.group.total_rows)
    return segment_values(backward.group.device, _values(backward, bits), bits)


def _sums(backward: _Backward, chunk: int, *, like: object) -> tuple[RowSums, ...]:
    """The sums of every table: rows of a table follow each other among all that are distinct."""
    group, device = backward.group, backward.group.device
    if not backward.jagged.ids.size:
        rows, sums, ends = device.xp.empty(0, dtype=np.int64), None, [0] * len(group.weights)
    else:
        segments = _segments(backward)
        rows = segments.distinct[: int(segments.count[0])]
        sums = _sum_rows(backward, segments, chunk, int(rows.size))
        ends = device.xp.searchsorted(rows, group.first_row[1:]).tolist()
    out, begin = [], 0
    for table, (dim, end) in enumerate(zip(group.dims, ends, strict=True)):
        own = device.xp.zeros((0, dim), dtype=np.float32) if sums is None else sums[begin:end, :dim]
        pair = (rows[begin:end] - group.first_row[table], device.xp.ascontiguousarray(own))
        out.append(RowSums(*(device.give(array, like) for array in pair)))
        begin = end
    return tuple(out)


def _sum_rows(backward: _Backward, segments: DeviceSegments, chunk: int, count: int) -> Any:
    """The sum of each of `count` segments, float32 [count, widest dim]."""
    group = backward.group
    first_slot, partial = _sum_long_segments(backward, segments, chunk)
    widest, vector, lanes = max(group.dims), backward.vector, _lanes(group, backward.vector)
    sums = group.device.xp.empty((count, widest), dtype=np.float32)
    runs = (segments.order, segments.distinct, segments.starts, segments.count, np.int64(chunk), first_slot, partial)
    shape = (np.int32(vector), np.int32(lanes), np.int32(widest))
    args = (*_table_args(group), *backward.source, *runs, *shape, sums)
    group.device.launch("sum_rows", blocks_for(group.device, count * lanes), args, threads=group.device.threads)
    return sums


def _lanes(group: TableGroup, vector: int) -> int:
    return lanes_for(max(group.dims) // vector)


def _table_args(group: TableGroup) -> tuple[Any, ...]:
    return (group.tables, group.first_row, np.int32(len(group.weights)))


def _sum_long_segments(backward: _Backward, segments: DeviceSegments, chunk: int) -> tuple[Any, Any]:
    """Return (first chunk slot of each long segment [n], sums of chunks [slots, widest dim]).

    A segment longer than `chunk` has fewer than 2 x length / chunk chunks, so that many slots in all are enough.
    """
    group, count = backward.group, int(backward.jagged.ids.size)
    device, xp = group.device, group.device.xp
    capacity = 2 * count // chunk + 1
    first_slot = xp.empty(count, dtype=np.int64)
    begin, end, key = (xp.empty(capacity, dtype=np.int64) for _ in range(3))
    used = xp.zeros(1, dtype=np.uint64)
    args = (segments.starts, segments.count, np.int64(chunk), first_slot, begin, end, key, segments.distinct, used)
    device.launch("reserve_chunks", blocks_for(device, count), args, threads=device.threads)
    widest, vector = max(group.dims), backward.vector
    partial = xp.empty((capacity, widest), dtype=np.float32)
    lanes = _lanes(group, vector)
    shape = (np.int32(vector), np.int32(lanes), np.int32(widest))
    args = (*_table_args(group), *backward.source, segments.order, begin, end, key, used, *shape, partial)
    device.launch("sum_chunks", blocks_for(device, capacity * lanes), args, threads=device.threads)
    return first_slot, partial


def _threads_for(device: Device, lanes: int, widest: int) -> int:
    """Threads of a block, fewer than usual where the rows of all its groups do not fit into shared memory."""
    groups = SHARED_BYTES // (widest * _FLOAT)
    return max(WARP, min(device.threads, groups * lanes // WARP * WARP))


def _step(
    backward: _Backward,
    optimizer: Sgd | RowWiseAdagrad,
    segments: DeviceSegments,
    chunk: int,
    first_slot: Any,
    partial: Any,
) -> None:
    group, vector, widest = backward.group, backward.vector, max(backward.group.dims)
    lanes = _lanes(group, vector)
    threads = _threads_for(group.device, lanes, widest)
    shape = (np.int32(vector), np.int32(lanes), np.int32(widest))
    runs = (segments.order, segments.distinct, segments.starts, segments.count, np.int64(chunk), first_slot, partial)
    args = (*_table_args(group), *backward.source, *runs, *shape, *_rates(optimizer))
    grid = min(-(-int(backward.jagged.ids.size) * lanes // threads), MAX_GRID)
    shared = threads // lanes * widest * _FLOAT
    group.device.launch(f"update_rows_{group.row_format}", grid, args, threads=threads, shared_bytes=shared)


def _rates(optimizer: Sgd | RowWiseAdagrad) -> tuple[Any, ...]:
    """Kernel arguments of struct Optimizer: adaptive, learning rate, eps, replicas."""
    if isinstance(optimizer, Sgd):
        return (np.int32(0), np.float32(optimizer.learning_rate), np.float32(0), np.float32(1))
    rates = (np.float32(optimizer.learning_rate), np.float32(optimizer.eps), np.float32(optimizer.replicas))
    return (np.int32(1), *rates)
