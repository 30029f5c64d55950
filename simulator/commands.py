"""The simulator's commands: thin, each calls library functions that a notebook can call too."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from foreshard.simulator.results.explain_command import explain_command
from foreshard.simulator.torchrec.plan_commands import PLAN_COMMANDS
from foreshard.topologies.errors import InputError, check_all
from foreshard.topologies.output import check_writable, write_text

__all__ = ["COMMANDS"]


class _Named(click.Path):
    """A path that has a name: an empty one would mean the working folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; fails if there is no name."""
        if value == "":
            self.fail("is empty: give a name", param, ctx)
        return super().convert(value, param, ctx)


_scenario = click.argument("scenario")
_set = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key, as layout.sharding_group_size=8."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, in seconds and bytes.")
_plot = click.option("--plot", type=_Named(path_type=Path), metavar="FILE.png", help="Draw into this file.")


@click.command()
@_scenario
@_set
@_json
@click.option(
    "--trace",
    type=_Named(path_type=Path),
    metavar="DIR",
    help="Write Kineto timelines: of all ranks of up to 16, of larger worlds up to five: the first, the slowest, the "
    "one that waits most, those with most and with median work. Earlier timelines in DIR give way.",
)
@click.option("--ranks", metavar="all|0,5,...", help="Whose timelines to write instead.")
@_plot
@click.option("--planner", is_flag=True, help="Set TorchRec's own estimate beside the prediction.")
def predict(
    scenario: str,
    overrides: tuple[str, ...],
    as_json: bool,
    trace: Path | None,
    ranks: str | None,
    plot: Path | None,
    planner: bool,
) -> None:
    """Predict one training step of SCENARIO, a file or a shipped name.

    A key may be any of the scenario's, a table by its name: workload.tables.user_id.access.zipf=0.9.
    """
    from foreshard.simulator.files.reading import read_scenario
    from foreshard.simulator.results.drawing import check_plot
    from foreshard.simulator.results.export import check_ranks, step_names, written_traces
    from foreshard.simulator.results.report import report
    from foreshard.simulator.results.trace_files import check_trace_folder
    from foreshard.simulator.step.prediction import Prediction

    if ranks is not None and trace is None:
        raise InputError("--ranks says whose timelines --trace writes: give --trace DIR too")
    chosen = _parse_ranks(ranks) if ranks is not None else None
    prediction = Prediction(read_scenario(scenario, overrides))
    check_all(
        (lambda: check_ranks(chosen, prediction.cluster.size)) if chosen is not None and chosen != "all" else None,
        (lambda: check_trace_folder(trace)) if trace is not None else None,
        (lambda: check_plot(plot)) if plot is not None else None,
    )
    told = report(prediction, planner=planner)
    if trace is not None:
        click.echo(written_traces(prediction, trace, ranks=chosen).sentence(), err=True)
    if plot is not None:
        which, _ = step_names(prediction)
        _draw(plot, lambda plots: plots.plot_step(prediction.trace, told.breakdown, which=which))
    _print(told.to_dict() if as_json else told.to_text())


@click.command()
@_scenario
@_set
@click.option(
    "--vary",
    "varied",
    multiple=True,
    required=True,
    metavar="KEY=A,B,C",
    help="A key and the values to try; repeatable.",
)
@_json
@click.option(
    "--csv",
    type=_Named(path_type=Path),
    metavar="FILE",
    help="Write the rows as CSV, and keep finished ones beside it to go on from.",
)
@_plot
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Predict in so many processes.")
def compare(
    scenario: str,
    overrides: tuple[str, ...],
    varied: tuple[str, ...],
    as_json: bool,
    csv: Path | None,
    plot: Path | None,
    jobs: int,
) -> None:
    """Predict SCENARIO for every combination of the varied keys and compare the steps with the first one."""
    from foreshard.simulator.results.drawing import check_plot
    from foreshard.simulator.results.sweep import compare as comparison_of
    from foreshard.simulator.results.sweep_store import store_beside

    x = _numeric_key(varied) if plot is not None else ""
    check_all(
        (lambda: check_plot(plot)) if plot is not None else None,
        (lambda: check_writable(csv)) if csv is not None else None,
    )
    found = comparison_of(scenario, varied, overrides, jobs=jobs, keep=None if csv is None else store_beside(csv))
    if csv is not None:
        write_text(csv, found.to_csv())
    if plot is not None:
        _draw(plot, lambda plots: plots.plot_scaling(found.finished, x=x))
    _print(found.rows if as_json else found.to_text())


@click.command()
@_json
def presets(as_json: bool) -> None:
    """List the shipped machines, table sets and scenarios."""
    from foreshard.simulator.files import catalogue

    sections = catalogue.shipped()
    _print(sections if as_json else catalogue.to_text(sections))


def _parse_ranks(text: str) -> list[int] | Literal["all"]:
    if text.strip() == "all":
        return "all"
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--ranks {text!r} is not a list of ranks: write all, or numbers such as 0,5") from None


def _numeric_key(varied: Sequence[str]) -> str:
    """The key a scaling plot runs over: the nodes if they vary, else the first key that takes only numbers."""
    from foreshard.simulator.files.document import parse_override
    from foreshard.simulator.results.sweep import parse_vary

    grid = dict(parse_vary(text) for text in varied)
    for key in sorted(grid, key=lambda key: key != "cluster.nodes"):
        values = [parse_override(f"{key}={value}")[1] for value in grid[key]]
        if all(isinstance(value, int | float) for value in values):
            return key
    raise InputError(
        f"a scaling plot needs a key that takes numbers, such as cluster.nodes=1,2,4; given: {', '.join(grid)}"
    )


def _print(told: object) -> None:
    """Print a text as it is and anything else as JSON."""
    click.echo(told.rstrip() if isinstance(told, str) else json.dumps(told, indent=2, allow_nan=False))


def _draw(path: Path, make: Callable[[Any], Any]) -> None:
    from foreshard.simulator.results import plot as plots

    plots.save_plot(make(plots), path)


COMMANDS: list[click.Command] = [predict, compare, explain_command, presets, *PLAN_COMMANDS]
