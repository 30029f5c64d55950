"""Scenarios from files: read, changed by `--set`, validated; every mistake of a file is told at once."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from foreshard.simulator.files.checks import check_dense, check_tables, check_together, resolve_cluster
from foreshard.simulator.files.document import (
    SCHEMA,
    Document,
    apply_override,
    is_schema,
    parse_override,
    parse_toml,
    read_toml,
    to_document,
    too_many_tables,
    unprintable,
)
from foreshard.simulator.files.plan_section import expand_shorthand, read_plan
from foreshard.simulator.files.replay_section import (
    Recorded,
    check_recorded,
    check_samples,
    family_entries,
    read_recorded,
    with_counted_access,
)
from foreshard.simulator.files.shipped import shipped_folder, shipped_names, shipped_text
from foreshard.simulator.files.tablesets import changed_tables, table_set_document
from foreshard.simulator.ids.histogram_files import with_histogram
from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.scenario import Assumption, ClusterChoice, Comms, Execution, Scenario
from foreshard.simulator.job.sharding import Plan
from foreshard.simulator.job.suggestions import did_you_mean, shown, shown_path, toml_path, unknown_key
from foreshard.simulator.job.validation import validated
from foreshard.simulator.job.workload import Dense, Table, Workload
from foreshard.simulator.step.constants import read_constants
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import ContradictionError, InputError

__all__ = ["read_scenario"]

T = TypeVar("T")

_KEYS = (
    "schema", "name", "description", "cluster", "workload", "plan", "layout", "comms", "execution", "assumptions",
    "constants",
)  # fmt: skip
_TABLES = ("workload", "tables")
_TOTALS = ("forward_flops_per_sample", "parameters")
_INSTEAD: dict[tuple[str, ...], tuple[str, ...]] = {
    ("cluster", "preset"): ("file",),
    ("cluster", "file"): ("preset",),
    ("layout", "sharding_group_size"): ("groups",),
    ("layout", "groups"): ("sharding_group_size",),
    ("workload", "dense", "layers"): (*_TOTALS, "kernels"),
    **{("workload", "dense", total): ("layers",) for total in _TOTALS},
}
_READ_APART = ("tables", "all_tables", "dense", "replay", "families")


def read_scenario(source: str | Path | Mapping[str, Any] | Scenario, overrides: Iterable[str] = ()) -> Scenario:
    """Return the scenario of a file, a shipped name, a document or another scenario, changed by `overrides`.

    Overrides are written "layout.sharding_group_size=8". Raises InputError with every mistake found, ContradictionError
    if every part is right by itself.
    """
    changes = tuple(overrides)
    opened = _open(source)
    reading = _Reading(opened)
    reading.change(changes)
    scenario = reading.scenario()
    if scenario is None:
        set_to = (f"--set {shown_path(change)}" for change in changes)
        kind = InputError if reading.problems else ContradictionError
        raise kind([*reading.problems, *reading.conflicts], where=" ".join([opened.where, *set_to]))
    return scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opened:
    """A document, what to call it in messages, the scenario's default name and the folder of its relative paths."""

    document: Document
    where: str
    name: str = "custom"
    folder: Path = Path()


def _open(source: str | Path | Mapping[str, Any] | Scenario) -> _Opened:
    if isinstance(source, Scenario):
        return _Opened(document=to_document(source), where=f"scenario {source.name!r}")
    if isinstance(source, Mapping):
        return _Opened(document=copy.deepcopy(dict(source)), where="scenario")
    known = shipped_names("scenarios")
    if source in known:
        document = parse_toml(shipped_text("scenarios", str(source)), where=str(source))
        folder = shipped_folder("scenarios")
        return _Opened(document=document, where=str(source), name=str(source), folder=folder)
    path = Path(source)
    if path.suffix != ".toml" and str(path.name) == str(source) and not os.path.exists(path):
        hint = did_you_mean(path.name[:100], known)
        name = shown_path(path.name)
        raise InputError(f"no scenario '{name}'{hint}; shipped are {', '.join(known)}; or give a .toml file")
    return _Opened(document=read_toml(path), where=shown_path(source), name=path.stem, folder=path.parent)


