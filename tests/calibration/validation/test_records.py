"""What is kept of a run: stages without waiting, the interval around the step time, and the planner's estimate."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from foreshard.calibration.validation.rank import _record
from foreshard.calibration.validation.records import stage_times
from foreshard.calibration.validation.validate_command import estimate_s
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.program import STAGES
from foreshard.simulator.results.report import report
from foreshard.simulator.step.prediction import Prediction


@pytest.fixture(scope="module")
def prediction():
    return Prediction(read_scenario("host-4ranks", ["cluster.preset=cpu-host"]))


def test_a_stage_takes_its_operations_of_the_slowest_rank_without_their_waiting(prediction):
    """Operations take 1 s on rank 0 and 2 s on others, half of it waiting; one that a rank lacks is nothing."""
    trace = prediction.trace
    took = np.full(trace.start_s.shape, 2.0)
    took[:, 0] = 1.0
    start = np.zeros(trace.start_s.shape)
    start[0, 1] = np.nan
    found = stage_times(replace(trace, start_s=start, end_s=took, wait_s=took / 2))
    assert list(found) == list(STAGES)
    for stage, seconds in found.items():
        assert seconds == sum(op.stage == stage for op in trace.ops)


def test_the_estimate_beside_is_what_predict_prints_of_the_planner(prediction):
    """With this machine's rates, of one sharding group."""
    assert estimate_s(prediction) == pytest.approx(report(prediction, planner=True).planner.machine.rating_s)
    assert estimate_s(prediction) > 0


def test_the_deciles_that_are_kept_lie_around_the_step_time_of_whole_turns(prediction):
    """Plain steps take 1 to 3 s and 2 s in the median; with the averaging of replicas 5 s: the deciles move along."""
    step = SimpleNamespace(trace=replace(prediction.trace, step_time_s=2.0), interval_s=(1.0, 3.0))
    kept = _record("a/b", 1, 7, SimpleNamespace(step=step, step_time_s=5.0))
    assert (kept.low_s, kept.step_time_s, kept.high_s) == (4.0, 5.0, 6.0)
    assert (kept.name, kept.round, kept.seed) == ("a/b", 1, 7)
    assert kept.stages_s == stage_times(prediction.trace)
