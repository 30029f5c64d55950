"""Executes a step program: operations in host issue order, collectives asynchronous, waits where the program has them."""

from __future__ import annotations

from dataclasses import dataclass

from foreshard.calibration.runner.interfaces import Recorder, World
from foreshard.calibration.runner.settings import RunSettings
from foreshard.simulator.job.program import StepProgram
from foreshard.simulator.step.prediction import Prediction

__all__ = ["RunResult", "StepRunner"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What training gave on this rank: its loss in every step, warm-up included."""

    losses: tuple[float, ...]


class StepRunner:
    """One rank's training of a scenario; made after all ranks agreed on it.

    Raises InputError with one sentence for everything that cannot be run, before any collective.
    """

    def __init__(
        self, prediction: Prediction, world: World, recorder: Recorder, settings: RunSettings | None = None
    ) -> None:
        self.prediction = prediction
        self.world = world
        self.recorder = recorder
        self.settings = settings or RunSettings()
        sync = prediction.scenario.layout.sync if prediction.layout.replicas > 1 else None
        self.program: StepProgram = prediction.program(sync)

    def run(self, steps: int, warmup: int) -> RunResult:
        """Fill the pipeline, train `warmup` + `steps` steps and drain it."""
        raise NotImplementedError
