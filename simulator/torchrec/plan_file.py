"""Plan files: a sharding plan with its tables, and what another planner said of it, as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from foreshard.simulator.files.document import to_document, too_many_tables
from foreshard.simulator.files.plan_section import expand_shorthand, read_plan
from foreshard.simulator.job.scenario import Assumption, ClusterChoice, Comms, Execution, Optimizer, Scenario
from foreshard.simulator.job.sharding import Plan
from foreshard.simulator.job.validation import validated
from foreshard.simulator.job.workload import Dense, Table, Workload
from foreshard.simulator.torchrec.planner_figures import planner_figures
from foreshard.topologies.errors import InputError
from foreshard.topologies.output import write_text

__all__ = ["PlanFile", "load_json", "parse_plan_file", "plan_file_text", "read_plan_file", "save_plan_file"]

FORMAT, SCHEMA = "foreshard-plan", 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanFile:
    """A plan for one sharding group with its tables; what the file does not say is None or empty.

    `modules` and `kernels` are pairs of table and TorchRec's module path or compute kernel. `planner` holds the
    figures of the planner that made the plan, in bytes, ms and bytes/s, as it printed them. `notes` say what had to be
    assumed or looks wrong.
    """

    tables: tuple[Table, ...]
    plan: Plan
    source: str
    world_size: int | None = None
    local_world_size: int | None = None
    batch_size: int | None = None
    optimizer: Optimizer | None = None
    comms: Comms | None = None
    modules: tuple[tuple[str, str], ...] = ()
    kernels: tuple[tuple[str, str], ...] = ()
    planner: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def scenario(self, cluster: ClusterChoice, *, batch_size: int | None = None, name: str = "imported") -> Scenario:
        """Return a scenario that predicts this plan on `cluster`; raises InputError if no batch size is known."""
        samples = batch_size or self.batch_size
        if samples is None:
            raise InputError("the plan does not say its batch size: give batch_size, the samples per rank")
        return Scenario(
            cluster=cluster,
            workload=Workload(batch_size=samples, tables=self.tables, dense=self._dense(), name=name),
            plan=self.plan,
            comms=self.comms or Comms(),
            execution=Execution(optimizer=self.optimizer or "rowwise_adagrad"),
            name=name,
            assumptions=(
                *(Assumption(name="imported plan", value=note, source=self.source) for note in self.notes),
                *planner_figures(self.planner, self.source),
            ),
        )

    def _dense(self) -> Dense:
        """Dense parameters: the planner's dense storage, for which it counts every parameter six times."""
        storage = self.planner.get("dense_hbm_bytes", 0.0)
        return Dense(parameters=round(storage / 6 / 4), forward_flops_per_sample=0.0) if storage else Dense()


def plan_file_text(plan: PlanFile) -> str:
    """Return the plan as JSON; reading it gives an equal plan."""
    document = to_document(
        Scenario(
            cluster=ClusterChoice(),
            workload=Workload(batch_size=1, tables=plan.tables),
            plan=plan.plan,
            comms=plan.comms or Comms(),
        )
    )
    known = {key: getattr(plan, key) for key in ("world_size", "local_world_size", "batch_size", "optimizer")}
    whole = {
        "format": FORMAT,
        "schema": SCHEMA,
        "source": plan.source,
        **{key: value for key, value in known.items() if value is not None},
        **({"comms": document.get("comms", {})} if plan.comms else {}),
        "tables": document["workload"]["tables"],
        "plan": document.get("plan", {}),
        "modules": dict(plan.modules),
        "kernels": dict(plan.kernels),
        "planner": plan.planner,
        "notes": plan.notes,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def save_plan_file(plan: PlanFile, path: str | Path) -> None:
    """Write the plan as JSON, whole or not at all; raises InputError if the path cannot be written."""
    write_text(path, plan_file_text(plan))


def read_plan_file(path: str | Path) -> PlanFile:
    """Return the plan of a file written by `save_plan_file`; raises InputError with every mistake."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as UTF-8 text: {error}", where=str(path)) from None
    return parse_plan_file(load_json(text, where=str(path)), where=str(path))


def load_json(text: str, *, where: str) -> Any:
    """Return the value of a JSON text; raises InputError with line and column, also for NaN and Infinity."""

    def refuse(constant: str) -> NoReturn:
        raise InputError(f"{constant} is not a number JSON knows: give a finite one", where=where)

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"not valid JSON at {place} ({error.msg}): is the file cut off?", where=where) from None
    except RecursionError:
        raise InputError("not valid JSON: nested too deeply", where=where) from None
    except InputError:
        raise
    except ValueError:  # Python converts no integer of more than 4,300 digits
        raise InputError("not valid JSON: an integer has more digits than can be read", where=where) from None


def parse_plan_file(document: Any, *, where: str) -> PlanFile:
    """Return the plan of a decoded JSON document; raises InputError with every mistake."""
    if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("schema") != SCHEMA:
        raise InputError(f'expected "format": "{FORMAT}" and "schema": {SCHEMA} at the top', where=where)
    problems: list[str] = []
    tables = _tables(document.get("tables"), problems)
    written = document.get("plan", {})
    expand_shorthand(written)
    plan = read_plan(written, tables, [table.name for table in tables], problems, [])
    head = validated(_Head, {key: document[key] for key in _Head.__slots__ if key in document}, (), problems)
    if problems or plan is None or head is None:
        raise InputError(problems, where=where)
    return PlanFile(
        tables=tables,
        plan=plan,
        source=head.source,
        world_size=head.world_size,
        local_world_size=head.local_world_size,
        batch_size=head.batch_size,
        optimizer=head.optimizer,
        comms=head.comms,
        modules=tuple(head.modules.items()),
        kernels=tuple(head.kernels.items()),
        planner=document.get("planner", {}),
        notes=head.notes,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Head:
    source: str = "foreshard"
    world_size: int | None = None
    local_world_size: int | None = None
    batch_size: int | None = None
    optimizer: Optimizer | None = None
    comms: Comms | None = None
    modules: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _tables(entries: Any, problems: list[str]) -> tuple[Table, ...]:
    if not isinstance(entries, list):
        problems.append("tables is missing: expected a list of tables")
        return ()
    too_many = list(too_many_tables(len(entries)))
    if too_many:
        problems += too_many
        return ()
    read = [validated(Table, entry, ("tables", index), problems) for index, entry in enumerate(entries)]
    return tuple(table for table in read if table is not None)
