"""Product rows to id batches: the bridge from a small real file to routing and the simulated step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.features import FeatureFamily, RawId, raw_id, table_of
from foreshard.simulator.job.row_files import Rows, some
from foreshard.simulator.job.workload import Table
from foreshard.topologies.errors import InputError

__all__ = ["batch_of", "raw_ids", "tables_of"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def batch_of(rows: Rows, families: Sequence[FeatureFamily], where: str = "rows") -> JaggedBatch:
    """Return the id batch of all rows: one feature a family, one sample a row, ids mapped to the families' tables.

    The batch has weights if any family is weighted, 1 for the others' ids. Raises InputError with every mistake:
    missing columns, ids that are none, weights that are not finite numbers or do not match their ids.
    """
    problems = list(_column_problems(rows, families))
    if problems:
        raise InputError(problems, where=where)
    columns = [_read_family(rows, family, problems) for family in families]
    if problems:
        raise InputError(some(problems), where=where)
    weighted = any(weights is not None for _, _, weights in columns)
    samples = len(next(iter(rows.values()), []))
    return JaggedBatch(
        features=tuple(family.name for family in families),
        lengths=np.array([lengths for lengths, _, _ in columns], dtype=np.int64).reshape(len(families), samples),
        values=_joined([family.mapping.rows(raw) for family, (_, raw, _) in zip(families, columns, strict=True)]),
        weights=_joined_weights(columns) if weighted else None,
    )


def tables_of(families: Iterable[FeatureFamily], batch: JaggedBatch) -> tuple[Table, ...]:
    """The families' tables with the mean lengths of a batch as pooling factors (at least one id in the whole batch)."""
    samples = max(1, batch.samples)
    ids = dict(zip(batch.features, batch.lengths.sum(axis=1).tolist(), strict=True))
    return tuple(table_of(family, max(ids[family.name], 1) / samples) for family in families)


def raw_ids(rows: Rows, family: FeatureFamily) -> list[RawId]:
    """All raw ids of a family's column in order, to learn a dictionary from."""
    problems = list(_column_problems(rows, [family]))
    if not problems:
        _, raw, _ = _read_family(rows, family, problems)
    if problems:
        raise InputError(some(problems))
    return raw


def _column_problems(rows: Rows, families: Sequence[FeatureFamily]) -> Iterator[str]:
    if len({len(column) for column in rows.values()}) > 1:
        sizes = ", ".join(f"{name!r} {len(column)}" for name, column in rows.items())
        yield f"columns differ in length ({sizes}): give every column one cell for each row"
    names = [family.name for family in families]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{names.count(name)} feature families are named {name!r}: give each its own name"
    for family in families:
        if family.pooling == "weighted" and (family.kind != "pooled" or family.weight_column is None):
            yield f"family {family.name!r} is weighted: it must be pooled and name its weight_column"
        absent = [column for column in _columns_of(family) if column not in rows]
        for column in absent:
            yield f"family {family.name!r}: there is no column {column!r}, only {', '.join(map(repr, rows)) or 'none'}"


def _columns_of(family: FeatureFamily) -> list[str]:
    weights = family.weight_column if family.pooling == "weighted" else None
    return [family.source] if weights is None else [family.source, weights]


Column = tuple[list[int], list[RawId], list[float] | None]


def _read_family(rows: Rows, family: FeatureFamily, problems: list[str]) -> Column:
    """(Lengths, raw ids, weights) of one family; what is wrong is added to `problems`."""
    lengths: list[int] = []
    raw: list[RawId] = []
    weights: list[float] = []
    columns = _columns_of(family)
    for number, cells in enumerate(zip(*(rows[column] for column in columns), strict=True), start=1):
        try:
            ids, given = _sample(cells, family)
        except ValueError as error:
            problems.append(f"row {number}, column {columns[0]!r}: {error}")
            continue
        lengths.append(len(ids))
        raw += ids
        weights += given
    return lengths, raw, weights if len(columns) > 1 else None


def _sample(cells: Sequence[object], family: FeatureFamily) -> tuple[list[RawId], list[float]]:
    """Ids and weights of one sample, cut to `max_ids`."""
    ids = _ids(cells[0], family)
    weights = _weights(cells[1], family, len(ids)) if len(cells) > 1 else []
    return ids[: family.max_ids], weights[: family.max_ids]


def _ids(cell: object, family: FeatureFamily) -> list[RawId]:
    if family.kind != "single":
        return [raw_id(value) for value in _listed(cell, family.separator)]
    if isinstance(cell, list):
        raise ValueError(f"holds a list of {len(cell)}, expected one id: make the family pooled or a sequence")
    return [raw_id(cell)]


def _listed(cell: object, separator: str) -> list[object]:
    """The items of a list cell: a JSON or Parquet list, a text with separators, one bare id, or nothing."""
    match cell:
        case None:
            return []
        case list():
            return cell
        case str():
            return list(cell.split(separator)) if cell.strip() else []
        case float() if math.isnan(cell):
            return []
    return [cell]


def _weights(cell: object, family: FeatureFamily, ids: int) -> list[float]:
    weights = [_weight(value) for value in _listed(cell, family.separator)]
    if len(weights) != ids:
        raise ValueError(f"{len(weights)} weights for {ids} ids: give one weight for each id")
    return weights


def _weight(value: object) -> float:
    try:
        weight = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a weight: expected a number") from None
    if not math.isfinite(weight):
        raise ValueError(f"the weight {value!r} is not finite: give a finite number")
    return weight


def _joined(values: Sequence[IntArray]) -> IntArray:
    return np.concatenate([np.empty(0, dtype=np.int64), *values])


def _joined_weights(columns: Sequence[Column]) -> FloatArray:
    ones = [weights if weights is not None else [1.0] * len(raw) for _, raw, weights in columns]
    return np.array([weight for one in ones for weight in one], dtype=np.float64)
