"""Commands for plans: import TorchRec's, with a scenario to predict it, and export one to TorchRec."""

from __future__ import annotations

from pathlib import Path

import click

from foreshard.topologies.errors import InputError
from foreshard.topologies.output import check_writable, write_text

__all__ = ["PLAN_COMMANDS", "export_plan_command", "import_plan_command"]

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
    from foreshard.simulator.files.document import save_scenario
    from foreshard.simulator.files.tablesets import load_tables
    from foreshard.simulator.torchrec.plan_file import save_plan_file
    from foreshard.simulator.torchrec.plan_scenario import plan_summary, scenario_on_preset
    from foreshard.simulator.torchrec.torchrec_plan import import_plan

    if (scenario is None) != (preset is None):
        raise InputError("--scenario and --preset go together: the scenario needs a machine")
    for path in filter(None, (output, scenario)):
        check_writable(path)
    plan = import_plan(file, load_tables(tables) if tables else ())
    if scenario is not None and preset is not None:
        save_scenario(scenario_on_preset(plan, preset, batch_size=batch_size, name=scenario.stem), scenario)
    save_plan_file(plan, output)
    click.echo(plan_summary(plan))


@click.command("export-plan")
@click.argument("file", type=click.Path(path_type=Path))
@_output
@click.option("--world-size", type=click.IntRange(min=1), metavar="N", help="Ranks of a sharding group.")
@click.option("--local-world-size", type=click.IntRange(min=1), metavar="N", help="Ranks of a node.")
def export_plan_command(file: Path, output: Path, world_size: int | None, local_world_size: int | None) -> None:
    """Export a plan file to TorchRec: Python source with the calls for construct_module_sharding_plan."""
    from foreshard.simulator.plans.placement import resolve_plan
    from foreshard.simulator.torchrec.plan_file import read_plan_file
    from foreshard.simulator.torchrec.torchrec_export import calls_text, torchrec_calls

    plan = read_plan_file(file)
    ranks, local = world_size or plan.world_size, local_world_size or plan.local_world_size
    if ranks is None or local is None:
        raise InputError("the plan does not say its ranks or those of a node: give --world-size, --local-world-size")
    check_writable(output)
    calls = torchrec_calls(resolve_plan(plan.plan, plan.tables, ranks, local), ranks, local)
    write_text(output, calls_text(calls, dict(plan.modules), world_size=ranks, local_world_size=local))
    click.echo(f"{len(calls)} tables written")


PLAN_COMMANDS: tuple[click.Command, ...] = (import_plan_command, export_plan_command)
