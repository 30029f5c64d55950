"""How the ranks of a calibration come to be: in a testbed, started here, or by torchrun."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from foreshard.calibration.launch.wording import killed
from foreshard.calibration.testbed.bed import Testbed
from foreshard.calibration.testbed.shape import parse_shape
from foreshard.topologies.errors import ForeshardError, InputError, UnavailableError

__all__ = ["check_start", "measure_in_bed", "ranks_started", "run_in_bed", "worker_arguments"]


def check_start(command: str, shape: str | None, nproc: int | None) -> None:
    """Return if ranks are started in exactly one way; raises InputError."""
    if shape and nproc:
        raise InputError("--testbed and --nproc both start ranks: give one")
    if not shape and nproc is None and "RANK" not in os.environ:
        raise InputError(
            "no ranks: give --nproc N or --testbed NxR, or start them all with "
            f"`torchrun --nproc-per-node N --no-python foreshard calibrate {command} ...`"
        )


def ranks_started(shape: str | None, nproc: int | None) -> tuple[int, ...] | None:
    """Ranks of each node that will be started, None where torchrun has started them. Raises InputError."""
    if shape:
        return parse_shape(shape).ranks_per_node
    return (nproc,) if nproc else None


def worker_arguments(module: str, file: Path, order: object) -> list[str]:
    """What a rank runs: a module that keeps what it measures in `file` and is told `order` as JSON."""
    return [module, str(file.absolute()), msgspec.json.encode(order).decode()]


def run_in_bed(bed: Testbed, worker: Sequence[str], *, pinned: bool = False) -> int:
    """Run `python -m WORKER...` as every rank of a bed and return the exit code of the run.

    0 if all ranks ended well, 2 for a mistake in the input, else 1.
    """
    results = bed.run([sys.executable, "-m", *worker], pinned=pinned)
    for result in results:
        if result.exit_code < 0 and not result.ended:
            click.echo(f"error: {killed(result.rank, -result.exit_code)}", err=True)
    codes = {result.exit_code for result in results}
    if codes == {0}:
        return 0
    return ForeshardError.exit_code if ForeshardError.exit_code in codes else 1


def measure_in_bed(bed: Testbed, module: str, file: Path, order: object) -> None:
    """Run a worker as every rank of a bed. Raises UnavailableError if a rank fails, which said why itself."""
    if run_in_bed(bed, worker_arguments(module, file, order)):
        raise UnavailableError(f"the ranks of testbed {bed.shape} failed; what is finished is kept in {file}")
