"""`foreshard calibrate device`: every rank measures its own work, under torchrun, started here, or in a testbed."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import get_args

import click
import msgspec

from foreshard.calibration.launch.launcher import need_torch, run_here
from foreshard.calibration.measure.device_profile import device_profile, work_text
from foreshard.calibration.measure.device_rank import DeviceOrder, measure_device
from foreshard.calibration.measure.device_records import DeviceFile
from foreshard.calibration.measure.profile_parts import check_output, lay_into
from foreshard.calibration.testbed.bed import Testbed
from foreshard.calibration.testbed.starting import check_start, ranks_started, run_in_bed, worker_arguments
from foreshard.simulator.job.scenario import Optimizer
from foreshard.topologies.errors import check_all

__all__ = ["device"]

_RATE = "1 Gbit/s"  # of a bed's links, which carry nothing that is timed here


@click.command()
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Profile to write or add to.")
@click.option("--nproc", type=click.IntRange(1, 64), help="Start so many ranks here (else torchrun starts them).")
@click.option("--testbed", "shape", metavar="NxR", help="Start them in a testbed of this shape.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=32, show_default=True, help="Jobs to draw and time.")
@click.option("--steps", type=click.IntRange(3, 1000), default=12, show_default=True, help="Steps of each, after 3.")
@click.option("--optimizer", type=click.Choice(get_args(Optimizer)), default="rowwise_adagrad", show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the jobs that are drawn.")
@click.option("--json", "as_json", is_flag=True, help="Print the fits as JSON, in seconds.")
def device(
    output: Path, nproc: int | None, shape: str | None, jobs: int, steps: int, optimizer: Optimizer, seed: int,
    as_json: bool,
) -> int:  # fmt: skip
    """Measure look-ups, updates, routing, codecs and dense layers into a profile, all ranks active.

    Every rank trains small drawn jobs on rows of its own, operation by operation as `foreshard run` does. Finished jobs
    are kept beside OUTPUT: an interrupted run goes on where it stopped.
    """
    check_all(
        lambda: check_start("device", shape, nproc),
        lambda: check_output(output, ranks_started(shape, nproc)),
    )
    need_torch("measuring a device")
    file = output.with_name(f"{output.name}.device.part")
    order = DeviceOrder(jobs=jobs, steps=steps, optimizer=optimizer, seed=seed, bed=f"testbed {shape}" * bool(shape))
    code = _measure(file, order, shape, nproc)
    if code == 0 and os.environ.get("RANK", "0") == "0":
        settings, records = DeviceFile(file).read()
        profile = device_profile(settings, records, name=output.stem, command=shlex.join(["foreshard", *sys.argv[1:]]))
        lay_into(output, profile)
        file.unlink()
        click.echo(json.dumps(msgspec.to_builtins(profile.work), indent=2) if as_json else work_text(profile.work))
        click.echo(f"profile written to {output}", err=True)
    return code


def _measure(file: Path, order: DeviceOrder, shape: str | None, nproc: int | None) -> int:
    command = worker_arguments("foreshard.calibration.measure.device_rank", file, order)
    if shape:
        with Testbed(shape, _RATE) as bed:
            return run_in_bed(bed, command)
    if nproc:
        return run_here(command, nproc)
    measure_device(file, order)
    return 0
