"""Histograms of lookups in files: CSV, TSV, JSON lines or Parquet with the column count, and id or rows if known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foreshard.simulator.job.row_files import Rows, read_rows, some
from foreshard.simulator.job.scenario import Assumption
from foreshard.topologies.errors import InputError, MissingDependencyError

__all__ = ["MAX_BINS", "read_histogram", "with_histogram"]

Document = dict[str, Any]

MAX_BINS = 1_000_000  # counts that one table may have in a file; more rows than that are given in bins
_BIN_KEYS = {"id": "histogram_ids", "rows": "histogram_rows"}
_HEADERS = "count (one row a line), id,count (where each row sits), or rows,count (bins of equally hot rows)"


def read_histogram(path: str | Path) -> Document:
    """Return the keys of `access` for a histogram file: histogram, and histogram_ids or histogram_rows.

    Columns: count, and id (each line is that row) or rows (so many rows share the count). With count alone, lines
    with equal counts become one bin. Raises InputError with every mistake.
    """
    columns = read_rows(path)
    problems = list(_column_problems(columns))
    if problems:
        raise InputError(problems, where=str(path))
    counts = _numbers(columns["count"], "count", problems)
    key = next((name for name in _BIN_KEYS if name in columns), None)
    whole = [] if key is None else _whole_numbers(columns[key], key, problems)
    if problems:
        raise InputError(some(problems), where=str(path))
    if key is None:
        return _binned(counts)
    return {"histogram": counts, _BIN_KEYS[key]: whole}


def _column_problems(columns: Rows) -> Iterator[str]:
    if "count" not in columns:
        given = ", ".join(map(repr, list(columns)[:8])) or "none"
        yield f"there is no column 'count', only {given}: expected {_HEADERS}"
    elif not columns["count"]:
        yield f"holds no counts: expected {_HEADERS}"
    elif len(columns["count"]) > MAX_BINS:
        lines = len(columns["count"])
        yield f"holds {lines} lines, at most {MAX_BINS} are read: put equally hot rows into bins rows,count"
    if "id" in columns and "rows" in columns:
        yield "has both columns 'id' and 'rows': a line is one row with an id, or a bin of rows"


def _numbers(cells: Sequence[Any], name: str, problems: list[str]) -> list[float]:
    found = []
    for number, cell in enumerate(cells, start=1):
        try:
            value = float(cell)
        except (TypeError, ValueError):
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            problems.append(f"row {number}: {name} is {cell!r}, expected a number of at least 0")
        found.append(value)
    return found


def _whole_numbers(cells: Sequence[Any], name: str, problems: list[str]) -> list[int]:
    least = 1 if name == "rows" else 0
    found = []
    for number, cell in enumerate(cells, start=1):
        value = _integer(cell)
        if value is None or value < least:
            problems.append(f"row {number}: {name} is {cell!r}, expected a whole number of at least {least}")
        found.append(value or 0)
    return found


def _integer(cell: Any) -> int | None:
    """The whole number below 2^63 that a cell holds or spells; None if it is none."""
    try:
        value = int(cell) if not isinstance(cell, float) or cell.is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None
    return value if value is not None and value < 1 << 63 else None


def _binned(counts: Sequence[float]) -> Document:
    """One bin for each different count, hottest first; the count of a bin is that of all its rows."""
    value, rows = np.unique(np.array(counts), return_counts=True)
    return {"histogram": (value * rows)[::-1].tolist(), "histogram_rows": rows[::-1].tolist()}


def with_histogram(entry: Any, folder: Path, where: str, problems: list[str], notes: list[Assumption]) -> Any:
    """Return a table's entry in a document with the counts of the histogram file that its access names.

    `folder` is that of relative paths, `where` the entry's path. Adds mistakes to `problems`, what was read to `notes`.
    """
    access = entry.get("access") if isinstance(entry, dict) else None
    if not isinstance(access, dict) or not isinstance(access.get("histogram"), str):
        return entry
    file, rest = access["histogram"], {key: value for key, value in access.items() if key != "histogram"}
    name = f"{where}.access.histogram"
    try:
        found = read_histogram(folder / file)
    except InputError as error:
        problems.extend(
            f"{name}: {error.where}: {problem}" if error.where else f"{name}: {problem}" for problem in error.problems
        )
        found = {}
    except MissingDependencyError as error:
        problems.append(f"{name}: {error}")
        found = {}
    else:
        total = sum(found["histogram"])
        notes.append(
            Assumption(name=name, value=file, source=f"counted: {total:g} lookups in {len(found['histogram'])} bins")
        )
    return {**entry, "access": {**rest, **found}}
