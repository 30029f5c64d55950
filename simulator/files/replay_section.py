"""The [workload.replay] and [[workload.families]] sections of a scenario: recorded samples, tables made for them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from foreshard.simulator.job.batches import JaggedBatch, check_ids
from foreshard.simulator.job.features import DEFAULT_ROW
from foreshard.simulator.job.replay import tables_of
from foreshard.simulator.job.row_files import Rows, read_rows
from foreshard.simulator.job.scenario import Assumption
from foreshard.simulator.job.suggestions import shown, toml_path
from foreshard.simulator.job.validation import validated
from foreshard.simulator.job.workload import Dense, FamilyChoice, Replay, Table, Workload
from foreshard.simulator.lookups.batch_files import read_batch
from foreshard.simulator.lookups.recorded import (
    counted_access,
    family_of,
    learnt,
    rows_of_family,
    samples_of_rows,
    too_few,
)
from foreshard.topologies.errors import InputError, MissingDependencyError

__all__ = ["Recorded", "check_recorded", "check_samples", "family_entries", "read_recorded", "with_counted_access"]

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Recorded:
    """What a scenario says of recorded samples, and all of them; None where they could not be read."""

    replay: Replay
    families: tuple[FamilyChoice, ...]
    samples: JaggedBatch | None


def read_recorded(section: Document, folder: Path, problems: list[str]) -> Recorded | None:
    """Return the recorded samples of a [workload] section, None without any; mistakes are added to `problems`.

    The path of the file is taken relative to `folder`. Dictionaries without ids learn them from the file.
    """
    families = _families(section.get("families", []), problems)
    if "replay" not in section:
        if section.get("families"):
            problems.append("workload.families is given without workload.replay: give the file of rows they are about")
        return None
    replay = validated(Replay, section["replay"], ("workload", "replay"), problems)
    if replay is None or families is None:
        return None
    replay = replace(replay, file=os.path.abspath(folder / replay.file))
    wrong = list(_contradictions(replay, families))
    problems += wrong
    if wrong:
        return Recorded(replay=replay, families=families, samples=None)
    return _read(replay, families, problems)


def _read(replay: Replay, families: tuple[FamilyChoice, ...], problems: list[str]) -> Recorded:
    try:
        if not families:
            return Recorded(replay=replay, families=(), samples=read_batch(replay.file))
        rows = read_rows(replay.file)
        families = _all_learnt(families, rows)
        return Recorded(replay=replay, families=families, samples=samples_of_rows(rows, replay, families))
    except InputError as error:
        where = f"workload.replay: {error.where}: " if error.where else "workload.replay: "
        problems += (where + problem for problem in error.problems)
    except MissingDependencyError as error:
        problems.append(f"workload.replay: {error}")
    return Recorded(replay=replay, families=families, samples=None)


def _all_learnt(families: Sequence[FamilyChoice], rows: Rows) -> tuple[FamilyChoice, ...]:
    """The families with what the rows teach them; a family that the rows contradict is told when rows are mapped."""
    try:
        return tuple(learnt(choice, rows) for choice in families)
    except InputError:
        return tuple(replace(choice, ids=choice.ids or ()) for choice in families)


def _families(entries: Any, problems: list[str]) -> tuple[FamilyChoice, ...] | None:
    """The families, or None if one could not be read."""
    if not isinstance(entries, list):
        problems.append(f"workload.families = {shown(entries)}: expected a list, each under [[workload.families]]")
        return None
    names = [entry.get("name", index) if isinstance(entry, dict) else index for index, entry in enumerate(entries)]
    keys = [name if isinstance(name, str) and name else index for index, name in enumerate(names)]
    read = [
        validated(FamilyChoice, entry, ("workload", "families", key), problems)
        for key, entry in zip(keys, entries, strict=True)
    ]
    return None if None in read else tuple(choice for choice in read if choice is not None)


def _contradictions(replay: Replay, families: Sequence[FamilyChoice]) -> Iterator[str]:
    suffix = Path(replay.file).suffix.lower()
    if not families and suffix not in (".npz", ".parquet"):
        yield (
            f"workload.replay.file = {shown(Path(replay.file).name)} holds rows: say under [[workload.families]] which "
            "columns hold ids, or give a trace of ids, .npz or .parquet"
        )
    if families and suffix == ".npz":
        yield "workload.families is given for a trace of ids: its features are the tables' own, drop the families"
    if replay.numeric and not families:
        yield "workload.replay.numeric is given without workload.families: a trace of ids has no other columns"
    for choice in families:
        path = toml_path(("workload", "families", choice.name))
        yield from (f"{path}{problem}" for problem in _family_problems(choice))


def _family_problems(choice: FamilyChoice) -> Iterator[str]:
    if choice.mapping != "dictionary" and choice.num_embeddings is None:
        yield f'.num_embeddings is missing: "{choice.mapping}" needs the rows of the table'
    if choice.mapping != "dictionary" and choice.ids is not None:
        yield f'.ids is given, but mapping = "{choice.mapping}" knows no ids: use "dictionary"'
    if choice.mapping != "modulo" and choice.prefix:
        yield f'.prefix is given, but mapping = "{choice.mapping}" takes ids whole: use "modulo"'
    if choice.ids is not None and choice.num_embeddings is not None and len(choice.ids) >= choice.num_embeddings:
        yield (
            f".num_embeddings = {choice.num_embeddings}: {len(choice.ids)} ids and the default row need "
            f"{len(choice.ids) + 1}"
        )


def family_entries(recorded: Recorded) -> list[Document]:
    """Return entries of [[workload.tables]] for the families: one table each, mean lengths as pooling factors."""
    if recorded.samples is None:
        return []
    tables = tables_of([family_of(choice) for choice in recorded.families], recorded.samples)
    return [
        {
            "name": table.name,
            "num_embeddings": rows_of_family(choice),
            "embedding_dim": table.embedding_dim,
            "pooling_factor": table.pooling_factor,
            "pooling": table.pooling,
            "data_type": choice.data_type,
        }
        for table, choice in zip(tables, recorded.families, strict=True)
    ]


def with_counted_access(table: Table, recorded: Recorded) -> Table:
    """Return the table with the access that its recorded ids show, so that an expectation and the report know it."""
    samples = recorded.samples
    if samples is None or not set(table.features) <= set(samples.features):
        return table
    ids = np.concatenate([samples.ids(feature) for feature in table.features])
    inside = ids[(ids >= 0) & (ids < table.num_embeddings)]
    return replace(table, access=counted_access(inside))


def check_recorded(recorded: Recorded, tables: Sequence[Table], dense: Dense | None) -> Iterator[str]:
    """Yield contradictions between recorded samples and the workload's tables and dense model."""
    if recorded.families:
        yield from _check_families(recorded.families, tables)
    if recorded.samples is not None:
        try:
            check_ids(recorded.samples, tables)
        except InputError as error:
            yield from (f"workload.replay: {problem}" for problem in error.problems)
    numeric, inputs = len(recorded.replay.numeric), dense.input_features if dense else 0
    if numeric and inputs and numeric != inputs:
        yield (
            f"workload.replay.numeric names {numeric} columns but workload.dense.layers[0] begins with {inputs} "
            "features: let them agree"
        )


