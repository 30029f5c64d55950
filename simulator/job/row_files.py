"""Files of raw product rows, one candidate a row: CSV, JSON lines and Parquet, read to columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from foreshard.topologies.errors import InputError, MissingDependencyError

__all__ = ["Rows", "read_parquet_table", "read_rows", "some"]

Rows = dict[str, list[Any]]
_SHOWN = 20  # mistakes named one by one; the others are counted


def some(problems: Sequence[str]) -> list[str]:
    """The first mistakes one by one, and how many more there are."""
    rest = len(problems) - _SHOWN
    return [*problems[:_SHOWN], f"{rest} more mistakes of this kind follow"] if rest > 0 else list(problems)


def read_rows(path: str | Path) -> Rows:
    """Return the columns of a file of rows by name; CSV cells are texts, "" where nothing stands.

    The suffix decides: .csv (a header line, commas), .tsv (tabs), .jsonl or .ndjson (an object a line), .parquet.
    Raises InputError with every malformed line, MissingDependencyError if Parquet is asked for without pyarrow.
    """
    path = Path(path)
    match path.suffix.lower():
        case ".csv":
            return _read_csv(path, ",")
        case ".tsv":
            return _read_csv(path, "\t")
        case ".jsonl" | ".ndjson":
            return _read_json_lines(path)
        case ".parquet":
            return _read_parquet(path)
    raise InputError(
        f"{path}: cannot tell the format from the suffix {path.suffix!r}: use .csv, .tsv, .jsonl, .ndjson or .parquet"
    )


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from None
    except ValueError as error:  # a path with a NUL character
        raise InputError(f"{str(path)!r}: no file has such a name: {error}") from None


def _read_csv(path: Path, delimiter: str) -> Rows:
    reader = csv.reader(io.StringIO(_text(path), newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}: the file may be cut inside a quoted cell") from None
    problems = list(_csv_problems(header, lines))
    if problems:
        raise InputError(some(problems), where=str(path))
    return {name: [cells[index] for _, cells in lines] for index, name in enumerate(header)}


def _csv_problems(header: Sequence[str], lines: Sequence[tuple[int, list[str]]]) -> Iterator[str]:
    if not header:
        yield "is empty: expected a header line with the names of the columns"
    for name in sorted({name for name in header if header.count(name) > 1}):
        yield f"the header names column {name!r} more than once: rename one"
    for number, cells in lines:
        if header and len(cells) != len(header):
            yield f"line {number}: {len(cells)} cells, expected {len(header)}: the line may be cut or a comma unquoted"


def _read_json_lines(path: Path) -> Rows:
    objects, problems = [], []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            try:
                objects.append(_json_object(line))
            except ValueError as error:
                problems.append(f"line {number}: {error}")
    if not objects and not problems:
        problems.append("is empty: expected an object a line such as {'user': 'user_42'}")
    if problems:
        raise InputError(some(problems), where=str(path))
    names = list(dict.fromkeys(name for one in objects for name in one))
    return {name: [one.get(name) for one in objects] for name in names}


def _json_object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        raise ValueError(f"is not JSON ({reason}): the line may be cut") from None
    except ValueError:  # Python converts no integer of more than 4,300 digits
        raise ValueError("holds an integer of more digits than can be read") from None
    if not isinstance(value, dict):
        raise ValueError(f"is a {type(value).__name__}, expected an object such as {{'user': 'user_42'}}")
    return value


def _read_parquet(path: Path) -> Rows:
    table = read_parquet_table(path)
    return {name: table.column(name).to_pylist() for name in table.column_names}


def read_parquet_table(path: Path) -> Any:
    """Return the pyarrow table of a Parquet file. Raises InputError for a damaged file."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError(
            f"{path}: Parquet files need pyarrow: pip install 'foreshard[frames]', or convert to .jsonl or .npz"
        ) from None
    try:
        return pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: cannot be read as Parquet ({reason}): the file may be cut") from None