class _Reading:
    """One document on its way to a scenario; `problems` collects a sentence for each mistake.

    `conflicts` collects those of parts that are right by themselves.
    """

    def __init__(self, opened: _Opened) -> None:
        self.document = opened.document
        self.folder = opened.folder
        self.name = opened.name
        self.problems: list[str] = []
        self.conflicts: list[str] = []
        self.notes: list[Assumption] = []
        self.tables: tuple[Table, ...] = ()
        self.dense: Dense | None = None
        self.recorded: Recorded | None = None
        self.table_names: list[str] | None = None
        self.settled: list[tuple[str, ...]] = []  # what overrides say is not assumed any more

    # Changing the document

    def change(self, overrides: Iterable[str]) -> None:
        """Apply the overrides, those first that choose a table set, as others may reach into its tables."""
        changes = list(self._parsed(overrides))
        self.settled = [path for path, _ in changes]
        for path, value in sorted(changes, key=lambda change: change[0] != _TABLES):
            if path != _TABLES:
                self._expand()
            self._apply(path, value)
        self._expand()

    def _parsed(self, overrides: Iterable[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
        for assignment in overrides:
            try:
                yield parse_override(assignment)
            except InputError as error:
                self.problems.extend(error.problems)

    def _apply(self, path: tuple[str, ...], value: Any) -> None:
        try:
            apply_override(self.document, path, value)
        except InputError as error:
            self.problems.extend(error.problems)
            return
        if path == _TABLES:  # what the file says of its own tables is not meant for these
            for key in ("name", "all_tables"):
                self.document["workload"].pop(key, None)
        if path in _INSTEAD:  # what is chosen by --set takes the place of the file's
            section = self.document
            for key in path[:-1]:
                section = section[key]
            for key in _INSTEAD[path]:
                section.pop(key, None)

    def _expand(self) -> None:
        """Write out what a user may abbreviate: a sharding given as a word, a table set given by its name."""
        expand_shorthand(self.document.get("plan"))
        workload = self.document.get("workload")
        if not isinstance(workload, dict) or not isinstance(workload.get("tables"), str):
            return
        try:
            chosen = table_set_document(workload["tables"], self.folder)
        except InputError as error:
            self.problems.extend(f"workload.tables: {problem}" for problem in error.problems)
            workload["tables"] = None
            return
        workload.setdefault("name", chosen["name"])
        workload["tables"] = chosen["tables"]
        chosen_by = [path for path in self.settled if path != _TABLES]
        self.notes += _unsettled(self._assumptions(chosen["assumptions"]), chosen_by)

    def _assumptions(self, entries: Any) -> list[Assumption]:
        if not isinstance(entries, list):
            self.problems.append(f"assumptions = {shown(entries)}: expected a list, each written under [[assumptions]]")
            return []
        read = [validated(Assumption, entry, ("assumptions", i), self.problems) for i, entry in enumerate(entries)]
        return [assumption for assumption in read if assumption is not None]

    # Reading its sections

    def _is_too_large(self) -> bool:
        """Whether there are so many tables or shardings that none is looked at; told in `problems`."""
        found = []
        for section in ("workload", "plan"):
            holder = self.document.get(section)
            entries = holder.get("tables") if isinstance(holder, dict) else None
            count = len(entries) if isinstance(entries, list | dict) else 0
            found += [f"{section}.tables: {problem}" for problem in too_many_tables(count)]
        self.problems += found
        return bool(found)

    def scenario(self) -> Scenario | None:
        """Return the scenario, or None if anything is wrong."""
        if self._is_too_large():
            return None
        self._check_head()
        cluster, layout = self._cluster(), self._layout()
        workload = self._workload()
        written, notes = self.document.get("plan", {}), self.notes
        plan = read_plan(written, self.tables, self.table_names, self.problems, notes, self.conflicts)
        comms, execution = self._section(Comms, "comms"), self._execution()
        constants = read_constants(self.document.get("constants", {}), self.problems)
        machine = self._check_machine(cluster, layout, plan, comms)
        if machine and workload and self.recorded and execution and execution.routing == "replayed":
            too_few, repeated = check_samples(self.recorded, workload, machine.size)
            self.conflicts += too_few
            self.notes += repeated
        settled = [*self.settled, ("workload", "all_tables")] if _TABLES in self.settled else self.settled
        own = _unsettled(self._assumptions(self.document.get("assumptions", [])), settled)
        told = {note.name for note in self.notes} & {"workload.replay", "workload.families"}  # read and told anew
        if self.problems or self.conflicts or not (cluster and workload and plan and layout and comms and execution):
            return None
        return Scenario(
            cluster=cluster,
            workload=workload,
            plan=plan,
            layout=layout,
            comms=comms,
            execution=execution,
            name=self.document.get("name", self.name),
            description=self.document.get("description", ""),
            constants=constants,
            assumptions=(*(note for note in own if note.name not in told), *self.notes),
        )

    def _check_machine(
        self, cluster: ClusterChoice | None, layout: Layout | None, plan: Plan | None, comms: Comms | None
    ) -> Cluster | None:
        machine = resolve_cluster(cluster, self.problems, self.conflicts) if cluster else None
        if machine is not None:
            self.conflicts += check_together(machine, self.tables, self.dense, layout, plan, comms)
        return machine

    def _check_head(self) -> None:
        if "schema" not in self.document:
            self.problems.append(f"schema is missing: begin the file with schema = {SCHEMA}")
        elif not is_schema(self.document["schema"]):
            given = self.document["schema"]
            newer = ": it was written for a newer foreshard, update yours" if _is_newer(given) else ""
            self.problems.append(f"schema = {shown(given)}: expected {SCHEMA}{newer}")
        self.problems += (unknown_key((key,), _KEYS) for key in self.document if key not in _KEYS)
        for key in ("name", "description"):
            if not isinstance(self.document.get(key, ""), str):
                self.problems.append(f"{key} = {shown(self.document[key])}: expected text in quotes")
        self.problems += unprintable(self.document)

    def _section(self, cls: type[T], key: str) -> T | None:
        return validated(cls, self.document.get(key, {}), (key,), self.problems)

    def _execution(self) -> Execution | None:
        """The execution; recorded samples are replayed unless another routing is asked for."""
        section = self.document.get("execution", {})
        if isinstance(section, dict) and self.recorded is not None:
            section = {"routing": "replayed", **section}
        execution = validated(Execution, section, ("execution",), self.problems)
        workload = self.document.get("workload")
        if execution and execution.routing == "replayed" and not (isinstance(workload, dict) and "replay" in workload):
            self.problems.append('execution.routing = "replayed": give workload.replay, the file of recorded samples')
        return execution

    def _cluster(self) -> ClusterChoice | None:
        if "cluster" not in self.document:
            self.problems.append('cluster is missing: give [cluster] with preset = "p5.48xlarge" or file, and nodes')
            return None
        section = self.document["cluster"]
        if isinstance(section, dict) and "degrade" in section:
            section = {**section, "degrade": self._degrade(section["degrade"])}
        choice = validated(ClusterChoice, section, ("cluster",), self.problems)
        if choice is None:
            return None
        if any("\0" in (path or "") for path in (choice.file, choice.profile)):
            names = {"file": choice.file, "profile": choice.profile}
            wrong = (f"cluster.{key} = {shown(path)}" for key, path in names.items() if "\0" in (path or ""))
            self.problems.extend(f"{where}: no file has such a name" for where in wrong)
            return None
        return replace(choice, file=self._beside(choice.file), profile=self._beside(choice.profile))

    def _beside(self, path: str | None) -> str | None:
        """The path of a file that is named relative to the scenario's."""
        return None if path is None else str((self.folder / path).resolve())

    def _degrade(self, factors: Any) -> list[list[Any]]:
        """Link patterns and factors as pairs, without those that are no factor."""
        if not isinstance(factors, dict):
            example = 'expected a table of link patterns, as in [cluster.degrade] "node0/nic3<->*" = 0.5'
            self.problems.append(f"cluster.degrade = {shown(factors)}: {example}")
            return []
        bad = {key: value for key, value in factors.items() if isinstance(value, bool) or not _is_share(value)}
        for key, value in bad.items():
            where = toml_path(("cluster", "degrade", key))
            self.problems.append(f"{where} = {shown(value)}: expected a factor from 0 (missing) to 1 (whole)")
        return [[key, value] for key, value in factors.items() if key not in bad]

    def _layout(self) -> Layout | None:
        section = self.document.get("layout", {})
        if isinstance(section, dict) and section.get("sharding_group_size") == "world":
            section = {key: value for key, value in section.items() if key != "sharding_group_size"}
        problems: list[str] = []
        layout = validated(Layout, section, ("layout",), problems)
        size = "layout.sharding_group_size ="
        self.problems += (f'{text}, or "world"' if text.startswith(size) else text for text in problems)
        return layout

    def _workload(self) -> Workload | None:
        section = self.document.get("workload")
        if section is None:
            self.problems.append("workload is missing: give [workload] with batch_size and tables")
            return None
        if not isinstance(section, dict):
            return validated(Workload, section, ("workload",), self.problems)
        self.recorded = read_recorded(section, self.folder, self.problems)
        self._read_tables(section)
        dense = self.dense = validated(Dense, section.get("dense", {}), ("workload", "dense"), self.problems)
        self.problems += check_dense(dense) if dense else ()
        if self.recorded is not None:
            self.problems += check_recorded(self.recorded, self.tables, dense)
        rest = {key: value for key, value in section.items() if key not in _READ_APART}
        workload = validated(Workload, {**rest, "tables": []}, ("workload",), self.problems)
        if workload is None or dense is None:
            return None
        if workload.weighted and self.recorded is not None:
            self.problems.append("workload.weighted is for drawn ids, workload.replay has its own: drop one of them")
        families = self.recorded.families if self.recorded else ()
        replay = self.recorded.replay if self.recorded else None
        return replace(workload, tables=self.tables, dense=dense, replay=replay, families=families)

    def _read_tables(self, section: Document) -> None:
        """Read what can be read of [[workload.tables]] into `tables`, and the names of all into `table_names`."""
        entries = section.get("tables", "missing")
        if entries == "missing" and section.get("families"):
            entries = (family_entries(self.recorded) if self.recorded else []) or None
        if entries is None:  # an unknown table set or unreadable rows, told already
            return
        if not isinstance(entries, list) or not entries:
            given = "is missing" if entries == "missing" else f"= {shown(entries)}"
            self.problems.append(f'workload.tables {given}: give a set such as "mlperf-dcnv2", or [[workload.tables]]')
            return
        entries = changed_tables(entries, self._counted(section.get("all_tables", {}), "all_tables"), self.problems)
        names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
        if all(isinstance(name, str) for name in names):
            self.table_names = list(dict.fromkeys(str(name) for name in names))
        keys = [name if isinstance(name, str) and name else i for i, name in enumerate(names)]
        entries = [self._counted(entry, "tables", key) for key, entry in zip(keys, entries, strict=True)]
        read = [
            validated(Table, e, ("workload", "tables", k), self.problems) for k, e in zip(keys, entries, strict=True)
        ]
        self.tables = tuple(
            with_counted_access(table, self.recorded) if self.recorded and "access" not in entry else table
            for table, entry in zip(read, entries, strict=True)
            if table is not None
        )
        self.problems += check_tables(self.tables)

    def _counted(self, entry: Any, *path: str | int) -> Any:
        """A table's entry with the counts of its histogram file in it."""
        return with_histogram(entry, self.folder, toml_path(("workload", *path)), self.problems, self.notes)


def _is_newer(schema: object) -> bool:
    return isinstance(schema, int) and schema > SCHEMA


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _unsettled(assumptions: list[Assumption], settled: list[tuple[str, ...]]) -> list[Assumption]:
    """The assumptions but those about keys that an override sets; an assumption is named by the key it is about."""
    about = [(assumption, f"{assumption.name}.") for assumption in assumptions]
    paths = [f"{'.'.join(path)}." for path in settled]
    return [a for a, name in about if not any(name.startswith(path) or path.startswith(name) for path in paths)]
