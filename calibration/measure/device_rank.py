"""One rank of `foreshard calibrate device`: trains drawn jobs and times every operation, all ranks at the same time.

Started as `python -m foreshard.calibration.measure.device_rank FILE JSON` under whatever sets RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT. Rank 0 keeps the records of all ranks in FILE, job by job; jobs that are in it already are
not run again. JSON is a DeviceOrder.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from tqdm import tqdm

from foreshard.calibration.launch.recorder import Recorder
from foreshard.calibration.launch.session import Limits, Session
from foreshard.calibration.launch.timers import timer_of
from foreshard.calibration.launch.world import World
from foreshard.calibration.measure.device_records import DeviceFile, DeviceSettings, WorkRecord, of_cores, records_of
from foreshard.calibration.measure.device_workloads import drawn_scenarios
from foreshard.calibration.runner.interpreter import StepRunner, run_program
from foreshard.calibration.runner.stand_in import host_of
from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.step.prediction import Prediction

__all__ = ["DeviceOrder", "measure_device"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceOrder:
    """What is to be measured: so many drawn jobs of `steps` steps after `warmup`; `bed` describes the testbed."""

    jobs: int = 32
    steps: int = 12
    warmup: int = 3
    optimizer: Optimizer = "rowwise_adagrad"
    seed: int = 0
    bed: str = ""


def measure_device(file: str | Path, order: DeviceOrder) -> None:
    """Measure as the rank that the environment says, together with all others; rank 0 writes `file`."""
    import torch

    torch.set_num_threads(1)
    with Session.join(Limits()) as session:
        session.agree({"torch": torch.__version__, **asdict(order)})
        world = session.world()
        node_of = world.everyones(session.place.node)
        settings = DeviceSettings.of(world, node_of, bed=order.bed, optimizer=order.optimizer, seed=order.seed)
        kept = DeviceFile(file) if world.rank == 0 else None
        done = world.everyones(kept.begin(settings) if kept else set())[0]
        cluster = host_of(world.world_size)
        scenarios = drawn_scenarios(order.jobs, world.world_size, optimizer=order.optimizer, seed=order.seed)
        jobs = [(number, scenario) for number, scenario in enumerate(scenarios) if number not in done]
        for number, scenario in tqdm(jobs, unit="job", disable=None if kept else True, delay=2, file=sys.stderr):
            found = world.everyones(_run(session, world, Prediction(scenario, cluster), number, order))
            if kept is not None:
                kept.add([record for of_rank in found for record in of_rank])


def _run(session: Session, world: World, prediction: Prediction, number: int, order: DeviceOrder) -> list[WorkRecord]:
    program = run_program(prediction)
    recorder = Recorder(program, world.rank, timer_of(world.device), session.progress)
    session.progress.phase(f"job {number}")
    StepRunner(prediction, world, recorder).run(order.steps, order.warmup)
    times = recorder.times()
    took, host = times.end_s - times.start_s, times.host_s
    if world.device.type == "cpu":
        took = host = of_cores(host, times.cpu_s)
    return list(records_of(number, program, world.rank, took[order.warmup :], host[order.warmup :]))


if __name__ == "__main__":
    measure_device(sys.argv[1], msgspec.json.decode(sys.argv[2] if len(sys.argv) > 2 else "{}", type=DeviceOrder))
