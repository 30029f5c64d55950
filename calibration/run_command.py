"""`foreshard run`: starts the ranks of a real run on this machine or in a testbed; rank 0 prints what was measured."""

from __future__ import annotations

from typing import Any

import click

from foreshard.calibration.launch.launcher import need_torch, run_here
from foreshard.calibration.launch.run_order import RunOrder, run_options
from foreshard.calibration.testbed.bed import Testbed
from foreshard.calibration.testbed.shape import check_bed
from foreshard.calibration.testbed.starting import run_in_bed
from foreshard.simulator.files.reading import read_scenario
from foreshard.topologies.errors import InputError, check_all

__all__ = ["run"]


@click.command()
@run_options
@click.option("--nproc", type=click.IntRange(1, 1024), help="Ranks to start on this machine.")
@click.option("--testbed", "shape", metavar="NxR", help="Start them in a testbed: N nodes of R ranks each.")
@click.option("--rate", metavar="RATE", help='What a node\'s link of the testbed carries, as "500 Mbit/s".')
def run(nproc: int | None, shape: str | None, rate: str | None, scenario: str, **choices: Any) -> int:
    """Train SCENARIO for real on --nproc ranks and print the measured step, with the predicted one beside it.

    On the GPUs there are with NCCL, else on CPUs with gloo. A scenario of a machine with other than so many ranks is
    run on those there are. On several machines start `torchrun ... -m foreshard.calibration.run SCENARIO` on each.
    """
    order = RunOrder(scenario=scenario, **choices)
    check_all(  # mistakes are told once, not by every rank
        lambda: _check(nproc, shape, rate),
        order.check_limits,
        lambda: read_scenario(order.scenario, order.overrides),
        order.check_outputs,
    )
    need_torch("a real run")
    worker = ["foreshard.calibration.run", *order.arguments()]
    if shape is None:
        return run_here(worker, int(nproc or 1))
    with Testbed(shape, str(rate)) as bed:
        return run_in_bed(bed, worker)


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
    if shape and rate:
        check_bed(shape, rate)