def _check_families(families: Sequence[FamilyChoice], tables: Sequence[Table]) -> Iterator[str]:
    """Each family is the one feature of one table: ids of different families never meet."""
    for table in tables:
        if len(table.features) > 1:
            named = ", ".join(map(repr, table.features))
            yield f"table {table.name!r} is shared by the families {named}: give each family a table of its own"
    used = {feature for table in tables for feature in table.features}
    for choice in families:
        if tables and choice.name not in used:
            yield f"family {choice.name!r} has no table: drop it, or give it a table with that name or feature name"


def check_samples(recorded: Recorded, workload: Workload, ranks: int) -> tuple[list[str], list[Assumption]]:
    """Return what is wrong with the number of samples for so many ranks, and what a reader must know of it."""
    if recorded.samples is None:
        return [], []
    given, needed = recorded.samples.samples, workload.batch_size * ranks
    problem = too_few(given, workload.batch_size, ranks, repeat=recorded.replay.repeat)
    if problem:
        return [f"workload.replay: {problem}"], []
    how = f"{given} samples are recorded, the first {needed} are run in order"
    if given < needed:
        times = -(-needed // given)
        how = (
            f"{given} samples are recorded, {needed} are run: the file is begun {times} times, its ids repeat as often"
        )
    told = Assumption(name="workload.replay", value=Path(recorded.replay.file).name, source=how)
    return [], [told, *_default_rows(recorded.families, recorded.samples)]


def _default_rows(families: Sequence[FamilyChoice], samples: JaggedBatch) -> Iterator[Assumption]:
    """Say how many of the recorded ids of each family are missing or foreign, and look up the default row."""
    counts = [(choice.name, samples.ids(choice.name)) for choice in families if rows_of_family(choice) > 1]
    lost = [(name, int((ids == DEFAULT_ROW).sum()), len(ids)) for name, ids in counts]
    words = [f"{count} of {ids} ids of {name}" for name, count, ids in lost if count]
    if words:
        yield Assumption(
            name="workload.families",
            value=f"{', '.join(words)} look up the default row",
            source="missing, unknown to the dictionary, or no whole number behind the prefix",
        )
