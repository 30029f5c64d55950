"""Seconds over size through measured points: monotone, and known to be outside the range that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.measured.profile import BesidePoint, SizePoint

__all__ = ["Beside", "Curve"]

FloatArray = NDArray[np.float64]

_WITHIN = 1e-9  # rounding of sizes that are the first or the last one measured


class Curve:
    """Seconds of a collective or transfer of any size, from measured means: a step is a sum of what it waits for.

    Between points logarithms of seconds over logarithms of bytes are interpolated by monotone cubics (SciPy's PCHIP,
    Fritsch and Butland 1984), which pass through every point and do not overshoot. More bytes never take less time:
    means that say so are noise, and are replaced by their isotonic regression (logarithms, weighted by runs), the
    nearest ones that do not fall. Below the first point the time is that of the first, latency; above the last one it
    grows along the line through the last two points, but no faster than the size, as latency and a rate never do; and
    with the size where there is one point only.
    """

    def __init__(self, points: Sequence[SizePoint]) -> None:
        from scipy.interpolate import PchipInterpolator  # a third of a second, which no step without a profile needs
        from scipy.optimize import isotonic_regression

        self._x = np.log([point.nbytes for point in points])
        means = np.log([point.expected_s for point in points])
        fitted = isotonic_regression(means, weights=[float(point.runs) for point in points])
        self._y: FloatArray = np.asarray(fitted.x)
        self._low = np.minimum(np.log([point.low_s for point in points]) - self._y, 0.0)
        self._high = np.maximum(np.log([point.high_s for point in points]) - self._y, 0.0)
        self._between = PchipInterpolator(self._x, self._y) if len(points) > 1 else None
        last = 1.0 if len(points) == 1 else float((self._y[-1] - self._y[-2]) / (self._x[-1] - self._x[-2]))
        self._slope = min(1.0, last)

    @property
    def range_bytes(self) -> tuple[float, float]:
        """The smallest and the largest size that was measured."""
        return exp(float(self._x[0])), exp(float(self._x[-1]))

    @property
    def latency_s(self) -> float:
        """Seconds at the smallest size."""
        return exp(float(self._y[0]))

    def seconds(self, nbytes: float) -> float:
        """Seconds for `nbytes` above 0."""
        x = log(nbytes)
        if x <= self._x[0]:
            return self.latency_s
        if x >= self._x[-1] or self._between is None:
            return exp(float(self._y[-1] + self._slope * (x - self._x[-1])))
        return exp(float(self._between(x)))

    def below(self, nbytes: float) -> float:
        """How far a size is below the measured range, as a factor above 1; 1 if it is not."""
        return _factor(float(self._x[0]) - log(nbytes))

    def above(self, nbytes: float) -> float:
        """How far a size is above the measured range, as a factor above 1; 1 if it is not."""
        return _factor(log(nbytes) - float(self._x[-1]))

    def spread(self, nbytes: float) -> tuple[float, float]:
        """The 10 % and the 90 % quantile of single runs, as logarithms over `seconds`: not above 0, not below 0."""
        x = log(nbytes)
        return float(np.interp(x, self._x, self._low)), float(np.interp(x, self._x, self._high))


class Beside(Curve):
    """Seconds of a collective of any size while all ranks compute, and what their work suffers."""

    def __init__(self, points: Sequence[BesidePoint]) -> None:
        super().__init__(points)
        self._slows = np.log([point.slows for point in points])

    def slows(self, nbytes: float) -> float:
        """How many times as long the ranks' work takes beside it; between points by logarithms, else the nearest."""
        return exp(float(np.interp(log(nbytes), self._x, self._slows)))


def _factor(beyond: float) -> float:
    return exp(beyond) if beyond > _WITHIN else 1.0
