"""The [plan] section of a scenario: a default, rules for many tables at once, and exceptions by table name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any

from annotated_types import Ge

from foreshard.simulator.job.scenario import Assumption
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.suggestions import Path, did_you_mean, key_names, shown, shown_path, toml_path, unknown_key
from foreshard.simulator.job.validation import validated
from foreshard.simulator.job.workload import Table

__all__ = ["PlanRule", "expand_shorthand", "read_plan"]

# Stands for a sharding with a mistake in it, told already: it contradicts nothing, so nothing more is said of it.
_UNREAD = TableSharding(sharding="data_parallel")
_KEYS = ("default", "rules", "tables")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRule:
    """Which tables a [[plan.rules]] entry shards: names that `match` a shell pattern, and sizes in rows."""

    match: str = "*"
    min_num_embeddings: Annotated[int, Ge(1)] | None = None
    max_num_embeddings: Annotated[int, Ge(1)] | None = None

    def covers(self, table: Table) -> bool:
        """Whether the rule is about this table."""
        rows = table.num_embeddings
        low, high = self.min_num_embeddings or 0, self.max_num_embeddings or rows
        return fnmatchcase(table.name, self.match) and low <= rows <= high


def expand_shorthand(plan: Any) -> None:
    """Write every sharding given as a word, `default = "row_wise"`, as the table { sharding = "row_wise" }."""
    if not isinstance(plan, dict):
        return
    if isinstance(plan.get("default"), str):
        plan["default"] = {"sharding": plan["default"]}
    tables = plan.get("tables")
    if isinstance(tables, dict):
        tables.update({name: {"sharding": value} for name, value in tables.items() if isinstance(value, str)})


def read_plan(
    plan: Any,
    tables: Sequence[Table],
    names: Sequence[str] | None,
    problems: list[str],
    notes: list[Assumption],
    conflicts: list[str] | None = None,
) -> Plan | None:
    """Return the plan as far as it could be read, its rules applied to `tables`; None if its default could not be.

    The order of precedence is plan.tables, the first rule that covers a table, plan.default. A rule that covers no
    table is told in `notes`, a table that this workload does not have in `conflicts`, every other mistake in
    `problems`. `names` are all table names, also of tables that could not be read; None if unknown.
    """
    if not isinstance(plan, dict):
        problems.append(f"plan = {shown(plan)}: expected a table [plan] with the keys {', '.join(_KEYS)}")
        return None
    problems.extend(unknown_key(("plan", key), _KEYS) for key in plan if key not in _KEYS)
    default = validated(TableSharding, plan.get("default", {"sharding": "row_wise"}), ("plan", "default"), problems)
    exceptions = dict(
        _exceptions(plan.get("tables", {}), names, problems, problems if conflicts is None else conflicts)
    )
    rules = list(_rules(plan.get("rules", []), problems))
    ruled = _apply(rules, [table for table in tables if table.name not in exceptions], notes)
    if default is None:
        return None
    shardings = {**ruled, **exceptions}
    return Plan(default=default, tables=tuple((name, shardings[name]) for name in names or () if name in shardings))


def _exceptions(
    tables: Any, names: Sequence[str] | None, problems: list[str], conflicts: list[str]
) -> Iterator[tuple[str, TableSharding]]:
    path: Path = ("plan", "tables")
    if not isinstance(tables, dict):
        problems.append(f"plan.tables = {shown(tables)}: expected a table per table name, as in [plan.tables.user_id]")
        return
    known = set(names or ())
    for name, value in tables.items():
        if names is not None and name not in known:
            hint = did_you_mean(name, names[:10_000]) or f"; the workload's are {_some(names)}"
            conflicts.append(f"{toml_path((*path, name))}: the workload has no table {name!r}{hint}")
        sharding = validated(TableSharding, value, (*path, name), problems)
        yield name, sharding or _UNREAD


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(shown_path, names[:5])) + (", ..." if len(names) > 5 else "")


def _rules(rules: Any, problems: list[str]) -> Iterator[tuple[str, PlanRule, TableSharding]]:
    if not isinstance(rules, list):
        problems.append(f"plan.rules = {shown(rules)}: expected a list, each entry written under [[plan.rules]]")
        return
    conditions, choices = key_names(PlanRule), key_names(TableSharding)
    for index, entry in enumerate(rules):
        path: Path = ("plan", "rules", index)
        if not isinstance(entry, dict):
            problems.append(f"{toml_path(path)} = {shown(entry)}: expected a table under [[plan.rules]]")
            continue
        unknown = [key for key in entry if key not in (*conditions, *choices)]
        problems.extend(unknown_key((*path, key), [*conditions, *choices]) for key in unknown)
        when = {key: value for key, value in entry.items() if key in conditions}
        if not when:
            problems.append(
                f"{toml_path(path)} says for no table: give {', '.join(conditions[:-1])} or {conditions[-1]}"
            )
        rule = validated(PlanRule, when, path, problems)
        how = validated(TableSharding, {key: entry[key] for key in entry if key in choices}, path, problems)
        text = ", ".join(f"{key} = {shown(value)}" for key, value in when.items())
        yield f"{toml_path(path)} ({text})", rule or PlanRule(), how or _UNREAD


def _apply(
    rules: Sequence[tuple[str, PlanRule, TableSharding]], tables: Sequence[Table], notes: list[Assumption]
) -> dict[str, TableSharding]:
    ruled: dict[str, TableSharding] = {}
    for text, rule, how in rules:
        covered = [table.name for table in tables if rule.covers(table)]
        fresh = [name for name in covered if name not in ruled]
        if not fresh:
            why = "every table it covers falls under an earlier rule" if covered else "it covers no table"
            notes.append(Assumption(name=text, value="has no effect", source=why))
        ruled.update((name, how) for name in fresh)
    return ruled
