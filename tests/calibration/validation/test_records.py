"""What is kept of a run: stages without waiting, the interval around the step time, and the planner's estimate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

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
