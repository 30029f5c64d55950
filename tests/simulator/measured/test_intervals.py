"""Intervals: times drawn from what measurements scattered, and steps simulated with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.work import WORK_KINDS
from foreshard.simulator.measured.profile import QUANTILES, CollectiveCurve, Noise, Profile, WorkFit
from foreshard.simulator.results.report import report
from foreshard.simulator.step.intervals import draws_for, scatters
from foreshard.simulator.step.prediction import Prediction

Curves = Callable[..., CollectiveCurve]
Profiles = Callable[..., Profile]
NONE = (0.0,) * len(QUANTILES)
KINDS = ("all_to_all", "all_reduce", "all_gather", "reduce_scatter")


def document(**more: Any) -> dict[str, Any]:
    tables = [{"name": name, "num_embeddings": 1000, "embedding_dim": 8, "pooling_factor": 4} for name in "ab"]
    workload = {"batch_size": 16, "tables": tables, "dense": {"layers": [[16, 8, 1]]}}
    return {"schema": 1, "cluster": {"preset": "cpu-host"}, "workload": workload, **more}


def work(seconds: float, residuals: tuple[float, ...] = NONE) -> list[WorkFit]:
    return [
        WorkFit(kind=kind, features=("calls",), coefficients=(seconds,), residuals=residuals) for kind in WORK_KINDS
    ]


def flat(curve: Curves, seconds: float, spread: float = 1.0) -> list[CollectiveCurve]:
    return [curve(kind, (4,), {1.0: seconds, 1e12: seconds}, spread=spread) for kind in KINDS]


def prediction_of(profile: Profile, **more: Any) -> Prediction:
    return Prediction(read_scenario(document(**more)), profile=profile)


def test_noise_of_all_work_alone_moves_the_step_by_its_own_quantiles(curve: Curves, profile_of: Profiles) -> None:
    """One thread, collectives of no length: 10 % of runs are 20 % shorter, 10 % are 30 % longer, and so are steps."""
    noise = tuple(np.log([0.8, 0.8, 0.9, 1.0, 1.1, 1.3, 1.3]))
    profile = profile_of(*flat(curve, 1e-12), work=work(1e-3), noise=Noise(compute=noise))
    prediction = prediction_of(profile)
    assert prediction.interval == pytest.approx((0.8 * prediction.step_time_s, 1.3 * prediction.step_time_s), rel=0.02)


def test_noise_of_all_collectives_alone_moves_the_step_too(curve: Curves, profile_of: Profiles) -> None:
    """Work of no length: the step is its collectives, one after the other where the host waits for them."""
    noise = tuple(np.log([0.8, 0.8, 0.9, 1.0, 1.1, 1.3, 1.3]))
    profile = profile_of(*flat(curve, 1e-3), work=work(1e-12), noise=Noise(collectives=noise))
    prediction = prediction_of(profile)
    low, high = prediction.interval or (0.0, 0.0)
    assert (low, high) == pytest.approx((0.8 * prediction.step_time_s, 1.3 * prediction.step_time_s), rel=0.02)


def test_independent_residuals_make_a_narrower_step_than_one_for_all(curve: Curves, profile_of: Profiles) -> None:
    """Kinds of work scatter each on its own: errors cancel in part, where noise of a whole run does not."""
    residuals = tuple(np.log(1.2) / 1.2816 * np.array([-1.645, -1.2816, -0.6745, 0, 0.6745, 1.2816, 1.645]))
    each = prediction_of(profile_of(*flat(curve, 1e-12), work=work(1e-3, residuals)))
    whole = prediction_of(profile_of(*flat(curve, 1e-12), work=work(1e-3), noise=Noise(compute=residuals)))
    assert each.interval is not None
    assert whole.interval is not None
    widths = [high - low for low, high in (each.interval, whole.interval)]
    assert 0 < widths[0] < 0.6 * widths[1]


def test_a_curve_s_runs_scatter_its_collectives(curve: Curves, profile_of: Profiles) -> None:
    """80 % of the runs lie within a factor of 1.5, so a step of collectives scatters less, as there are two kinds."""
    prediction = prediction_of(profile_of(*flat(curve, 1e-3, spread=1.5), work=work(1e-12)))
    assert prediction.interval is not None
    low, high = (edge / prediction.step_time_s for edge in prediction.interval)
    assert 1 / 1.5 < low < 0.95
    assert 1.05 < high < 1.5


def test_draws_depend_on_the_seed_alone(curve: Curves, profile_of: Profiles) -> None:
    """Twice the same, and with another seed another one."""
    profile = profile_of(*flat(curve, 1e-3, spread=1.5), work=work(1e-3))
    first, again = (prediction_of(profile).interval for _ in range(2))
    other = prediction_of(profile, execution={"seed": 1}).interval
    assert first == again
    assert first != other


def test_nothing_is_claimed_where_nothing_scattered(curve: Curves, profile_of: Profiles) -> None:
    """A profile without spread and residuals gives a time and no interval."""
    profile = profile_of(*flat(curve, 1e-3), work=work(1e-3, ()))
    assert not scatters(profile)
    assert prediction_of(profile).interval is None
    assert prediction_of(profile).drawn == ()


def test_a_report_shows_the_interval_of_the_step_and_of_every_stage(curve: Curves, profile_of: Profiles) -> None:
    """In the first line, beside every stage, with the number of draws, and in the JSON."""
    noise = tuple(np.log([0.8, 0.8, 0.9, 1.0, 1.1, 1.3, 1.3]))
    prediction = prediction_of(profile_of(*flat(curve, 1e-3), work=work(1e-3), noise=Noise(compute=noise)))
    told = report(prediction)
    low, high = prediction.interval or (0.0, 0.0)
    assert f"(80 % interval {low * 1e3:.3f} to {high * 1e3:.3f} ms)" in told.to_text()
    assert "time, 80 % interval" in told.to_text()
    assert "80 % intervals: 64 steps with residuals and noise of the profile drawn anew" in told.to_text()
    data = told.to_dict()
    assert data["step_time_interval_s"] == [low, high]
    compute = data["stages"]["local_compute"]["time_s"]
    assert data["stage_intervals_s"]["local_compute"] == pytest.approx([0.8 * compute, 1.3 * compute], rel=0.02)


def test_replicas_that_average_now_and_then_have_an_interval_of_the_mean_step(
    curve: Curves, profile_of: Profiles
) -> None:
    """The mean over the interval, as the step time is."""
    noise = tuple(np.log([0.8, 0.8, 0.9, 1.0, 1.1, 1.3, 1.3]))
    pairs = [
        curve(kind, (2,), {1.0: 1e-12, 1e12: 1e-12}, groups=groups, groups_per_node=groups)
        for kind in KINDS
        for groups in (1, 2)
    ]
    profile = profile_of(*flat(curve, 1e-12), *pairs, work=work(1e-3), noise=Noise(compute=noise))
    layout = {"sharding_group_size": 2, "sync": "weights", "sync_interval": 10}
    prediction = prediction_of(profile, layout=layout)
    assert prediction.interval == pytest.approx((0.8 * prediction.step_time_s, 1.3 * prediction.step_time_s), rel=0.02)


@given(st.integers(1, 1 << 16), st.integers(1, 500))
def test_larger_steps_are_drawn_less_often(ranks: int, operations: int) -> None:
    """64 draws, of many ranks and operations fewer, never below 8."""
    count = draws_for(ranks, operations)
    assert 8 <= count <= 64
    assert count <= draws_for(max(1, ranks // 2), operations)
    assert draws_for(4, 40) == 64


def test_modelled_collectives_keep_their_time_in_every_draw(profile_of: Profiles) -> None:
    """No curve: nothing is known of their scatter, so only the work moves."""
    noise = tuple(np.log([0.5, 0.5, 0.9, 1.0, 1.1, 2.0, 2.0]))
    prediction = prediction_of(profile_of(work=work(1e-3), noise=Noise(compute=noise)))
    index = next(i for i, op in enumerate(prediction.trace.ops) if op.name == "dense_all_reduce")
    took = {
        round(float((step.trace.end_s - step.trace.start_s - step.trace.wait_s)[index].max()), 9)
        for step in prediction.drawn
    }
    assert len(took) == 1


def test_a_wider_spread_never_gives_a_narrower_interval(curve: Curves, profile_of: Profiles) -> None:
    """Twice the logarithms, about twice the width."""
    base = np.array([-0.1, -0.08, -0.04, 0.0, 0.04, 0.08, 0.1])
    widths = []
    for factor in (1, 2):
        fits = work(1e-3, tuple(factor * base))
        prediction = prediction_of(replace(profile_of(*flat(curve, 1e-12)), work=tuple(fits)))
        assert prediction.interval is not None
        widths.append(prediction.interval[1] - prediction.interval[0])
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.15)
