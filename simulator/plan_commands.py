"""Commands for plans: import TorchRec's, write a scenario for one, export one to TorchRec."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from foreshard.simulator.document import save_scenario
from foreshard.simulator.placement import resolve_plan
from foreshard.simulator.plan_file import PlanFile, read_plan_file, save_plan_file
from foreshard.simulator.scenario import ClusterChoice, Scenario
from foreshard.simulator.tablesets import load_tables
from foreshard.simulator.torchrec_export import calls_text, torchrec_calls
from foreshard.simulator.torchrec_plan import import_plan
from foreshard.topologies.errors import InputError
from foreshard.topologies.output import check_writable, write_text
from foreshard.topologies.presets import load_preset
from foreshard.topologies.units import format_bytes

__all__ = ["PLAN_COMMANDS", "export_plan_command", "import_plan_command", "scenario_of"]

_NOTES = 12

_output = click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Write into this file."
)


@click.command("import-plan")
@click.argument("file", type=click.Path(path_type=Path))
@_output
@click.option("--tables", metavar="SET", help="Tables of a plan JSON: a shipped table set or a .toml file.")
@click.option("--scenario", type=click.Path(path_type=Path), metavar="FILE.toml", help="Write a scenario of it, too.")
@click.option("--preset", metavar="NAME", help="The scenario's machine; as many nodes as the plan has ranks for.")
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Samples per rank, if the file has none.")
def import_plan_command(
    file: Path, output: Path, tables: str | None, scenario: Path | None, preset: str | None, batch_size: int | None
) -> None:
    """Import a TorchRec plan: its JSON, the bundle of planner objects as JSON, or the planner's printed report.

    FILE may be gzipped; pickles are refused. With --scenario and --preset the plan can be predicted at once:
    `foreshard predict FILE.toml`.
    """
    if (scenario is None) != (preset is None):
        raise InputError("--scenario and --preset go together: the scenario needs a machine")
    for path in (output, scenario):
        if path is not None:
            check_writable(path)
    plan = import_plan(file, load_tables(tables) if tables else ())
    save_plan_file(plan, output)
    if scenario is not None and preset is not None:
        save_scenario(scenario_of(plan, preset, batch_size=batch_size, name=scenario.stem), scenario)
    click.echo(_summary(plan))


def scenario_of(plan: PlanFile, preset: str, *, batch_size: int | None = None, name: str = "imported") -> Scenario:
    """Return a scenario that predicts the plan on as many nodes of a preset as it has ranks for; raises InputError."""
    node = load_preset(preset, nodes=1).size
    ranks = plan.world_size
    if ranks is None or ranks % node:
        given = (
            "the plan does not say its ranks" if ranks is None else f"its {ranks} ranks are not whole nodes of {node}"
        )
        raise InputError(f"{given}: write [cluster] of a scenario by hand, for {preset} or another machine")
    return plan.scenario(ClusterChoice(preset=preset, nodes=ranks // node), batch_size=batch_size, name=name)


def _summary(plan: PlanFile) -> str:
    kinds = Counter(how.sharding for _, how in plan.plan.tables)
    size = format_bytes(sum(table.nbytes for table in plan.tables))
    head = [
        f"{len(plan.tables)} tables, {size} of weights ({plan.source})",
        f"ranks: {plan.world_size or 'not said'}, batch size per rank: {plan.batch_size or 'not said'}",
        "sharding: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
    ]
    shown = [f"note: {note}" for note in plan.notes[:_NOTES]]
    more = len(plan.notes) - len(shown)
    return "\n".join([*head, *shown, *([f"note: {more} more in the file"] if more else [])])


@click.command("export-plan")
@click.argument("file", type=click.Path(path_type=Path))
@_output
@click.option("--world-size", type=click.IntRange(min=1), metavar="N", help="Ranks of a sharding group.")
@click.option("--local-world-size", type=click.IntRange(min=1), metavar="N", help="Ranks of a node.")
def export_plan_command(file: Path, output: Path, world_size: int | None, local_world_size: int | None) -> None:
    """Export a plan file to TorchRec: Python source with the calls for construct_module_sharding_plan."""
    plan = read_plan_file(file)
    ranks, local = world_size or plan.world_size, local_world_size or plan.local_world_size
    if ranks is None or local is None:
        raise InputError("the plan does not say its ranks or those of a node: give --world-size, --local-world-size")
    check_writable(output)
    calls = torchrec_calls(resolve_plan(plan.plan, plan.tables, ranks, local), ranks, local)
    write_text(output, calls_text(calls, dict(plan.modules), world_size=ranks, local_world_size=local))
    click.echo(f"{len(calls)} tables written")


PLAN_COMMANDS = (import_plan_command, export_plan_command)
