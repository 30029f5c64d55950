"""Medians, deciles and outliers of repeated runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.calibration.measure.samples import enough, kept, point_of

TIMES = st.lists(st.floats(1e-6, 1e2), min_size=1, max_size=60)


@given(TIMES)
def test_a_point_is_in_order_and_keeps_at_least_half_of_its_runs(times):
    """low <= median <= high, and never more outliers than others: a profile refuses anything else."""
    point = point_of(times)
    assert min(times) * (1 - 1e-12) <= point.low_s <= point.median_s <= point.high_s <= max(times) * (1 + 1e-12)
    assert point.runs == len(times)
    assert point.outliers <= len(times) / 2


@given(TIMES, st.floats(1e-3, 1e3))
def test_another_unit_changes_no_outlier(times, factor):
    """Logarithms are compared."""
    assert kept(times).sum() == pytest.approx(kept(np.array(times) * factor).sum(), abs=1)


def test_one_run_that_was_interrupted_counts_as_an_outlier_and_moves_nothing():
    """Ten runs near 1 ms and one of 50 ms: the median and the deciles are those of the ten."""
    quiet = 1e-3 * (1 + 0.01 * np.arange(10))
    assert point_of([*quiet, 50e-3]).outliers == 1
    assert point_of([*quiet, 50e-3]).high_s == point_of(quiet).high_s


def test_runs_within_a_fifth_are_never_outliers():
    """However still all others were."""
    assert kept([1.0] * 20 + [1.19]).all()
    assert not kept([1.0] * 20 + [1.21]).all()


def test_more_runs_are_needed_where_they_differ_more():
    """1.25 sigma / sqrt(n) below 1 %: a spread of 1 % is enough after a few runs, one of 30 % is not."""
    rng = np.random.default_rng(0)
    assert enough(np.exp(rng.normal(0, 0.01, 20)))
    assert not enough(np.exp(rng.normal(0, 0.3, 20)))
    assert enough(np.exp(rng.normal(0, 0.3, 3000)))


@given(TIMES)
def test_the_mean_is_that_of_the_runs_that_are_no_outliers(times):
    near = np.array(times)[kept(times)]
    assert point_of(times).mean_s == pytest.approx(near.sum() / len(near))
