"""What is known of a case: measured, predicted, and TorchRec's way to estimate it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foreshard.calibration.validation.cases import SEED
from foreshard.simulator.job.program import STAGES
from foreshard.simulator.job.trace import StepTrace

__all__ = ["MeasuredCase", "Outcome", "stage_times"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCase:
    """One run of a case whose ids were drawn with `seed`: median step time, deciles over its steps, seconds of every
    stage."""

    name: str
    round: int
    seed: int = SEED
    step_time_s: float
    low_s: float
    high_s: float
    stages_s: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A case with all that is said of it, in seconds; `bed` is the testbed and its rate, `runs_s` its measured runs.

    `estimate_s` is bytes over bandwidth as TorchRec's planner counts a sharding group.
    """

    bed: str
    job: str
    way: str
    runs_s: tuple[float, ...]
    predicted_s: float
    interval_s: tuple[float, float]
    estimate_s: float
    stages_measured_s: dict[str, float]
    stages_predicted_s: dict[str, float]

    @property
    def measured_s(self) -> float:
        """The median over the runs of their median step times."""
        return float(np.median(self.runs_s))

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def noise(self) -> float:
        """How far the runs of the same case lie apart: the largest over the smallest, less 1."""
        return max(self.runs_s) / min(self.runs_s) - 1

    @property
    def covered(self) -> bool:
        """Whether the measured step lies in the predicted interval."""
        low, high = self.interval_s
        return low <= self.measured_s <= high


def stage_times(trace: StepTrace) -> dict[str, float]:
    """Seconds of every stage on the slowest rank: its operations one by one, without waiting for other ranks."""
    took = np.nan_to_num(trace.end_s - trace.start_s - trace.wait_s)
    found = {}
    for stage in STAGES:
        rows = [index for index, op in enumerate(trace.ops) if op.stage == stage]
        found[stage] = float(took[rows].sum(axis=0).max()) if rows else 0.0
    return found
