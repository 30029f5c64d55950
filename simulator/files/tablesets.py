"""Table sets: named lists of embedding tables, shipped with foreshard or in a file of one's own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path as FilePath
from typing import Any

from foreshard.simulator.files.document import (
    SCHEMA,
    Document,
    is_schema,
    parse_toml,
    read_toml,
    too_many_tables,
    unprintable,
)
from foreshard.simulator.files.shipped import shipped_names, shipped_text
from foreshard.simulator.ids.histogram_files import with_histogram
from foreshard.simulator.job.scenario import Assumption
from foreshard.simulator.job.suggestions import Path, did_you_mean, shown, toml_path, unknown_key
from foreshard.simulator.job.validation import validated
from foreshard.simulator.job.workload import Table
from foreshard.topologies.errors import InputError

__all__ = ["TableSet", "changed_tables", "load_table_set", "load_tables", "table_set_document"]

_KEYS = ("schema", "name", "description", "source", "defaults", "assumptions", "tables")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSet:
    """Tables with the public source of their sizes, and what had to be assumed because it is not published."""

    name: str
    tables: tuple[Table, ...]
    description: str = ""
    source: str = ""
    assumptions: tuple[Assumption, ...] = ()


def load_tables(name: str | FilePath) -> tuple[Table, ...]:
    """Return the tables of a shipped set ("mlperf-dcnv2") or of a table set file; raises InputError."""
    return load_table_set(name).tables


def load_table_set(name: str | FilePath) -> TableSet:
    """Return a shipped table set, or that of a file, with its source and assumptions; raises InputError."""
    document = table_set_document(str(name))
    problems: list[str] = []
    entries = enumerate(document["tables"])
    tables = [validated(Table, entry, ("tables", index), problems) for index, entry in entries]
    notes = enumerate(document["assumptions"])
    assumptions = [validated(Assumption, entry, ("assumptions", index), problems) for index, entry in notes]
    if problems:
        raise InputError(problems, where=str(name))
    return TableSet(
        name=document["name"],
        tables=tuple(table for table in tables if table),
        description=document["description"],
        source=document["source"],
        assumptions=tuple(assumption for assumption in assumptions if assumption),
    )


def table_set_document(name: str, folder: FilePath | None = None) -> Document:
    """Return the document of a table set, its defaults written into every table; raises InputError.

    A name that ends in .toml is a file, taken relative to `folder`.
    """
    if name.endswith(".toml"):
        document, where = read_toml((folder or FilePath()) / name, kind="table set"), name
    elif name in shipped_names("tables"):
        document, where = parse_toml(shipped_text("tables", name), where=name), name
    else:
        known = shipped_names("tables")
        hint = did_you_mean(name, known)
        raise InputError(f"unknown table set {shown(name)}{hint}; shipped are {', '.join(known)}; or give a .toml file")
    given = document.get("tables")
    problems = list(too_many_tables(len(given) if isinstance(given, list) else 0)) or list(_problems(document))
    if problems:
        raise InputError(problems, where=where)
    completed = _completed(document, FilePath(name).stem if name.endswith(".toml") else name)
    return _with_histograms(completed, ((folder or FilePath()) / name).parent, where)


def _problems(document: Document) -> Iterator[str]:
    yield from (unknown_key((key,), _KEYS) for key in document if key not in _KEYS)
    yield from unprintable(document)
    if not is_schema(document.get("schema")):
        yield f"schema = {shown(document.get('schema', 'missing'))}: expected schema = {SCHEMA}"
    for key, kind, words in _SHAPES:
        if not isinstance(document.get(key, kind()), kind):
            yield f"{key} = {shown(document[key])}: expected {words}"
    if not document.get("tables"):
        yield "there are no [[tables]]: give at least one"


_SHAPES: tuple[tuple[str, type[Any], str], ...] = (
    ("name", str, "text in quotes"),
    ("description", str, "text in quotes"),
    ("source", str, "text in quotes"),
    ("defaults", dict, "a table [defaults]"),
    ("assumptions", list, "a list [[assumptions]]"),
    ("tables", list, "a list [[tables]]"),
)


def _completed(document: Document, name: str) -> Document:
    defaults = document.get("defaults", {})
    tables = [
        {**copy.deepcopy(defaults), **entry} if isinstance(entry, dict) else entry for entry in document["tables"]
    ]
    texts = {key: document.get(key, "") for key in ("description", "source")}
    return {
        "name": document.get("name", name),
        **texts,
        "assumptions": document.get("assumptions", []),
        "tables": tables,
    }


def _with_histograms(document: Document, folder: FilePath, where: str) -> Document:
    """The document with the counts of the histogram files that its tables name, relative to the set's folder."""
    problems: list[str] = []
    notes: list[Assumption] = []
    tables = []
    for index, entry in enumerate(document["tables"]):
        name = entry.get("name") if isinstance(entry, dict) else None
        path = toml_path(("workload", "tables", name if isinstance(name, str) else index))
        tables.append(with_histogram(entry, folder, path, problems, notes))
    if problems:
        raise InputError(problems, where=where)
    return {**document, "tables": tables, "assumptions": [*document["assumptions"], *map(asdict, notes)]}


def changed_tables(entries: list[Any], changes: Any, problems: list[str]) -> list[Any]:
    """Return the table entries with the keys of [workload.all_tables] written into each.

    Adds a sentence to `problems` for every key that no table has or that cannot be equal in all.
    """
    path: Path = ("workload", "all_tables")
    if not changes:
        return entries
    if not isinstance(changes, dict):
        problems.append(f"{toml_path(path)} = {shown(changes)}: expected a table of keys to set in every table")
        return entries
    own = [key for key in ("name", "feature_names") if key in changes]
    problems.extend(f"{toml_path((*path, key))}: cannot be the same in every table" for key in own)
    rest = {key: value for key, value in changes.items() if key not in own}
    probe = {"name": "any", "num_embeddings": 1, "embedding_dim": 1, **rest}
    if validated(Table, probe, path, problems) is None:
        return entries
    return [_changed(entry, rest) if isinstance(entry, dict) else entry for entry in entries]


def _changed(entry: Document, changes: Document) -> Document:
    """The entry with the changes; a table in a table, as `access`, keeps the keys that are not named."""
    both = {
        key: value for key, value in entry.items() if isinstance(value, dict) and isinstance(changes.get(key), dict)
    }
    return {**entry, **changes, **{key: {**value, **changes[key]} for key, value in both.items()}}
