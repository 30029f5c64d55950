"""Residuals drawn again: what a measured spread makes of a predicted time, given a standard normal deviate."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np
from scipy.special import ndtri

from foreshard.simulator.measured.profile import QUANTILES

__all__ = ["factor_of_deciles", "factor_of_quantiles"]

_AT = ndtri(np.array(QUANTILES))  # standard normal deviates of the probabilities at which spreads are kept
_DECILE = float(ndtri(0.9))


def factor_of_quantiles(spread: Sequence[float], deviate: float) -> float:
    """Return measured over predicted at a standard normal `deviate`; 1 where the spread is empty.

    Between the QUANTILES logarithms are interpolated over deviates, so a log-normal spread stays one; beyond the
    outermost nothing is known, and their value is kept.
    """
    return exp(float(np.interp(deviate, _AT, spread))) if len(spread) else 1.0


def factor_of_deciles(low: float, high: float, deviate: float) -> float:
    """Return measured over median at a standard normal `deviate`: log-normal on either side of the median.

    `low` and `high` are the logarithms of the 10 % and the 90 % quantile over the median.
    """
    return exp(deviate / _DECILE * (high if deviate > 0 else -low))
