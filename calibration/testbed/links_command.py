"""`foreshard calibrate links`: every rank measures its links, under torchrun, started here, or in a testbed."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from foreshard.calibration.launch.launcher import need_torch, run_here
from foreshard.calibration.measure.link_plan import KINDS, LinkPlan
from foreshard.calibration.measure.link_profile import link_profile
from foreshard.calibration.measure.link_records import RecordFile
from foreshard.calibration.measure.link_report import link_rows, link_text
from foreshard.calibration.measure.links_worker import WorkerOptions, measure_links
from foreshard.calibration.measure.profile_parts import check_output, lay_into
from foreshard.calibration.testbed.bed import Testbed
from foreshard.calibration.testbed.shape import bed_link
from foreshard.calibration.testbed.starting import check_start, ranks_started, run_in_bed, worker_arguments
from foreshard.topologies.errors import InputError, UnitError, check_all
from foreshard.topologies.units import BYTES, SECONDS, parse_quantity

__all__ = ["links"]

_WORKER = "foreshard.calibration.measure.links_worker"


@click.command()
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Profile to write or add to.")
@click.option("--nproc", type=click.IntRange(1, 1024), help="Start so many ranks here (else torchrun starts them).")
@click.option("--testbed", "shape", metavar="NxR", help="Start them in a testbed of this shape.")
@click.option("--rate", metavar="RATE", help='What a node\'s link of the testbed carries: "500 Mbit/s".')
@click.option("--burst", metavar="BYTES", help="The testbed's burst (what the rate needs).")
@click.option("--pin", is_flag=True, help="Keep every rank of the testbed to one core.")
@click.option("--kinds", metavar="K,K,...", default=",".join(KINDS), show_default=True, help="Collectives to measure.")
@click.option("--smallest", default="1 KiB", show_default=True, help="Smallest size, as nccl-tests counts it.")
@click.option("--largest", default="256 MiB", show_default=True, help="Largest size.")
@click.option("--factor", type=click.IntRange(2, 1024), default=2, show_default=True, help="From size to size.")
@click.option("--point-time", default="1 s", show_default=True, help="About how long to repeat each point.")
@click.option("--longest-run", default="3 s", show_default=True, help="Leave out sizes of which one run takes longer.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in bytes and seconds.")
def links(
    output: Path, nproc: int | None, shape: str | None, rate: str | None, burst: str | None, pin: bool, as_json: bool,
    **choices: str | int,
) -> int:  # fmt: skip
    """Measure collectives and pairs of ranks into a profile, all ranks active.

    Every group that a layout can use is measured: the world, groups inside nodes and across them, all at once. Finished
    points are kept beside OUTPUT until all are there: an interrupted run goes on where it stopped.
    """
    check_all(
        lambda: check_start("links", shape, nproc),
        lambda: _check(shape, rate, burst, pin),
        lambda: _plan(choices),
        lambda: check_output(output, ranks_started(shape, nproc)),
    )
    plan = _plan(choices)
    need_torch("measuring links")
    file = output.with_name(f"{output.name}.links.part")
    code = _measure(file, plan, shape, str(rate), burst, pin, nproc)
    if code == 0 and os.environ.get("RANK", "0") == "0":
        _finish(output, file, plan, as_json)
    return code


def _check(shape: str | None, rate: str | None, burst: str | None, pin: bool) -> None:
    if shape and not rate:
        raise InputError('--testbed needs --rate, what its links carry: --rate "500 Mbit/s"')
    if not shape and (rate or burst or pin):
        raise InputError("--rate, --burst and --pin are of a testbed: give --testbed too, such as --testbed 2x2")
    if shape and rate:
        bed_link(rate, burst)


def _plan(choices: Mapping[str, str | int]) -> LinkPlan:
    problems: list[str] = []
    kinds = tuple(kind.strip() for kind in str(choices["kinds"]).split(","))
    problems += [f"--kinds: {kind!r} is none of {', '.join(KINDS)}" for kind in kinds if kind not in KINDS]
    values = {
        name: _quantity(f"--{name.replace('_', '-')}", str(choices[name]), units, problems)
        for name, units in (("smallest", BYTES), ("largest", BYTES), ("point_time", SECONDS), ("longest_run", SECONDS))
    }
    if not problems and not 4 <= values["smallest"] <= values["largest"]:
        problems.append("--smallest: expected at least 4 B and no more than --largest")
    if problems:
        raise InputError(problems)
    return LinkPlan(
        kinds=tuple(kind for kind in KINDS if kind in kinds),
        smallest=int(values["smallest"]),
        largest=int(values["largest"]),
        factor=int(choices["factor"]),
        point_s=values["point_time"],
        longest_run_s=values["longest_run"],
    )


def _quantity(option: str, text: str, units: dict[str, float], problems: list[str]) -> float:
    try:
        return parse_quantity(text, units)
    except UnitError as error:
        problems.append(f"{option}: {error}")
        return 0.0


def _measure(
    file: Path, plan: LinkPlan, shape: str | None, rate: str, burst: str | None, pin: bool, nproc: int | None
) -> int:
    if shape:
        with Testbed(shape, rate, burst=burst) as bed:
            options = WorkerOptions(plan=plan, bed=str(bed), pinned=pin)
            return run_in_bed(bed, worker_arguments(_WORKER, file, options), pinned=pin)
    if nproc:
        return run_here(worker_arguments(_WORKER, file, WorkerOptions(plan=plan)), nproc)
    measure_links(file, WorkerOptions(plan=plan))
    return 0


def _finish(output: Path, file: Path, plan: LinkPlan, as_json: bool) -> None:
    """Make a profile of all points, write it, print it, and remove the points' own file."""
    settings, records = RecordFile(file).read()
    command = shlex.join(["foreshard", *sys.argv[1:]])
    profile = link_profile(settings, records, name=output.stem, command=command)
    lay_into(output, profile)
    file.unlink()
    click.echo(
        json.dumps(link_rows(profile), indent=2) if as_json else link_text(settings, records, profile, plan.seed)
    )
    click.echo(f"profile written to {output}", err=True)
