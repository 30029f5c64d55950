"""One rank of a real run: `torchrun --nproc-per-node N -m foreshard.calibration.run SCENARIO [--set KEY=VALUE ...]`.

All ranks agree on the scenario, train it, and bring what they recorded to rank 0, which prints the measured step. A
scenario of a larger machine is run on as many ranks as there are, on their host; the report then says so.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec

from foreshard.calibration.launch.clocks import CommonClock
from foreshard.calibration.launch.gathering import common_offset, gather_times
from foreshard.calibration.launch.measured import MeasuredRun, measured_run, with_bounds
from foreshard.calibration.launch.recorder import Recorder
from foreshard.calibration.launch.session import Limits, Session
from foreshard.calibration.launch.terms import terms_of
from foreshard.calibration.launch.timers import CudaTimer, HostTimer
from foreshard.calibration.runner.interpreter import RunResult, StepRunner, run_program
from foreshard.calibration.runner.memory import check_memory
from foreshard.calibration.runner.stand_in import stand_in
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.results.export import written_traces
from foreshard.simulator.results.report import report
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import ForeshardError

__all__ = ["RunOrder", "main", "run_rank"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOrder:
    """What every rank is told: the scenario, how many steps after how many of warm-up, and what to write.

    `shrink_rows` caps the rows of every table; 0 keeps them.
    """

    scenario: str
    overrides: tuple[str, ...] = ()
    steps: int = 20
    warmup: int = 5
    hang_limit_s: float = 30.0
    shrink_rows: int = 0
    trace: str = ""
    plot: str = ""
    as_json: bool = False


def run_rank(order: RunOrder) -> None:
    """Run as the rank that the environment says, together with all others; rank 0 prints what was measured."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with Session.join(Limits(hang_s=order.hang_limit_s)) as session:
        scenario, notes = _shrunk(read_scenario(order.scenario, order.overrides), order.shrink_rows)
        prediction, stands_in = stand_in(scenario, session.place.world_size)
        notes += stands_in
        session.agree(terms_of(prediction, {"steps": order.steps, "warmup": order.warmup}))
        check_memory(prediction, session.place.local_world_size, on_cpu=not torch.cuda.is_available())
        run, result = _train(session, prediction, order)
        if run is not None:
            _tell(prediction, run, result, order, notes, like=not stands_in)


def _shrunk(scenario, rows: int):  # type: ignore[no-untyped-def]
    """The scenario with at most so many rows a table, and a note of it."""
    large = [table.name for table in scenario.workload.tables if rows and table.num_embeddings > rows]
    if not large:
        return scenario, []
    tables = tuple(replace(one, num_embeddings=min(rows, one.num_embeddings)) for one in scenario.workload.tables)
    note = f"{len(large)} tables were cut to {rows:,} rows (--shrink-tables): look-ups hit fewer distinct rows"
    return replace(scenario, workload=replace(scenario.workload, tables=tables)), [note]


def _train(session: Session, prediction: Prediction, order: RunOrder) -> tuple[MeasuredRun | None, RunResult]:
    """Train; the measured run on rank 0, None on others."""
    world, program = session.world(), run_program(prediction)
    timer = CudaTimer(world.device) if world.device.type == "cuda" else HostTimer()
    recorder = Recorder(program, world.rank, timer, session.progress)
    session.progress.phase("building tables")
    runner = StepRunner(prediction, world, recorder)
    before = common_offset(world)
    result = runner.run(order.steps, order.warmup)
    times = gather_times(world, recorder.times(), CommonClock(before, common_offset(world)))
    if times is None:
        return None, result
    interval = prediction.scenario.layout.sync_interval
    return measured_run(program, times, warmup=order.warmup, backend=world.backend, sync_interval=interval), result


def _tell(
    prediction: Prediction, run: MeasuredRun, result: RunResult, order: RunOrder, notes: list[str], *, like: bool
) -> None:
    """Print the measured step, with the predicted one beside it where the machine is the scenario's (`like`)."""
    trace = with_bounds(run.step.trace, prediction.trace) if like else run.step.trace
    if order.trace:
        program = run_program(prediction)
        shown = None if len(trace.ops) < len(program.ops) else program
        click.echo(written_traces(trace, Path(order.trace) / "measured", program=shown).sentence(), err=True)
        if like:
            click.echo(written_traces(prediction, Path(order.trace) / "predicted").sentence(), err=True)
    if order.plot:
        from foreshard.simulator.results.drawing import save_plot
        from foreshard.simulator.results.plot import plot_step

        save_plot(plot_step(trace), Path(order.plot))
    click.echo(
        json.dumps(_values(prediction, run, result, notes, like), indent=2)
        if order.as_json
        else _text(prediction, run, result, notes, like)
    )


def _values(
    prediction: Prediction, run: MeasuredRun, result: RunResult, notes: list[str], like: bool
) -> dict[str, Any]:
    low, high = run.step.interval_s
    return {
        "measured": {
            **report(run.step.trace).to_dict(),
            "mean_step_time_s": run.step_time_s,
            "step_time_10_90_s": [low, high],
            "step_times_s": run.step.step_times_s.tolist(),
            "sync_step_times_s": run.sync_step.step_times_s.tolist() if run.sync_step else [],
            "clock_uncertainty_s": run.clock_s,
        },
        "predicted_step_time_s": prediction.step_time_s if like else None,
        "predicted_interval_s": prediction.interval if like else None,
        "losses": list(result.losses),
        "notes": notes,
    }


def _text(prediction: Prediction, run: MeasuredRun, result: RunResult, notes: list[str], like: bool) -> str:
    low, high = run.step.interval_s
    lines = [
        f"{prediction.scenario.name}: {len(run.step.numbers)} measured steps on {prediction.cluster.size} ranks, "
        f"{run.warmup} of warm-up dropped",
        f"measured step {run.step_time_s * 1e3:.3f} ms; single steps {low * 1e3:.3f} to {high * 1e3:.3f} ms (deciles)",
    ]
    if run.sync_step is not None:
        averaged = run.sync_step.trace.step_time_s * 1e3
        lines.append(f"steps that average replicas, 1 of {run.sync_interval}, take {averaged:.3f} ms")
    if like:
        lines.append(_beside(prediction, run))
    lines.append(f"loss of rank 0: {result.losses[0]:.6f} in the first step, {result.losses[-1]:.6f} in the last")
    lines += notes
    return "\n".join(lines) + "\n\n" + report(run.step.trace).to_text()


def _beside(prediction: Prediction, run: MeasuredRun) -> str:
    """The predicted step time, its interval, and how far it is off."""
    interval = prediction.interval
    band = f" (80 % interval {interval[0] * 1e3:.3f} to {interval[1] * 1e3:.3f} ms)" if interval else ""
    off = prediction.step_time_s / run.step_time_s - 1
    known = "" if prediction.profile is not None else "; the machine is not calibrated"
    return f"predicted step {prediction.step_time_s * 1e3:.3f} ms{band}, {off:+.1%}{known}"


@click.command()
@click.argument("scenario")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key.")
@click.option("--steps", type=click.IntRange(1, 100_000), default=20, show_default=True)
@click.option("--warmup", type=click.IntRange(1, 10_000), default=5, show_default=True)
def main(scenario: str, overrides: tuple[str, ...], steps: int, warmup: int) -> None:
    """Run SCENARIO as one of the ranks that torchrun started."""
    try:
        run_rank(RunOrder(scenario=scenario, overrides=overrides, steps=steps, warmup=warmup))
    except ForeshardError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--order":
        run_rank(msgspec.json.decode(sys.argv[2], type=RunOrder))
    else:
        main()
