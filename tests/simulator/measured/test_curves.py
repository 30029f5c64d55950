"""Curves through measured points, and residuals drawn again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from foreshard.simulator.measured.curves import Beside, Curve
from foreshard.simulator.measured.fits import above_range, fitted_seconds
from foreshard.simulator.measured.profile import QUANTILES, BesidePoint, SizePoint, WorkFit, WorkPoint
from foreshard.simulator.measured.spreads import factor_of_deciles, factor_of_quantiles

sizes = st.lists(st.floats(1.0, 1e12), min_size=1, max_size=12, unique=True).map(sorted)


def points(nbytes: list[float], seconds: list[float]) -> tuple[SizePoint, ...]:
    return tuple(
        SizePoint(nbytes=size, median_s=time, low_s=0.9 * time, high_s=1.2 * time, runs=5)
        for size, time in zip(nbytes, seconds, strict=True)
    )


@st.composite
def rising(draw: st.DrawFn) -> tuple[SizePoint, ...]:
    at = draw(sizes)
    at = [at[0], *(b for a, b in pairwise(at) if b > a * 1.001)]
    times = sorted(draw(st.lists(st.floats(1e-6, 10.0), min_size=len(at), max_size=len(at))))
    return points(at, times)


@st.composite
def any_points(draw: st.DrawFn) -> tuple[SizePoint, ...]:
    good = draw(rising())
    times = draw(st.lists(st.floats(1e-6, 10.0), min_size=len(good), max_size=len(good)))
    return points([point.nbytes for point in good], times)


@given(rising())
def test_a_curve_passes_through_points_that_rise(measured: tuple[SizePoint, ...]) -> None:
    """What was measured is predicted."""
    curve = Curve(measured)
    for point in measured:
        assert curve.seconds(point.nbytes) == pytest.approx(point.median_s, rel=1e-9)


@given(any_points(), st.lists(st.floats(0.1, 1e13), min_size=2, max_size=20))
def test_more_bytes_never_take_less_time(measured: tuple[SizePoint, ...], asked: list[float]) -> None:
    """Whatever the points, and outside them too."""
    curve = Curve(measured)
    times = [curve.seconds(nbytes) for nbytes in sorted(asked)]
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(times))


@given(any_points(), st.floats(0.1, 1e13), st.floats(0.01, 100.0))
def test_times_that_are_all_longer_by_a_factor_give_a_longer_curve(
    measured: tuple[SizePoint, ...], nbytes: float, factor: float
) -> None:
    """A curve has no time of its own: it scales with the points."""
    longer = [
        replace(p, median_s=factor * p.median_s, low_s=factor * p.low_s, high_s=factor * p.high_s) for p in measured
    ]
    assert Curve(longer).seconds(nbytes) == pytest.approx(factor * Curve(measured).seconds(nbytes), rel=1e-6)


@given(any_points(), st.floats(0.1, 1e13), st.floats(0.01, 100.0))
def test_sizes_that_are_all_larger_by_a_factor_move_the_curve(
    measured: tuple[SizePoint, ...], nbytes: float, factor: float
) -> None:
    """A curve has no size of its own either."""
    moved = [replace(point, nbytes=factor * point.nbytes) for point in measured]
    assert Curve(moved).seconds(factor * nbytes) == pytest.approx(Curve(measured).seconds(nbytes), rel=1e-6)


def test_points_that_fall_are_averaged_by_their_runs() -> None:
    """2 ms then 1 ms with equal runs: both become their geometric mean; the third point is as measured."""
    curve = Curve(points([1e3, 1e4, 1e5], [2e-3, 1e-3, 4e-3]))
    assert [curve.seconds(size) for size in (1e3, 1e4, 1e5)] == pytest.approx([2**0.5 * 1e-3, 2**0.5 * 1e-3, 4e-3])


def test_outside_the_points_latency_stays_and_the_last_slope_goes_on() -> None:
    """Below 1 kB it is 1 ms; from 10 kB to 100 kB the time doubles, so it doubles again to 1 MB."""
    curve = Curve(points([1e3, 1e4, 1e5], [1e-3, 2e-3, 4e-3]))
    assert curve.seconds(10) == pytest.approx(1e-3)
    assert curve.seconds(1e6) == pytest.approx(8e-3)
    assert [curve.below(size) for size in (500, 1e3, 5e4, 1e5, 4e5)] == pytest.approx([2, 1, 1, 1, 1])
    assert [curve.above(size) for size in (500, 1e3, 5e4, 1e5, 4e5)] == pytest.approx([1, 1, 1, 1, 4])


def test_the_spread_is_that_of_the_points_around() -> None:
    """10 % below and 20 % above the median at every point, so everywhere."""
    low, high = Curve(points([1e3, 1e4], [1e-3, 2e-3])).spread(3e3)
    assert (np.exp(low), np.exp(high)) == pytest.approx((0.9, 1.2))


@given(st.lists(st.floats(-1.0, 1.0), min_size=len(QUANTILES), max_size=len(QUANTILES)).map(sorted))
def test_a_kept_quantile_is_drawn_at_its_probability(spread: list[float]) -> None:
    """The deviate of 25 % gives the quantile of 25 %."""
    drawn = [factor_of_quantiles(spread, float(ndtri(probability))) for probability in QUANTILES]
    assert drawn == pytest.approx(np.exp(spread))


def test_deciles_are_drawn_at_their_probabilities_and_the_median_is_one() -> None:
    """Log-normal on either side."""
    low, high = np.log(0.8), np.log(1.5)
    deviates = (float(ndtri(0.1)), 0.0, float(ndtri(0.9)))
    assert [factor_of_deciles(low, high, deviate) for deviate in deviates] == pytest.approx([0.8, 1.0, 1.5])
    assert factor_of_quantiles((), 2.0) == 1.0


FIT = WorkFit(
    kind="lookup",
    features=("calls", "lookups"),
    coefficients=(1e-5, 2e-9),
    residuals=(),
    points=(
        WorkPoint(counts=(1, 1e3), median_s=1e-3, low_s=1e-3, high_s=1e-3),
        WorkPoint(counts=(1, 1e5), median_s=1e-3, low_s=1e-3, high_s=1e-3),
    ),
)


def test_work_is_the_sum_of_coefficient_times_count() -> None:
    """10 us a call and 2 ns a row; a rank without work takes no time."""
    counts = {"calls": np.array([1.0, 0.0]), "lookups": np.array([1e4, 0.0]), "tables": np.array([3.0, 0.0])}
    assert fitted_seconds(FIT, counts).tolist() == pytest.approx([3e-5, 0.0])


@given(st.floats(1.0, 1e9))
def test_work_beyond_what_was_measured_is_known_by_its_factor(lookups: float) -> None:
    """More than 100,000 rows on the rank that has most."""
    found = above_range(FIT, {"calls": np.array([1.0, 0.0]), "lookups": np.array([lookups, 0.0])})
    assert found == ({"lookups": pytest.approx(lookups / 1e5)} if lookups > 1e5 * (1 + 1e-9) else {})


def test_a_curve_goes_through_means_where_they_are_known() -> None:
    """A step is a sum, and means add up."""
    known, unknown = (
        SizePoint(nbytes=size, median_s=1.0, low_s=0.5, high_s=4.0, mean_s=mean)
        for size, mean in ((1e3, 1.5), (1e6, 0.0))
    )
    assert Curve([known]).seconds(1e3) == pytest.approx(1.5)
    assert Curve([unknown]).seconds(1e6) == pytest.approx(1.0)


def test_what_work_suffers_is_between_the_points_and_never_beyond_them() -> None:
    """1.2 at 1 kB and 2.7 at 100 kB: their geometric mean at 10 kB, the nearest outside."""
    points = [
        BesidePoint(nbytes=size, median_s=1.0, low_s=1.0, high_s=1.0, slows=slows)
        for size, slows in ((1e3, 1.2), (1e5, 2.7))
    ]
    assert [Beside(points).slows(size) for size in (1.0, 1e3, 1e4, 1e5, 1e9)] == pytest.approx(
        [1.2, 1.2, (1.2 * 2.7) ** 0.5, 2.7, 2.7]
    )
