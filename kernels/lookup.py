"""Look-ups on the device: pooled and sequence, many tables in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from foreshard.kernels.checks import Problems, id_suffix
from foreshard.kernels.device import WARP, Device, blocks_for
from foreshard.kernels.reference_lookup import Mode
from foreshard.kernels.tables import TableGroup, row_shape
from foreshard.topologies.errors import InputError

__all__ = ["Jagged", "check_mode", "pooled_lookup", "sequence_lookup", "take_jagged"]

_IDS = ("int64", "int32")
_MODES = ("sum", "mean")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Jagged:
    """Ids of features in bags: `offsets` int64 [features x bags + 1], `weights` float32 [ids] or None."""

    ids: Any
    offsets: Any
    weights: Any | None
    bags: int  # of each feature


def take_jagged(
    group: TableGroup, ids: object, offsets: object, weights: object | None, *, checked: bool, name: str = "offsets"
) -> Jagged:
    """The jagged ids as device arrays. Raises InputError for wrong types and shapes; `checked` reads values too."""
    device, problems = group.device, Problems("look-up")
    rows, spans = device.take(ids, "ids"), device.take(offsets, name)
    factors = None if weights is None else device.take(weights, "weights")
    for array, what in ((rows, "ids"), (spans, name)):
        problems.dtype(array, what, _IDS)
        problems.shape(array, what, "[n]", array.ndim == 1)
    bags = (spans.size - 1) // group.num_features
    whole = spans.size > 0 and bags * group.num_features == spans.size - 1
    problems.shape(spans, name, f"[{group.num_features} features x batch + 1]", whole)
    if factors is not None:
        problems.dtype(factors, "weights", ("float32",))
        problems.shape(factors, "weights", f"{list(rows.shape)}, one for each id", factors.shape == rows.shape)
    problems.unless(spans.size - 1 < 2**31, f"{spans.size - 1} bags: expected fewer than 2^31, split the batch")
    problems.raise_any()
    jagged = Jagged(ids=rows, offsets=spans.astype(np.int64, copy=False), weights=factors, bags=bags)
    if checked:
        _check_values(group, jagged, name)
    return jagged


def _check_values(group: TableGroup, jagged: Jagged, name: str) -> None:
    """Offsets must rise from 0 to the number of ids, and ids lie inside their tables; waits for the device."""
    offsets, count = jagged.offsets, int(jagged.ids.size)
    ends = (int(offsets[0]), int(offsets[-1]))
    if ends != (0, count):
        raise InputError(f"{name} run from {ends[0]} to {ends[1]}: expected 0 to {count}, the number of ids")
    if bool((offsets[1:] < offsets[:-1]).any()):
        raise InputError(f"{name} fall somewhere: expected each at least as large as the one before")
    problems = group.device.upload(np.array([0, 2**64 - 1], dtype=np.uint64))
    args = (group.tables, group.features, offsets, np.int64(jagged.bags), np.int32(group.num_features))
    _launch(group.device, f"check_ids_{id_suffix(jagged.ids)}", count, (*args, jagged.ids, np.int64(count), problems))
    wrong, position = int(problems[0]), int(problems[1])
    if wrong:
        feature = int((offsets[:: jagged.bags][1:] <= position).sum())
        rows = group.weights[group.feature_tables[feature]].shape[0]
        raise InputError(
            f"{wrong} ids lie outside their table, first id {int(jagged.ids[position])} of feature {feature}, "
            f"at position {position}: expected 0 to {rows - 1}"
        )


def _launch(device: Device, kernel: str, threads: int, args: tuple[Any, ...]) -> None:
    if threads:
        device.launch(kernel, blocks_for(device, threads), args, threads=device.threads)


def pooled_lookup(
    group: TableGroup,
    ids: object,
    offsets: object,
    *,
    mode: Mode = "sum",
    weights: object | None = None,
    checked: bool = False,
) -> Any:
    """The pooled vectors of all features side by side, float32 [batch, sum of the features' dims], in one launch.

    Bag b of feature f holds `ids[offsets[f x batch + b] : offsets[f x batch + b + 1]]` (int32 or int64); an empty bag
    gives zeros. `weights` float32 [ids] multiply the vectors; a mean divides by the number of ids. `checked` reads ids
    and offsets first and raises InputError where one is out of range; else such an id reads foreign memory.
    """
    device = group.device
    check_mode(mode)
    with device.on(ids, offsets, weights, *group.weights):
        jagged = take_jagged(group, ids, offsets, weights, checked=checked)
        out = device.xp.empty((jagged.bags, group.width), dtype=np.float32)
        tasks = -(-jagged.bags // WARP) * group.steps_per_tile
        kernel = f"pooled_lookup_{group.row_format}_{id_suffix(jagged.ids)}"
        tables = (group.tables, group.features, group.steps, np.int32(group.num_features))
        bags = (jagged.ids, jagged.offsets, jagged.weights, np.int64(jagged.bags), np.int32(mode == "mean"))
        _launch(device, kernel, tasks * WARP, (*tables, *bags, out, np.int64(group.width)))
        return device.give(out, ids)


def sequence_lookup(group: TableGroup, ids: object, starts: object, *, checked: bool = False) -> Any:
    """The vector of every id, float32 [ids, dim]; feature f owns `ids[starts[f] : starts[f + 1]]`.

    All tables must have one dim. Raises InputError otherwise; `checked` as in `pooled_lookup`.
    """
    device, dim = group.device, one_dim(group)
    with device.on(ids, starts, *group.weights):
        jagged = take_jagged(group, ids, starts, None, checked=checked, name="starts")
        require_one_bag(jagged, group)
        count, lanes = int(jagged.ids.size), lanes_of_rows(group)
        out = device.xp.empty((count, dim), dtype=np.float32)
        kernel = f"sequence_lookup_{group.row_format}_{id_suffix(jagged.ids)}"
        tables = (group.tables, group.features, jagged.offsets, np.int32(group.num_features))
        _launch(device, kernel, count * lanes, (*tables, jagged.ids, np.int64(count), np.int32(lanes), out))
        return device.give(out, ids)


def check_mode(mode: str) -> None:
    """Raise InputError for anything but "sum" and "mean"."""
    if mode not in _MODES:
        raise InputError(f"unknown mode {mode!r}: expected one of {', '.join(_MODES)}")


def one_dim(group: TableGroup) -> int:
    """The dim that all tables share. Raises InputError where they differ."""
    if len(set(group.dims)) > 1:
        raise InputError(f"tables have dims {sorted(set(group.dims))}: a sequence launch needs one, group them by dim")
    return group.dims[0]


def require_one_bag(jagged: Jagged, group: TableGroup) -> None:
    """Raise InputError unless `starts` has one span a feature."""
    if jagged.bags != 1:
        raise InputError(
            f"starts has {jagged.offsets.size} values: expected {group.num_features + 1}, one span a feature"
        )


def lanes_of_rows(group: TableGroup) -> int:
    """Lanes that share a row in a sequence launch: those of the widest vectors of any table."""
    shapes = (row_shape(int(w.shape[1]), w.dtype.itemsize, group.device.address(w)) for w in group.weights)
    return max(shape.lanes for shape in shapes)
