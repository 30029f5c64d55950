"""One rank of a real run: `torchrun --nproc-per-node N -m foreshard.calibration.run SCENARIO [--set KEY=VALUE ...]`.

All ranks agree on the scenario, train it, and bring what they recorded to rank 0, which prints the measured step. On
several machines torchrun starts them as any other job. A scenario of a machine with another number of ranks is run on
those there are; the report then says so and compares nothing.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import Any

import click

from foreshard.calibration.launch.clocks import CommonClock
from foreshard.calibration.launch.elsewhere import not_on_its_machine
from foreshard.calibration.launch.gathering import common_offset, gather_times
from foreshard.calibration.launch.launcher import need_torch
from foreshard.calibration.launch.measured import MeasuredRun, measured_run
from foreshard.calibration.launch.recorder import Recorder
from foreshard.calibration.launch.run_order import RunOrder, run_options
from foreshard.calibration.launch.run_report import RunReport
from foreshard.calibration.launch.session import Limits, Session
from foreshard.calibration.launch.terms import terms_of
from foreshard.calibration.launch.timers import timer_of
from foreshard.calibration.launch.world import World
from foreshard.calibration.runner.interpreter import StepRunner, run_program
from foreshard.calibration.runner.memory import check_memory
from foreshard.calibration.runner.stand_in import stand_in
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.program import StepProgram
from foreshard.simulator.job.scenario import Scenario
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cli import run
from foreshard.topologies.errors import InputError

__all__ = ["Trained", "main", "measure_training", "run_rank"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What was measured while `program` was trained, and rank 0's loss in every step, warm-up included."""

    program: StepProgram
    run: MeasuredRun
    losses: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """What a rank runs: the prediction of it, and sentences about how it differs from the scenario.

    `compared`: the machine has as many ranks as the scenario's, so that the predicted step is of this run.
    """

    prediction: Prediction
    notes: tuple[str, ...]
    compared: bool


def run_rank(order: RunOrder) -> None:
    """Run as the rank that the environment says, together with all others; rank 0 prints what was measured.

    Raises InputError where this rank can't join; what goes wrong later ends the run on all ranks (see Session).
    """
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with Session.join(Limits(hang_s=order.hang_s, join_s=order.join_s)) as session:
        session.progress.phase("reading the scenario")
        job = _job(session, order)
        terms = terms_of(job.prediction, {"steps": order.steps, "warmup": order.warmup})
        if not torch.cuda.is_available():
            check_memory(job.prediction, session.place.local_world_size)
        session.agree(terms)
        report = _train(session, job, order)
        if report is not None:
            session.progress.phase("reporting")
    if report is not None:
        report.tell(order)


def _job(session: Session, order: RunOrder) -> _Job:
    scenario, notes = _shrunk(read_scenario(order.scenario, order.overrides), order.shrink_tables)
    place = session.place
    prediction, others = stand_in(scenario, place.world_size, place.local_world_size)
    return _Job(prediction=prediction, notes=(*notes, *others), compared=not others)


def _shrunk(scenario: Scenario, rows: int | None) -> tuple[Scenario, list[str]]:
    """The scenario with at most so many rows a table, and a note of it. Raises InputError where ids are recorded."""
    large = [table for table in scenario.workload.tables if rows is not None and table.num_embeddings > rows]
    if rows is None or not large:
        return scenario, []
    if scenario.workload.replay is not None or any(table.access.histogram for table in large):
        raise InputError(
            "--shrink-tables: recorded ids and counted histograms name rows of whole tables: run it without"
        )
    tables = tuple(replace(one, num_embeddings=min(rows, one.num_embeddings)) for one in scenario.workload.tables)
    before = sum(table.num_embeddings for table in large)
    note = (
        f"{len(large)} of {len(tables)} tables were cut to {rows:,} rows of {before / len(large):,.0f} on average "
        "(--shrink-tables): more ids fall on the same rows, and caches hold more of them"
    )
    return replace(scenario, workload=replace(scenario.workload, tables=tables)), [note]


def _train(session: Session, job: _Job, order: RunOrder) -> RunReport | None:
    """Train; what was measured on rank 0, None on others."""
    world = session.world()
    trained = measure_training(session, world, job.prediction, order.steps, order.warmup)
    nodes = world.everyones(world.place.node)
    if trained is None:
        return None
    elsewhere = tuple(not_on_its_machine(job.prediction.cluster, nodes, world.backend)) if job.compared else ()
    return RunReport(
        prediction=job.prediction,
        program=trained.program,
        run=trained.run,
        backend=world.backend,
        losses=trained.losses,
        notes=(*job.notes, *elsewhere),
        compared=job.compared and not elsewhere,
    )


def measure_training(session: Session, world: World, prediction: Prediction, steps: int, warmup: int) -> Trained | None:
    """Train `steps` steps after a warm-up that fills the pipeline; what was measured on rank 0, None on others.

    All ranks of the session call it together.
    """
    program = run_program(prediction)
    warmup = max(warmup, program.warmup_steps)
    recorder = Recorder(program, world.rank, timer_of(world.device), session.progress)
    session.progress.phase("building tables")
    runner = StepRunner(prediction, world, recorder)
    session.progress.phase("comparing clocks", talking=True)
    before = common_offset(world)
    result = runner.run(steps, warmup)
    session.progress.phase("gathering what was recorded", talking=True)
    times = gather_times(world, recorder.times(), CommonClock(before, common_offset(world)))
    if times is None:
        return None
    interval = prediction.scenario.layout.sync_interval
    run = measured_run(program, times, warmup=warmup, backend=world.backend, sync_interval=interval)
    return Trained(program=program, run=run, losses=result.losses)


@click.command()
@run_options
def main(scenario: str, **choices: Any) -> None:
    """Run SCENARIO as one of the ranks that torchrun started; rank 0 prints the measured step."""
    need_torch("a real run")
    order = RunOrder(scenario=scenario, **choices)
    order.check_limits()
    run_rank(order)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], main))  # told here: why this rank could not join; the others say the rest
