"""One rank of a validation: trains every case of a testbed and keeps what its steps took.

Started as `python -m foreshard.calibration.validation.rank FILE JSON` under whatever sets RANK and the like; JSON is an
Order. Rank 0 appends each case to FILE; those that are in it already are not run again.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tqdm import tqdm

from foreshard.calibration.launch.measured import MeasuredRun
from foreshard.calibration.launch.session import Limits, Session
from foreshard.calibration.run import measure_training
from foreshard.calibration.testbed.shape import parse_shape
from foreshard.calibration.validation.case_file import CaseFile
from foreshard.calibration.validation.cases import cases_of
from foreshard.calibration.validation.records import MeasuredCase, stage_times
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.clusterfile import load_cluster_file

__all__ = ["Order", "measure_cases"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Cases of `jobs` jobs on a bed of `shape`, whose cluster file is `cluster`; each runs `rounds` times."""

    cluster: str
    shape: str
    jobs: int
    seed: int
    steps: int = 16
    warmup: int = 4
    rounds: int = 2


def measure_cases(file: str | Path, order: Order) -> None:
    """Run as the rank that the environment says, together with all others; rank 0 writes `file`."""
    import torch

    torch.set_num_threads(1)
    kept = CaseFile(file)
    with Session.join(Limits()) as session:
        world = session.world()
        if world.rank == 0:
            kept.begin()
        cluster = load_cluster_file(order.cluster)
        cases = cases_of(parse_shape(order.shape), order.jobs, order.seed)
        done = set(world.everyones([(one.name, one.round) for one in kept.read(order.seed)])[0])
        todo = [(case, number) for number in range(order.rounds) for case in cases if (case.name, number) not in done]
        quiet = None if world.rank == 0 else True
        for case, number in tqdm(todo, unit="case", disable=quiet, delay=2, file=sys.stderr):
            prediction = Prediction(case.scenario, cluster)
            trained = measure_training(session, world, prediction, order.steps, order.warmup)
            if trained is not None:
                kept.add(_record(case.name, number, order.seed, trained.run))


def _record(name: str, number: int, seed: int, run: MeasuredRun) -> MeasuredCase:
    low, high = run.step.interval_s
    shift = run.step_time_s - run.step.trace.step_time_s
    return MeasuredCase(
        name=name, round=number, seed=seed, step_time_s=run.step_time_s, low_s=low + shift, high_s=high + shift,
        stages_s=stage_times(run.step.trace),
    )  # fmt: skip


if __name__ == "__main__":
    measure_cases(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Order))
