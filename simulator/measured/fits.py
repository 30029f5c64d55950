"""Seconds of work by what it is counted in, as a profile's fits have it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.measured.profile import WorkFit

__all__ = ["fitted_seconds", "outside_range"]

FloatArray = NDArray[np.float64]

_WITHIN = 1e-9


def fitted_seconds(fit: WorkFit, counts: Mapping[str, FloatArray]) -> FloatArray:
    """Return coefficient times count, summed over the fit's features, [ranks]; `counts` [ranks] by feature."""
    terms = [slope * counts[name] for name, slope in zip(fit.features, fit.coefficients, strict=True)]
    return np.asarray(np.sum(terms, axis=0))


def outside_range(fit: WorkFit, counts: Mapping[str, FloatArray]) -> dict[str, float]:
    """Return by feature how far the largest count lies above, or the smallest above 0 below, what was measured.

    As factors above 1, of features whose coefficient is not 0; empty inside the range, and where the fit keeps no
    points.
    """
    found = {}
    for column, (name, slope) in enumerate(zip(fit.features, fit.coefficients, strict=True)):
        measured = [point.counts[column] for point in fit.points if point.counts[column] > 0]
        asked = counts[name][counts[name] > 0]
        if slope > 0 and measured and len(asked):
            factor = max(float(asked.max()) / max(measured), min(measured) / float(asked.min()))
            if factor > 1 + _WITHIN:
                found[name] = factor
    return found
