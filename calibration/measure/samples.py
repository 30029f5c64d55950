"""Times of repeated runs and what they amount to: median and deciles without outliers, and whether they are enough."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foreshard.simulator.measured.profile import Point

__all__ = ["OUTLIER_RULE", "enough", "kept", "point_of"]

FloatArray = NDArray[np.float64]

_MAD_TO_SIGMA = 1.4826  # of a normal distribution
_FAR = 5.0
_NEAR = log(1.2)  # runs within 20 % of the median are no outliers, however still the others
_PRECISE = 0.01
OUTLIER_RULE = (
    "outliers lie further from the median of logarithms than 5 x 1.4826 x their median absolute deviation, and than "
    "20 %; they are counted and left out of all else"
)


def kept(times_s: ArrayLike) -> NDArray[np.bool_]:
    """Return which of the times [runs] are no outliers, by OUTLIER_RULE."""
    away, sigma = _spread(times_s)
    near: NDArray[np.bool_] = away <= max(_FAR * sigma, _NEAR)
    return near


def point_of(times_s: ArrayLike) -> Point:
    """Return median, deciles and mean in seconds of times [runs], without the outliers, which are counted."""
    times = np.asarray(times_s, dtype=np.float64)
    near = kept(times)
    low, median, high = np.quantile(times[near], [0.1, 0.5, 0.9]).tolist()
    outliers = int(len(times) - near.sum())
    return Point(
        median_s=median, low_s=low, high_s=high, mean_s=float(times[near].mean()), runs=len(times), outliers=outliers
    )


def enough(times_s: ArrayLike) -> bool:
    """Return whether the median of times [runs] is known to about 1 % (1.25 sigma / sqrt(n), of logarithms)."""
    _, sigma = _spread(times_s)
    return 1.25 * sigma / sqrt(np.size(times_s)) < _PRECISE


def _spread(times_s: ArrayLike) -> tuple[FloatArray, float]:
    """How far each time is from the median, [runs], and the robust standard deviation, both of logarithms."""
    logs = np.log(np.asarray(times_s, dtype=np.float64))
    away = np.abs(logs - np.median(logs))
    return away, float(_MAD_TO_SIGMA * np.median(away))
