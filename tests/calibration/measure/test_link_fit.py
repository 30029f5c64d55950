"""Latency and rate of measured points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.calibration.measure.link_fit import fit_alpha_beta, fit_sum
from foreshard.simulator.measured.profile import SizePoint

SIZES = 2.0 ** np.arange(10, 29)


def points(times):
    return [SizePoint(nbytes=float(n), median_s=t, low_s=t, high_s=t) for n, t in zip(SIZES, times, strict=True)]


@given(st.floats(1e-6, 1e-2), st.floats(1e7, 1e10))
def test_exact_points_give_their_latency_and_rate_back(latency, rate):
    """Within a thousandth, and no residuals."""
    fit = fit_alpha_beta(points((latency + SIZES / rate).tolist()))
    times = fit.latency_s + SIZES / fit.bytes_per_s
    np.testing.assert_allclose(times, latency + SIZES / rate, rtol=1e-3)
    assert max(map(abs, fit.residuals)) < 1e-3


def test_one_wrong_point_hardly_moves_the_fit():
    """A median ten times too long: latency and rate stay within 3 %, and the residual shows it."""
    times = 100e-6 + SIZES / 1e9
    times[12] *= 10
    fit = fit_alpha_beta(points(times.tolist()))
    assert fit.latency_s == pytest.approx(100e-6, rel=0.03)
    assert fit.bytes_per_s == pytest.approx(1e9, rel=0.03)
    assert fit.residuals[12] == pytest.approx(np.log(10), rel=0.05)


def test_coefficients_of_a_sum_are_found_and_never_negative():
    """Rows times (2, 3); and where nothing depends on a column, its coefficient is small, not below zero."""
    rows = np.array([[1.0, 0.0], [1.0, 2.0], [1.0, 8.0], [2.0, 1.0]])
    assert fit_sum(rows, rows @ [2.0, 3.0], [1.0, 1.0]) == pytest.approx([2.0, 3.0], rel=1e-3)
    assert min(fit_sum(rows, rows @ [2.0, 0.0], [1.0, 1.0])) >= 0
