"""One rank of TorchRec's job on a testbed: trains every case and keeps what its steps took.

Started as `python -m foreshard.calibration.judge.rank FILE JSON` under whatever sets RANK and the like; JSON is an
Order. With `alone` every process is a world of its own, all at the same time: what a step costs without communication.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from foreshard.calibration.judge.cases import judged_cases, timed_alone
from foreshard.calibration.judge.job import Job
from foreshard.calibration.launch.place import Place
from foreshard.calibration.launch.world import World
from foreshard.calibration.runner.stand_in import host_of
from foreshard.calibration.testbed.shape import parse_shape
from foreshard.calibration.validation.case_file import CaseFile
from foreshard.calibration.validation.cases import Case
from foreshard.calibration.validation.records import MeasuredCase
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.clusterfile import load_cluster_file

__all__ = ["Order", "train_cases"]

_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Cases on a bed of `shape` with the cluster file `cluster`, or the one that is timed `alone`."""

    cluster: str
    shape: str
    seed: int
    alone: bool = False
    steps: int = 20
    warmup: int = 5


def train_cases(file: str | Path, order: Order) -> None:
    """Train as the rank that the environment says; rank 0 appends to `file`."""
    torch.set_num_threads(1)
    kept, place = CaseFile(file), Place.from_environment()
    world = _world(place, order)
    cluster = host_of(1) if order.alone else load_cluster_file(order.cluster)
    if place.rank == 0:
        kept.begin()
    cases = [timed_alone(order.seed)] if order.alone else judged_cases(parse_shape(order.shape), order.seed)
    done = world.everyones([one.name for one in kept.read(order.seed)])[0]
    for case in cases:
        if case.name in done:
            continue
        dist.barrier(group=world.control)
        record = _record(
            case, Job(Prediction(case.scenario, cluster), world.rank).train(order.warmup + order.steps), order
        )
        if place.rank == 0:
            kept.add(record)
    world.close()


def _world(place: Place, order: Order) -> World:
    if order.alone:
        single = Place(
            rank=0,
            world_size=1,
            local_rank=0,
            local_world_size=1,
            master_addr="127.0.0.1",
            master_port=place.master_port,
        )
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        return World(single, dist.HashStore(), timeout_s=_TIMEOUT_S, backend="gloo")
    store = dist.TCPStore(place.master_addr, place.master_port, place.world_size, place.rank == 0)
    return World(place, store, timeout_s=_TIMEOUT_S, backend="gloo")


def _record(case: Case, result, order: Order) -> MeasuredCase:  # type: ignore[no-untyped-def]
    times = np.array(result.step_s[order.warmup :])
    low, high = np.percentile(times, [10, 90]).tolist()
    return MeasuredCase(
        name=case.name, round=0, seed=order.seed, step_time_s=float(np.median(times)), low_s=low, high_s=high,
        stages_s={},
    )  # fmt: skip


if __name__ == "__main__":
    train_cases(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Order))
