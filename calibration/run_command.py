"""`foreshard run`: starts the ranks of a real run on this machine, or in a testbed, and relays what rank 0 prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import msgspec

from foreshard.calibration.testbed.bed import Testbed
from foreshard.calibration.testbed.starting import need_torch, torchrun_command
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.results.drawing import check_plot
from foreshard.topologies.errors import InputError, UnitError
from foreshard.topologies.units import SECONDS, parse_quantity

__all__ = ["run"]


@click.command()
@click.argument("scenario")
@click.option("--nproc", type=click.IntRange(1, 64), help="Ranks to start on this machine.")
@click.option("--testbed", "shape", metavar="NxR", help="Start them in a testbed of this shape.")
@click.option("--rate", metavar="RATE", help='What a node\'s link of the testbed carries: "500 Mbit/s".')
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key of it.")
@click.option("--steps", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Steps to measure.")
@click.option("--warmup", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Steps before them.")
@click.option("--shrink-tables", type=click.IntRange(1), metavar="ROWS", help="Cut every table to so many rows.")
@click.option("--hang-limit", default="30 s", show_default=True, help="End a run in which nothing moves for so long.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="DIR", help="Write measured and predicted timelines.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw the measured step.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in seconds and bytes.")
def run(
    scenario: str, nproc: int | None, shape: str | None, rate: str | None, overrides: tuple[str, ...], steps: int,
    warmup: int, shrink_tables: int | None, hang_limit: str, trace: Path | None, plot: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Train SCENARIO for real on --nproc ranks and print the measured step, beside the predicted one.

    NCCL with the GPUs there are, else gloo on CPU ranks. A scenario of a larger machine is run on the ranks there are.
    """
    _check(nproc, shape, rate)
    need_torch("a real run")
    read_scenario(scenario, overrides)  # told here once, not by every rank
    if plot is not None:
        check_plot(plot)
    worker = [
        "-m", "foreshard.calibration.run", "--order",
        msgspec.json.encode({
            "scenario": _place(scenario), "overrides": overrides, "steps": steps, "warmup": warmup,
            "hang_limit_s": _seconds(hang_limit), "shrink_rows": shrink_tables or 0,
            "trace": str(trace.absolute()) if trace else "", "plot": str(plot.absolute()) if plot else "",
            "as_json": as_json,
        }).decode(),
    ]  # fmt: skip
    if shape:
        with Testbed(shape, str(rate)) as bed:
            results = bed.run([sys.executable, *worker])
        return next((abs(result.exit_code) for result in results if result.exit_code), 0)
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **os.environ}
    return subprocess.run([*torchrun_command(int(nproc or 1)), *worker], env=environment, check=False).returncode


def _check(nproc: int | None, shape: str | None, rate: str | None) -> None:
    problems = []
    if bool(nproc) == bool(shape):
        problems.append("give either --nproc N, ranks on this machine, or --testbed NxR with --rate")
    if shape and not rate:
        problems.append('--testbed needs --rate, what its links carry: --rate "500 Mbit/s"')
    if rate and not shape:
        problems.append("--rate is of a testbed: give --testbed too, such as --testbed 2x2")
    if problems:
        raise InputError(problems)


def _place(scenario: str) -> str:
    """A file by its full path; a shipped name as it is."""
    return str(Path(scenario).absolute()) if Path(scenario).exists() else scenario


def _seconds(text: str) -> float:
    try:
        return parse_quantity(text, SECONDS)
    except UnitError as error:
        raise InputError(f"--hang-limit: {error}") from None
