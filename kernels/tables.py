"""Tables that share a launch: their rows on the device, and the descriptors that tell kernels where rows lie.

A group is made once and used every step: descriptors hold addresses, so the arrays must stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreshard.kernels.checks import Problems, dtype_name
from foreshard.kernels.cupy_device import cupy_device
from foreshard.kernels.device import WARP, Device
from foreshard.topologies.errors import InputError

__all__ = ["FEATURE", "ROW_FORMATS", "TABLE", "Shape", "TableGroup", "lanes_for", "row_shape", "table_group"]

ROW_FORMATS = {"float32": "fp32", "float16": "fp16", "uint16": "bf16"}  # dtype of rows -> suffix of kernels

# struct Table and struct Feature of common.cuh
TABLE = np.dtype(
    [
        ("weights", "u8"),
        ("momentum", "u8"),
        ("rows", "i8"),
        ("dim", "i4"),
        ("vector", "i4"),
        ("lanes", "i4"),
        ("chunks", "i4"),
    ]
)
FEATURE = np.dtype([("column", "i8"), ("table", "i4"), ("padding", "i4")])


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How a row of `dim` elements is spread over lanes: `vector` elements each at once, in `chunks` turns."""

    vector: int
    lanes: int
    chunks: int


def vector_for(dim: int, itemsize: int, address: int) -> int:
    """Elements that a lane loads at once, 8 or 4 (up to 16 bytes) or 1: they divide `dim`, rows are aligned to them."""
    fits = (vector for vector in (8, 4) if vector * itemsize <= 16 and dim % vector == 0)
    return next((vector for vector in fits if address % (vector * itemsize) == 0), 1)


def lanes_for(units: int) -> int:
    """Lanes that share a row of `units` vectors: the next power of two, at most a warp."""
    return min(WARP, 1 << max(units - 1, 0).bit_length())


def row_shape(dim: int, itemsize: int, address: int) -> Shape:
    """The widest aligned vectors for a row and the lanes that share it."""
    vector = vector_for(dim, itemsize, address)
    lanes = lanes_for(dim // vector)
    return Shape(vector=vector, lanes=lanes, chunks=-(-dim // (lanes * vector)))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TableGroup:
    """Tables of one row format and the features that look them up; `table_group` makes it.

    On the device: `tables` and `features` (descriptors), `steps` [features + 1] (warp steps per 32 bags, summed),
    `first_row` [tables + 1] (rows of the tables before). On the host: `dims` of the tables, `columns` [features + 1].
    """

    device: Device
    row_format: str
    weights: tuple[Any, ...]
    momentum: tuple[Any, ...]
    feature_tables: tuple[int, ...]
    dims: tuple[int, ...]
    columns: NDArray[np.int64]
    tables: Any
    features: Any
    steps: Any
    first_row: Any
    steps_per_tile: int
    total_rows: int

    @property
    def width(self) -> int:
        """Columns of a pooled output: the dims of all features."""
        return int(self.columns[-1])

    @property
    def num_features(self) -> int:
        """Features that the group is looked up by."""
        return len(self.feature_tables)


def table_group(
    weights: Sequence[Any],
    *,
    feature_tables: Sequence[int] | None = None,
    momentum: Sequence[Any] = (),
    device: Device | None = None,
) -> TableGroup:
    """Put tables together for fused launches; `feature_tables[f]` is the table of feature f (one feature a table).

    `weights` are contiguous [num_embeddings, dim], all float32, all float16 or all bfloat16 (or uint16 with its bits);
    `momentum` [num_embeddings] float32, one a table, are the accumulators of row-wise AdaGrad. Both are used in place.
    Raises InputError for anything else, MissingDependencyError without CuPy.
    """
    device = device or cupy_device()
    _check_lists(weights=weights, momentum=momentum)
    with device.on(*weights, *momentum):
        rows = tuple(device.take(item, f"table {index}") for index, item in enumerate(weights))
        states = tuple(device.take(item, f"momentum {index}") for index, item in enumerate(momentum))
        features = tuple(range(len(rows)) if feature_tables is None else map(int, feature_tables))
        _check(rows, states, features)
        return _describe(device, rows, states, features)


def _check_lists(**given: Any) -> None:
    for what, items in given.items():
        if hasattr(items, "shape"):
            raise InputError(f"{what} is one array of shape {list(items.shape)}: expected a list, one array a table")


def _check(rows: tuple[Any, ...], states: tuple[Any, ...], features: tuple[int, ...]) -> None:
    problems = Problems("tables")
    problems.unless(len(rows) > 0, "no table was given: expected at least one")
    problems.unless(len(features) > 0, "no feature was given: expected at least one")
    for index, item in enumerate(rows):
        problems.shape(item, f"table {index}", "[num_embeddings, dim]", item.ndim == 2 and item.shape[1] > 0)
        problems.dtype(item, f"table {index}", tuple(ROW_FORMATS))
        same = dtype_name(item) == dtype_name(rows[0])
        problems.unless(
            same, f"table {index} is {dtype_name(item)} but table 0 {dtype_name(rows[0])}: group them apart"
        )
    wrong = [table for table in features if not 0 <= table < len(rows)]
    problems.unless(not wrong, f"feature_tables names tables {wrong}: expected 0 to {len(rows) - 1}")
    few = len(states) not in (0, len(rows))
    problems.unless(not few, f"{len(states)} momentum arrays for {len(rows)} tables: expected one for each, or none")
    for index, (state, item) in enumerate(zip(states, rows, strict=False)):
        problems.dtype(state, f"momentum {index}", ("float32",))
        wanted = item.shape[:1]
        problems.shape(state, f"momentum {index}", str(list(wanted)), tuple(state.shape) == tuple(wanted))
    problems.raise_any()


def _describe(device: Device, rows: tuple[Any, ...], states: tuple[Any, ...], features: tuple[int, ...]) -> TableGroup:
    tables = np.zeros(len(rows), dtype=TABLE)
    for index, item in enumerate(rows):
        address, dim = device.address(item), int(item.shape[1])
        shape = row_shape(dim, item.dtype.itemsize, address)
        state = device.address(states[index]) if states else 0
        tables[index] = (address, state, item.shape[0], dim, shape.vector, shape.lanes, shape.chunks)
    used = tables[list(features)]
    columns, steps = _running(used["dim"]), _running(used["lanes"].astype(np.int64) * used["chunks"])
    described = np.zeros(len(features), dtype=FEATURE)
    described["column"], described["table"] = columns[:-1], features
    return TableGroup(
        device=device,
        row_format=ROW_FORMATS[dtype_name(rows[0])],
        weights=rows,
        momentum=states,
        feature_tables=features,
        dims=tuple(int(dim) for dim in tables["dim"]),
        columns=columns,
        tables=device.upload(tables),
        features=device.upload(described),
        steps=device.upload(steps),
        first_row=device.upload(_running(tables["rows"])),
        steps_per_tile=int(steps[-1]),
        total_rows=int(tables["rows"].sum()),
    )


def _running(counts: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
