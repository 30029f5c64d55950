"""`foreshard validate`: calibrates testbeds on microbenchmarks, runs steps that no fit has seen, and scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from foreshard.calibration.launch.launcher import need_torch
from foreshard.calibration.measure.device_profile import device_profile
from foreshard.calibration.measure.device_rank import DeviceOrder
from foreshard.calibration.measure.device_records import DeviceFile
from foreshard.calibration.measure.link_plan import LinkPlan
from foreshard.calibration.measure.link_profile import link_profile
from foreshard.calibration.measure.link_records import RecordFile
from foreshard.calibration.measure.links_worker import WorkerOptions
from foreshard.calibration.measure.machine import hardware, versions
from foreshard.calibration.measure.profile_parts import lay_into
from foreshard.calibration.testbed.bed import Testbed
from foreshard.calibration.testbed.description import cluster_text, probe_bed
from foreshard.calibration.testbed.shape import check_bed, parse_shape
from foreshard.calibration.testbed.starting import measure_in_bed
from foreshard.calibration.validation.case_file import CaseFile
from foreshard.calibration.validation.cases import SEED, cases_of
from foreshard.calibration.validation.rank import Order
from foreshard.calibration.validation.records import Outcome, stage_times
from foreshard.calibration.validation.validate_text import plot_outcomes, validation_dict, validation_text
from foreshard.simulator.job.program import CollectiveKind
from foreshard.simulator.results.drawing import check_plot
from foreshard.simulator.results.planner_comparison import machine_topology
from foreshard.simulator.step.prediction import Prediction
from foreshard.simulator.torchrec.planner_rating import planner_estimate
from foreshard.topologies.errors import InputError, check_all
from foreshard.topologies.output import make_folder, replaced, write_text

__all__ = ["beds_of", "estimate_s", "folder_of", "validate"]

_BEDS = "2x2@500 Mbit/s,2x2@200 Mbit/s,4x1@500 Mbit/s,2x1@500 Mbit/s"
_KINDS: tuple[CollectiveKind, ...] = ("all_to_all", "all_reduce", "reduce_scatter", "all_gather")
_LINKS = LinkPlan(
    kinds=_KINDS, smallest=4 << 10, largest=8 << 20, factor=2, point_s=0.25, most_runs=60, longest_run_s=1.5
)


@click.command()
@click.option("--testbed", "beds", default=_BEDS, show_default=True, metavar="NxR@RATE,...", help="Testbeds to build.")
@click.option("--jobs", type=click.IntRange(1, 3), default=1, show_default=True, help="Jobs to lay out on each.")
@click.option("--rounds", type=click.IntRange(1, 20), default=2, show_default=True, help="Runs of each configuration.")
@click.option("--device-jobs", type=click.IntRange(4, 256), default=24, show_default=True, help="To calibrate work.")
@click.option("--seed", type=click.IntRange(0), default=SEED, show_default=True, help="Of the ids that are drawn.")
@click.option(
    "-o", "--output", default="validation", type=click.Path(path_type=Path), help="Folder to keep results in."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Scatter plot of predicted over measured (PNG).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in seconds.")
def validate(
    beds: str, jobs: int, rounds: int, device_jobs: int, seed: int, output: Path, plot: Path | None, as_json: bool
) -> int:
    """Predict real steps on testbeds from microbenchmarks alone, and say how good the predictions were.

    Each testbed is probed and calibrated (links, device), then every configuration is trained for real. What is
    finished is kept in the folder OUTPUT: an interrupted validation goes on where it stopped, and one with other
    testbeds, or more jobs and rounds, adds to it.
    """
    need_torch("validation")
    check_all(
        lambda: beds_of(beds),
        lambda: make_folder(output),
        (lambda: check_plot(plot)) if plot is not None else None,
    )
    outcomes: list[Outcome] = []
    for shape, rate in beds_of(beds):
        folder = folder_of(output, shape, rate)
        make_folder(folder)
        _measure(folder, shape, rate, DeviceOrder(jobs=device_jobs, bed=f"testbed {shape}"), jobs, rounds, seed)
        outcomes += _outcomes(folder, f"{shape} {rate}", shape, jobs, seed)
    provenance = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"), "hardware": hardware(), "versions": versions(),
    }  # fmt: skip
    found = validation_dict(outcomes, provenance)
    write_text(output / "validation.json", json.dumps(found, indent=1) + "\n")
    click.echo(json.dumps(found, indent=1) if as_json else validation_text(outcomes))
    if plot is not None:
        with replaced(plot) as partial:
            plot_outcomes(outcomes).figure.savefig(partial, format="png", dpi=110)
    return 0


def folder_of(output: Path, shape: str, rate: str) -> Path:
    """Where the results of one testbed are kept."""
    return output / f"{shape}-{rate}".replace(" ", "").replace("/", "p")


def beds_of(text: str) -> list[tuple[str, str]]:
    """Shape and rate of every testbed of a list, as they are named in tables and files, each once.

    Raises InputError with every mistake.
    """
    named = [one.strip() for one in text.split(",") if one.strip()]
    if not named:
        raise InputError('--testbed names no testbed: give some, as "2x2@500 Mbit/s,4x1@200 Mbit/s"')
    check_all(*(partial(_bed, one) for one in named))
    return list(dict.fromkeys(map(_bed, named)))


def _bed(text: str) -> tuple[str, str]:
    shape, at, rate = text.partition("@")
    if not at:
        raise InputError(f'--testbed {text!r}: expected a shape and a rate, as in "2x2@500 Mbit/s"')
    check_bed(shape, rate)
    return str(parse_shape(shape)), rate.strip()


def _measure(folder: Path, shape: str, rate: str, device: DeviceOrder, jobs: int, rounds: int, seed: int) -> None:
    """Everything that needs the bed: its description, the profile of microbenchmarks, and the steps."""
    profile, cluster, steps = folder / "profile.json", folder / "cluster.toml", folder / "steps.jsonl"
    order = Order(cluster=str(cluster.absolute()), shape=shape, jobs=jobs, seed=seed, rounds=rounds)
    wanted = {(case.name, number) for case in cases_of(parse_shape(shape), jobs, seed) for number in range(rounds)}
    if profile.exists() and wanted <= {(one.name, one.round) for one in CaseFile(steps).read(seed)}:
        return
    with Testbed(shape, rate) as bed:
        if not cluster.exists():
            write_text(cluster, cluster_text(bed.shape, bed.link, probe_bed(bed)))
        if not profile.exists():
            _calibrate(bed, folder, profile, rate, device)
        measure_in_bed(bed, "foreshard.calibration.validation.rank", steps, order)


def _calibrate(bed: Testbed, folder: Path, profile: Path, rate: str, device: DeviceOrder) -> None:
    """Links and work, in one profile that is there only when both are."""
    links, work, half = folder / "links.part", folder / "device.part", folder / "profile.part"
    command = "foreshard validate"
    options = WorkerOptions(plan=_LINKS, bed=f"testbed {bed.shape}, {rate}")
    measure_in_bed(bed, "foreshard.calibration.measure.links_worker", links, options)
    settings, records = RecordFile(links).read()
    half.unlink(missing_ok=True)
    lay_into(half, link_profile(settings, records, name=folder.name, command=command))
    measure_in_bed(bed, "foreshard.calibration.measure.device_rank", work, device)
    lay_into(half, device_profile(*DeviceFile(work).read(), name=folder.name, command=command))
    half.rename(profile)


def _outcomes(folder: Path, bed: str, shape: str, jobs: int, seed: int) -> Sequence[Outcome]:
    measured = CaseFile(folder / "steps.jsonl").read(seed)
    found = []
    for case in cases_of(parse_shape(shape), jobs, seed):
        runs = [one for one in measured if one.name == case.name]
        choice = replace(
            case.scenario.cluster, file=str(folder / "cluster.toml"), profile=str(folder / "profile.json")
        )  # fmt: skip
        prediction = Prediction(replace(case.scenario, cluster=choice))
        stages = {stage: sum(one.stages_s[stage] for one in runs) / len(runs) for stage in runs[0].stages_s}
        found.append(
            Outcome(
                bed=bed, job=case.job, way=case.way, runs_s=tuple(one.step_time_s for one in runs),
                predicted_s=prediction.step_time_s,
                interval_s=prediction.interval or (prediction.step_time_s,) * 2,
                estimate_s=estimate_s(prediction),
                stages_measured_s=stages, stages_predicted_s=stage_times(prediction.trace),
            )
        )  # fmt: skip
    return found


def estimate_s(prediction: Prediction) -> float:
    """TorchRec's planner with this machine's rates: its rating of the plan of one sharding group, in seconds."""
    scenario = prediction.scenario
    topology = machine_topology(prediction.cluster, prediction.layout.group_size, prediction.local_group_size)
    rated = planner_estimate(
        scenario.workload, prediction.sharded, scenario.comms, scenario.execution, topology
    )  # fmt: skip
    return rated.rating_s
