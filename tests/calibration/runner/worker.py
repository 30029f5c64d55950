"""One process of the pool that runs scenarios for the tests: takes jobs from a connection and sends back what it has.

Started as a script by `conftest.py`; rank by its first argument, the address of the connection by its second.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from foreshard.calibration.launch.place import Place
from foreshard.calibration.launch.world import World
from foreshard.calibration.runner.interpreter import StepRunner
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cluster import Cluster


@dataclass
class Recorder:
    """Records nothing but the order of operations."""

    ops: tuple[Any, ...] = ()
    order: list[tuple[int, str]] = field(default_factory=list)
    at: int = -1

    def phase(self, name):
        pass

    def step(self, number):
        self.at = number

    def compute(self, index):
        self.order.append((self.at, self.ops[index].name))
        return nullcontext()

    def collective(self, index, issue, *, sent_bytes=None, received_bytes=None):
        self.order.append((self.at, self.ops[index].name))
        return issue()


def run(rank, job):
    """One job on this rank; None where the world is smaller."""
    world_size = job["world_size"]
    if rank >= world_size:
        return None
    store = dist.FileStore(job["store"], world_size)
    place = Place(
        rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size,
        master_addr="127.0.0.1", master_port=1,
    )  # fmt: skip
    world = World(place, store, timeout_s=30.0, backend="gloo")
    try:
        return trained(world, job)
    finally:
        world.close()


def kernels_on_cpu():
    """The CUDA kernels, compiled for the CPU by the tests of DeviceOps."""
    spec = importlib.util.spec_from_file_location("ops_conftest", Path(__file__).parents[1] / "ops" / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernels_on_cpu()


def trained(world, job):
    """What training gives on this rank."""
    prediction = Prediction(job["scenario"], Cluster(job["cluster"]))
    moved, recorder = [], Recorder()

    def watch(op, step, issue):
        moved.append((op.name, step, issue.kind, issue.sent, issue.received, issue.nbytes))

    ops = kernels_on_cpu() if job["kernels"] else None
    runner = StepRunner(prediction, world, recorder, job["settings"], watch=watch, ops=ops)
    recorder.ops = runner.program.ops
    result = runner.run(job["steps"], 0)
    return {
        "losses": result.losses,
        "vectors": result.vectors,
        "rows": tuple(runner.held_rows()),
        "dense": runner.dense_parameters(),
        "moved": moved,
        "order": recorder.order,
    }


def main():
    rank, address = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    with Client(address, authkey=os.environ["POOL_KEY"].encode()) as connection:
        connection.send(rank)
        while (job := connection.recv()) is not None:
            try:
                connection.send((True, run(rank, job)))
            except Exception:
                connection.send((False, traceback.format_exc()))


if __name__ == "__main__":
    main()
