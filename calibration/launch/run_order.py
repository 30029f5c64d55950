"""What a real run is asked to do: the options of `foreshard run`, which every rank is given too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from foreshard.topologies.errors import InputError, UnitError, check_all
from foreshard.topologies.units import SECONDS, parse_quantity

__all__ = ["RunOrder", "run_options"]

F = TypeVar("F", bound=Callable[..., Any])

_SHORTEST_S = 1.0  # a hang limit below the watchdog's own pace means nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOrder:
    """The scenario, how many steps to measure after how many of warm-up, when to give up, and what to write.

    `shrink_tables` caps the rows of every table. `hang_limit` and `join_limit` are times with their units.
    """

    scenario: str
    overrides: tuple[str, ...] = ()
    steps: int = 20
    warmup: int = 3
    shrink_tables: int | None = None
    hang_limit: str = "30 s"
    join_limit: str = "60 s"
    trace: Path | None = None
    plot: Path | None = None
    as_json: bool = False

    def check_limits(self) -> None:
        """Raise InputError with every limit that is no time."""
        problems = []
        for option, text in (("--hang-limit", self.hang_limit), ("--join-limit", self.join_limit)):
            try:
                if not parse_quantity(text, SECONDS) >= _SHORTEST_S:
                    problems.append(f"{option} {text}: expected at least {_SHORTEST_S:g} s")
            except UnitError as error:
                problems.append(f"{option}: {error}")
        if problems:
            raise InputError(problems)

    @property
    def hang_s(self) -> float:
        """Seconds without any progress in a step after which the run ends."""
        return parse_quantity(self.hang_limit, SECONDS)

    @property
    def join_s(self) -> float:
        """Seconds that all ranks have to come."""
        return parse_quantity(self.join_limit, SECONDS)

    def check_outputs(self) -> None:
        """Raise InputError if a timeline or a plot cannot be written."""
        from foreshard.simulator.results.drawing import check_plot
        from foreshard.simulator.results.side_by_side import check_trace_folders

        trace, plot = self.trace, self.plot
        check_all(
            (lambda: check_trace_folders(trace)) if trace is not None else None,
            (lambda: check_plot(plot)) if plot is not None else None,
        )

    def arguments(self) -> list[str]:
        """The order as arguments of `python -m foreshard.calibration.run`."""
        return [str(part) for part in self._arguments()]

    def _arguments(self) -> Iterator[object]:
        yield self.scenario
        for override in self.overrides:
            yield from ("--set", override)
        yield from ("--steps", self.steps, "--warmup", self.warmup)
        yield from ("--hang-limit", self.hang_limit, "--join-limit", self.join_limit)
        for option, value in (
            ("--shrink-tables", self.shrink_tables), ("--trace", self.trace), ("--plot", self.plot)
        ):  # fmt: skip
            if value is not None:
                yield from (option, value)
        if self.as_json:
            yield "--json"


class _Named(click.Path):
    """A path that has a name: an empty one would mean the working folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; fails if there is no name."""
        if value == "":
            self.fail("is empty: give a name", param, ctx)
        return super().convert(value, param, ctx)


def run_options(command: F) -> F:
    """Add the options of a run to a command that takes the fields of a RunOrder."""
    path = _Named(path_type=Path)
    for option in reversed((
        click.argument("scenario"),
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
                     help="Change a key, as workload.batch_size=256."),
        click.option("--steps", type=click.IntRange(1, 100_000), default=20, show_default=True,
                     help="Steps to measure."),
        click.option("--warmup", type=click.IntRange(1, 100_000), default=3, show_default=True,
                     help="Steps before them, which are not measured; the pipeline is full before the first."),
        click.option("--shrink-tables", type=click.IntRange(1), metavar="ROWS",
                     help="Cut every table to so many rows, to make it fit."),
        click.option("--hang-limit", default="30 s", show_default=True,
                     help="End a run in which nothing moves for so long."),
        click.option("--join-limit", default="60 s", show_default=True, help="Wait so long for all ranks to come."),
        click.option("--trace", type=path, metavar="DIR", help="Write Kineto timelines: measured, predicted, and both "
                     "in one file a rank."),
        click.option("--plot", type=path, metavar="FILE.png", help="Draw the measured step."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON, in seconds and bytes."),
    )):  # fmt: skip
        command = option(command)
    return command
