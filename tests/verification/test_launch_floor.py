"""The floor of a step: launches and host time, which no smaller batch and no larger cluster gets under."""

from __future__ import annotations

import pytest

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.step.prediction import Prediction

# A DLRM step published for 8 A100 never falls under 7 ms however small its batch. Host constants here come from
# public profiler traces of other jobs and nothing is fitted to this figure; tables and model differ, hence a wide band.
PUBLISHED_FLOOR_S = 7e-3
FLOOR_TOLERANCE = 0.35


def step_time_s(batch_size: int, nodes: int = 1, *more: str) -> float:
    settings = ("cluster.preset=dgx-a100", f"cluster.nodes={nodes}", f"workload.batch_size={batch_size}", *more)
    return Prediction(read_scenario("mlperf-dcnv2-p5", settings)).step_time_s


def test_a_tiny_batch_costs_about_the_published_floor() -> None:
    """A step of one sample on 8 A100 lies within the tolerance of the published floor."""
    assert step_time_s(1) == pytest.approx(PUBLISHED_FLOOR_S, rel=FLOOR_TOLERANCE)


def test_below_some_batch_the_step_gets_no_shorter() -> None:
    """From 64 samples down to one the step time changes by less than one percent."""
    assert step_time_s(1) == pytest.approx(step_time_s(64), rel=0.01)


def test_strong_scaling_ends_where_the_floor_takes_over() -> None:
    """With a fixed global batch the step shrinks at first, then stops at the floor instead of going to nothing."""
    rare = ("layout.sharding_group_size=8", "layout.sync=weights", "layout.sync_interval=1000000")
    times = [step_time_s(32_768 // nodes, nodes, *rare) for nodes in (1, 4, 64)]
    assert times[1] < 0.6 * times[0]
    assert times[2] > 0.9 * step_time_s(1)
    assert times[0] / times[2] < 64 / 4
