"""Seconds of work by what it is counted in, as a profile's fits have it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.measured.profile import WorkFit

__all__ = ["above_range", "fitted_seconds"]

FloatArray = NDArray[np.float64]

_WITHIN = 1e-9


def fitted_seconds(fit: WorkFit, counts: Mapping[str, FloatArray]) -> FloatArray:
    """Return coefficient times count, summed over the fit's features, [ranks]; `counts` [ranks] by feature.

    What an operation does not count, as int8 elements of one that encodes to fp16, it has none of.
    """
    total = np.zeros(len(next(iter(counts.values()))))
    for name, slope in zip(fit.features, fit.coefficients, strict=True):
        total += slope * counts.get(name, 0.0)
    return total


def above_range(fit: WorkFit, counts: Mapping[str, FloatArray]) -> dict[str, float]:
    """Return by feature how far the largest count lies above what was measured, as a factor above 1.

    Of features whose coefficient is not 0, where the fit keeps points. Counts below the measured ones lie between them
    and no work at all, which takes the time of a call: there nothing is extrapolated.
    """
    found = {}
    for column, (name, slope) in enumerate(zip(fit.features, fit.coefficients, strict=True)):
        measured = max((point.counts[column] for point in fit.points), default=0.0)
        asked = float(counts[name].max()) if name in counts else 0.0
        if slope > 0 and measured > 0 and asked > measured * (1 + _WITHIN):
            found[name] = asked / measured
    return found
