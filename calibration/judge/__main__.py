"""`python -m foreshard.calibration.judge`: predicts TorchRec's own steps on testbeds and says how well.

Needs TorchRec (`make torchrec`), root, and the folder of a `foreshard validate` whose beds were calibrated on
microbenchmarks. Beside them one number is learnt from TorchRec: one job in single processes, as many at a time as will
run, against what our operators would take for it; all compute is scaled by it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import msgspec
import numpy as np

from foreshard.calibration.judge.cases import judged_cases, timed_alone
from foreshard.calibration.judge.rank import Order
from foreshard.calibration.runner.stand_in import host_of
from foreshard.calibration.testbed.bed import Testbed
from foreshard.calibration.testbed.shape import parse_shape
from foreshard.calibration.testbed.starting import measure_in_bed
from foreshard.calibration.validation.case_file import CaseFile
from foreshard.calibration.validation.records import Outcome
from foreshard.calibration.validation.scoring import pairs_in_order
from foreshard.calibration.validation.validate_command import beds_of, estimate_s, folder_of
from foreshard.calibration.validation.validate_text import outcomes_table, scores_table
from foreshard.simulator.measured.profile import Profile
from foreshard.simulator.measured.profile_file import read_profile, save_profile
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cli import run
from foreshard.topologies.errors import InputError, check_all
from foreshard.topologies.output import check_folder

_BEDS = "2x2@500 Mbit/s,2x2@200 Mbit/s,2x1@500 Mbit/s"


@click.command()
@click.option("--testbed", "beds", default=_BEDS, show_default=True, metavar="NxR@RATE,...", help="Calibrated beds.")
@click.option("--seed", type=click.IntRange(0), default=11, show_default=True, help="Of the ids that are drawn.")
@click.option("-o", "--output", default="validation", type=click.Path(path_type=Path), help="Folder of a validation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in seconds.")
def judge(beds: str, seed: int, output: Path, as_json: bool) -> int:
    """Train TorchRec's DistributedModelParallel on calibrated testbeds, beside its prediction and its own planner."""
    check_all(lambda: beds_of(beds), lambda: check_folder(output))
    outcomes: list[Outcome] = []
    for shape, rate in beds_of(beds):
        folder = folder_of(output, shape, rate)
        if not (folder / "profile.json").exists():
            raise InputError(
                f'{folder} has no profile: run `foreshard validate --testbed "{shape}@{rate}" -o {output}` first'
            )
        _measure(folder, shape, rate, seed)
        outcomes += _outcomes(folder, f"{shape} {rate}", shape, seed)
    right, pairs = pairs_in_order(outcomes, lambda one: one.predicted_s)
    found = {
        "configurations": [msgspec.to_builtins(one) | {"measured_s": one.measured_s} for one in outcomes],
        "pairs_in_order": right / pairs,
    }
    (output / "torchrec.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        words = f"order of plans right in {right} of {pairs} pairs of a testbed"
        click.echo("\n\n".join([outcomes_table(outcomes), scores_table(outcomes), words]))
    return 0


def _measure(folder: Path, shape: str, rate: str, seed: int) -> None:
    """TorchRec's steps on the bed, and in single processes."""
    order = Order(cluster=str((folder / "cluster.toml").absolute()), shape=shape, seed=seed)
    wanted = {case.name for case in judged_cases(parse_shape(shape), seed)}
    single, together = folder / "torchrec-alone.jsonl", folder / "torchrec.jsonl"
    if CaseFile(single).read(seed) and wanted <= {one.name for one in CaseFile(together).read(seed)}:
        return
    with Testbed(shape, rate) as bed:
        measure_in_bed(bed, "foreshard.calibration.judge.rank", single, replace(order, alone=True))
        measure_in_bed(bed, "foreshard.calibration.judge.rank", together, order)


def _outcomes(folder: Path, bed: str, shape: str, seed: int) -> Sequence[Outcome]:
    profile = folder / "torchrec-profile.json"
    save_profile(_scaled(read_profile(folder / "profile.json"), folder, seed), profile)
    measured = {one.name: one for one in CaseFile(folder / "torchrec.jsonl").read(seed)}
    return [
        _outcome(case.job, case.way, bed, measured[case.name].step_time_s, _on(case.scenario, folder, profile))
        for case in judged_cases(parse_shape(shape), seed)
    ]


def _on(scenario, folder: Path, profile: Path) -> Prediction:  # type: ignore[no-untyped-def]
    choice = replace(scenario.cluster, file=str(folder / "cluster.toml"), profile=str(profile))
    return Prediction(replace(scenario, cluster=choice))


def _outcome(job: str, way: str, bed: str, measured_s: float, prediction: Prediction) -> Outcome:
    predicted = prediction.step_time_s
    return Outcome(
        bed=bed, job=job, way=way, runs_s=(measured_s,), predicted_s=predicted,
        interval_s=prediction.interval or (predicted, predicted), estimate_s=estimate_s(prediction),
        stages_measured_s={}, stages_predicted_s={},
    )  # fmt: skip


def _scaled(profile: Profile, folder: Path, seed: int) -> Profile:
    """The profile with all work scaled by what TorchRec takes alone over what our operators would."""
    took = np.median([one.step_time_s for one in CaseFile(folder / "torchrec-alone.jsonl").read(seed)])
    own = folder / "own.json"
    save_profile(replace(profile, collectives=(), pairs=(), constants=()), own)
    scenario = timed_alone(seed).scenario
    choice = replace(scenario.cluster, profile=str(own))
    ours = Prediction(replace(scenario, cluster=choice), host_of(1)).step_time_s
    factor = float(took) / ours
    work = tuple(replace(fit, coefficients=tuple(factor * slope for slope in fit.coefficients)) for fit in profile.work)
    return replace(profile, work=work)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], judge))
