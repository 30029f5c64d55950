"""What a real run is told as: the measured step as a prediction's report, and the predicted one beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import click
import numpy as np

from foreshard.calibration.launch.measured import MeasuredRun, MeasuredStep, with_bounds
from foreshard.calibration.launch.run_order import RunOrder
from foreshard.simulator.job.program import STAGES, StepProgram
from foreshard.simulator.results.export import step_names
from foreshard.simulator.results.exposure import Breakdown, breakdown, slowest_rank
from foreshard.simulator.results.report import Report, report
from foreshard.simulator.results.report_text import Section, section_text
from foreshard.simulator.results.side_by_side import ComparedStep, write_side_by_side
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.units import format_ms, format_us

__all__ = ["RunReport"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunReport:
    """A measured run of `program`; `prediction` is of the same run if it is `compared`, else it only names the job.

    `losses` are rank 0's in every step, `notes` sentences about how the run differs from the scenario.
    """

    prediction: Prediction
    program: StepProgram
    run: MeasuredRun
    backend: str
    losses: tuple[float, ...]
    notes: tuple[str, ...] = ()
    compared: bool = True

    def tell(self, order: RunOrder) -> None:
        """Write the timelines and the plot that were asked for, and print the report."""
        if order.trace is not None:
            paths = write_side_by_side(self._step(), order.trace, sync_step=self._sync_step())
            click.echo(f"{order.trace}: {len(paths)} timelines in {', '.join(sorted(_folders(paths)))}", err=True)
        if order.plot is not None:
            from foreshard.simulator.results.plot import plot_step, save_plot

            save_plot(plot_step(self.run.step.trace, which=step_names(self.prediction)[0]), order.plot)
        click.echo(json.dumps(self.to_dict(), indent=2, allow_nan=False) if order.as_json else self.to_text().rstrip())

    def _step(self) -> ComparedStep:
        predicted = self.prediction.trace if self.compared else None
        return self._compared(self.run.step, predicted, step_names(self.prediction)[0])

    def _sync_step(self) -> ComparedStep | None:
        if self.run.sync_step is None:
            return None
        predicted = self.prediction.sync.weights if self.compared and self.prediction.sync else None
        return self._compared(self.run.sync_step, predicted, step_names(self.prediction)[1])

    def _compared(self, step: MeasuredStep, predicted: Any, name: str) -> ComparedStep:
        return ComparedStep(
            measured=step.trace, predicted=predicted, program=self.program, cluster=self.prediction.cluster, name=name
        )

    # -- the reports -------------------------------------------------------------------------------------------

    def predicted(self) -> Report | None:
        """The report of the predicted step, if it is one of this run."""
        return report(self.prediction, what_if=False) if self.compared else None

    def measured(self) -> Report:
        """The report of the measured step; where two kinds of steps take turns, stages are averaged over both."""
        trace = with_bounds(self.run.step.trace, self.prediction.trace) if self.compared else self.run.step.trace
        told, run = report(trace), self.run
        low, high = run.step.interval_s
        shift = run.step_time_s - run.step.trace.step_time_s
        scenario, cluster = self.prediction.scenario, self.prediction.cluster
        heading = replace(
            told.heading,
            name=scenario.name,
            description=f"measured on {self.backend}, {len(run.step_times_s)} steps after {run.warmup} of warm-up",
        )
        return replace(
            told,
            heading=heading,
            step_time_s=run.step_time_s,
            step_time_interval_s=(low + shift, high + shift),
            samples_per_s=scenario.workload.batch_size * cluster.size / run.step_time_s,
            breakdown=self._breakdown(),
            provenance=(("foreshard", version("foreshard")), ("torch", version("torch"))),
        )

    def _breakdown(self) -> Breakdown:
        rank = slowest_rank(self.run.step.trace)
        shown = breakdown(self.run.step.trace, rank)
        if self.run.sync_step is None:
            return shown
        return shown.mixed(breakdown(self.run.sync_step.trace, rank), 1.0 / self.run.sync_interval)

    def to_dict(self) -> dict[str, Any]:
        """JSON values in seconds and bytes."""
        run, predicted = self.run, self.predicted()
        return {
            "measured": self.measured().to_dict()
            | {
                "step_times_s": run.step_times_s.tolist(),
                "step_numbers": [*run.step.numbers],
                "sync_step_numbers": [*run.sync_step.numbers] if run.sync_step else [],
                "sync_step_time_s": run.sync_step.trace.step_time_s if run.sync_step else None,
                "operations": [*_operations(run.step), *(_operations(run.sync_step) if run.sync_step else ())],
                "clock_uncertainty_s": run.clock_s,
                "backend": self.backend,
                "warmup": run.warmup,
                "losses": list(self.losses),
            },
            "predicted": predicted.to_dict() if predicted else None,
            "predicted_interval_s": self.prediction.interval if predicted else None,
            "notes": list(self.notes),
        }

    def to_text(self) -> str:
        """The report as aligned text: the measured step, then what was predicted beside it."""
        measured, predicted = self.measured(), self.predicted()
        parts = [measured.to_text().rstrip()]
        if predicted is not None:
            parts += [section_text(self._stages(measured, predicted)), section_text(self._collectives(predicted))]
        parts.append(section_text(Section(title="The run", notes=tuple(self._sentences()))))
        return "\n\n".join(parts) + "\n"

    def _sentences(self) -> Iterator[str]:
        run = self.run
        yield from self.notes
        if run.sync_step is not None:
            yield (
                f"steps that average replicas, 1 of {run.sync_interval}, took "
                f"{format_ms(run.sync_step.trace.step_time_s)}, others {format_ms(run.step.trace.step_time_s)}; the "
                "step time is their mean in that proportion"
            )
        elif run.sync_interval > 1:
            yield f"replicas average in one of {run.sync_interval} steps: give more --steps to measure one"
        if run.clock_s > 0:
            yield f"clocks of the machines agree to within {format_us(run.clock_s)}"
        yield f"loss of rank 0: {self.losses[0]:.6g} in the first step, {self.losses[-1]:.6g} in the last"

    def _stages(self, measured: Report, predicted: Report) -> Section:
        rows = [
            _beside(stage, mine.time_s, theirs.time_s)
            for stage in STAGES
            for mine, theirs in [(measured.breakdown.stages[stage], predicted.breakdown.stages[stage])]
        ]
        rows.append(_beside("step", measured.step_time_s, predicted.step_time_s))
        interval, notes = self.prediction.interval, []
        if interval is not None:
            inside = interval[0] <= measured.step_time_s <= interval[1]
            notes.append(
                f"predicted interval (10-90 %): {format_ms(interval[0])} to {format_ms(interval[1])}; the measured "
                f"step is {'inside' if inside else 'outside'}"
            )
        else:
            notes.append("the machine is not calibrated: `foreshard calibrate` makes a profile for [cluster] profile")
        return Section(
            title="Measured beside predicted, in ms: stages on the slowest rank of each",
            headers=("stage", "measured", "predicted", "predicted/measured - 1"),
            rows=tuple(rows),
            notes=tuple(notes),
        )

    def _collectives(self, predicted: Report) -> Section:
        known = {row.name: row.time_s for row in predicted.collectives}
        rows: dict[str, tuple[str, ...]] = {}
        for step in filter(None, (self.run.step, self.run.sync_step)):
            for name, seconds, low, high in _transfers(step):
                if name in known and name not in rows:
                    spread = f"{low * 1e3:.3f} to {high * 1e3:.3f}"
                    rows[name] = (*_beside(name, seconds, known[name]), spread)
        return Section(
            title="Collectives, in ms from the last member's joining to the end in the slowest group",
            headers=("collective", "measured", "predicted", "predicted/measured - 1", "measured 10-90 %"),
            rows=tuple(rows.values()),
        )


def _beside(name: str, measured: float, predicted: float) -> tuple[str, ...]:
    off = f"{predicted / measured - 1:+.1%}" if measured > 0 else ""
    return name, f"{measured * 1e3:.3f}", f"{predicted * 1e3:.3f}", off


def _transfers(step: MeasuredStep) -> Iterator[tuple[str, float, float, float]]:
    """(Name, median, 10th and 90th percentile) of every collective's transfer in seconds."""
    for op, low, high in zip(step.trace.ops, *step.transfer_spread_s.tolist(), strict=True):
        if op.collective is not None:
            yield op.name, op.collective.time_s, low, high


def _operations(step: MeasuredStep) -> Iterator[dict[str, Any]]:
    """Duration of every operation on its slowest rank, with its spread over steps."""
    took = step.trace.end_s - step.trace.start_s
    for index, op in enumerate(step.trace.ops):
        rank = int(np.nanargmax(took[index]))
        low, high = step.spread_s[:, index, rank].tolist()
        yield {
            **{key: value for key, value in asdict(op).items() if key != "collective"},
            "slowest_rank": rank, "duration_s": float(took[index, rank]), "duration_10_90_s": [low, high],
        }  # fmt: skip


def _folders(paths: Any) -> set[str]:
    return {path.parent.name if path.parent.name != "sync_step" else path.parent.parent.name for path in paths}
