"""Traces of ids in jagged form: `.npz` archives and Parquet files with one list column a feature."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.row_files import read_parquet_table
from foreshard.topologies.errors import InputError
from foreshard.topologies.output import replaced

__all__ = ["read_batch", "write_batch"]

IntArray = NDArray[np.int64]
_DAMAGED = (ValueError, EOFError, KeyError, NotImplementedError, MemoryError, zipfile.BadZipFile, zlib.error)
_FORMAT = (
    "expected the arrays 'features' [features] of names, 'lengths' [features, samples] and 'values' [ids], "
    "and if wanted 'weights' [ids]"
)


def read_batch(path: str | Path) -> JaggedBatch:
    """Return the id batch of a trace file.

    `.npz` holds the arrays features (names), lengths [features, samples], values [ids] and, if wanted, weights [ids].
    `.parquet` holds one column a feature and one row a sample: lists of ids, or single ids; null is no id. Raises
    InputError with every contradiction, for a cut or foreign file too.
    """
    path = Path(path)
    match path.suffix.lower():
        case ".npz":
            return _read_npz(path)
        case ".parquet":
            return _read_parquet(path)
    raise InputError(f"{path}: cannot tell the format from the suffix {path.suffix!r}: use .npz or .parquet")


def write_batch(batch: JaggedBatch, path: str | Path) -> None:
    """Write a batch as an `.npz` trace that `read_batch` reads back. Raises InputError if `path` is unwritable."""
    arrays: dict[str, NDArray[Any]] = {
        "features": np.array(batch.features, dtype=np.str_),
        "lengths": batch.lengths,
        "values": batch.values,
    }
    if batch.weights is not None:
        arrays["weights"] = batch.weights
    with replaced(path) as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _read_npz(path: Path) -> JaggedBatch:
    arrays = _load_npz(path)
    problems = list(_npz_problems(arrays))
    if problems:
        raise InputError(problems, where=str(path))
    weights = arrays.get("weights")
    return _checked(
        path,
        features=tuple(map(str, arrays["features"].tolist())),
        lengths=arrays["lengths"].astype(np.int64),
        values=arrays["values"].astype(np.int64),
        weights=None if weights is None else weights.astype(np.float64),
    )


def _load_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        loaded: Any = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise InputError(f"{path}: holds a single array, {_FORMAT}")
        with loaded as archive:
            return {name: archive[name] for name in archive}
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _DAMAGED as error:
        raise InputError(f"{path}: is not a whole .npz archive of plain arrays ({error}): it may be cut") from None


def _npz_problems(arrays: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    missing = [name for name in ("features", "lengths", "values") if name not in arrays]
    if missing:
        yield f"the arrays {missing} are missing, only {sorted(arrays)} are there: {_FORMAT}"
    for name in ("lengths", "values"):
        if name in arrays and arrays[name].dtype.kind not in "iu":
            yield f"{name!r} has the type {arrays[name].dtype}, expected whole numbers"
        elif name in arrays and arrays[name].size and arrays[name].max() > np.iinfo(np.int64).max:
            yield f"{name!r} holds numbers above 2^63 - 1: map raw ids with a feature family first"
    if "features" in arrays and (arrays["features"].dtype.kind != "U" or arrays["features"].ndim != 1):
        yield f"'features' has the type {arrays['features'].dtype}, expected a list of texts"
    if "weights" in arrays and arrays["weights"].dtype.kind not in "fiu":
        yield f"'weights' has the type {arrays['weights'].dtype}, expected numbers"


def _checked(path: Path, **arrays: Any) -> JaggedBatch:
    try:
        return JaggedBatch(**arrays)
    except InputError as error:
        raise InputError(error.problems, where=str(path)) from None


def _read_parquet(path: Path) -> JaggedBatch:
    table = read_parquet_table(path)
    columns, problems = [], []
    for name in table.column_names:
        try:
            columns.append(_jagged_column(table.column(name)))
        except ValueError as error:
            problems.append(f"column {name!r}: {error}")
    if problems:
        raise InputError(problems, where=str(path))
    return _checked(
        path,
        features=tuple(table.column_names),
        lengths=np.array([lengths for lengths, _ in columns], dtype=np.int64).reshape(len(columns), table.num_rows),
        values=np.concatenate([np.empty(0, dtype=np.int64), *(values for _, values in columns)]),
    )


def _jagged_column(column: Any) -> tuple[IntArray, IntArray]:
    """(Lengths [rows], values [ids]) of an Arrow column of integers or lists of integers."""
    import pyarrow
    import pyarrow.compute

    kind = column.type
    listed = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)
    if not pyarrow.types.is_integer(kind.value_type if listed else kind):
        raise ValueError(f"holds {kind}, expected ids or lists of ids: map raw ids with feature families instead")
    if not listed:
        present = column.is_valid().to_numpy().astype(np.int64)
        return present, _integers(column.drop_null())
    lengths = pyarrow.compute.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
    return lengths, _integers(pyarrow.compute.list_flatten(column))


def _integers(column: Any) -> IntArray:
    if column.null_count:
        raise ValueError(f"{column.null_count} ids inside lists are null: drop them or map them to the default row")
    values = column.to_numpy()
    if len(values) and values.max() > np.iinfo(np.int64).max:
        raise ValueError("holds numbers above 2^63 - 1: map raw ids with a feature family first")
    return np.asarray(values, dtype=np.int64)
