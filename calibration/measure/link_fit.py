"""Fits to measured links: latency and rate of every curve, and the constants of gloo's model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from foreshard.simulator.measured.profile import SizePoint

__all__ = ["AlphaBeta", "fit_alpha_beta", "fit_sum"]

FloatArray = NDArray[np.float64]

_SOFT = 0.1  # residuals beyond 10 % count for less and less (SciPy's soft_l1)
_LEAST_S = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaBeta:
    """Seconds = latency_s + nbytes / bytes_per_s, and the logarithms of measured over fitted, [points]."""

    latency_s: float
    bytes_per_s: float
    residuals: tuple[float, ...]


def fit_alpha_beta(points: Sequence[SizePoint]) -> AlphaBeta:
    """Return latency and rate of points in order of size, robust on logarithms (SciPy least_squares, soft_l1)."""
    sizes = np.array([point.nbytes for point in points])
    measured = np.array([point.median_s for point in points])
    rows = np.stack([np.ones(len(sizes)), sizes], axis=1)
    start = [measured[0], max(measured[-1] - measured[0], measured[-1] / 100) / sizes[-1]]
    latency_s, per_byte = fit_sum(rows, measured, start)
    residuals = np.log(measured / (rows @ [latency_s, per_byte]))
    return AlphaBeta(latency_s=latency_s, bytes_per_s=1 / per_byte, residuals=tuple(residuals.tolist()))


def fit_sum(rows: FloatArray, measured: ArrayLike, start: ArrayLike) -> list[float]:
    """Return positive coefficients [columns] for which the logarithms of measured [points] over rows [points, columns]
    times coefficients are small; deterministic."""
    logs = np.log(measured)

    def residuals(log_coefficients: FloatArray) -> FloatArray:
        return np.asarray(np.log(rows @ np.exp(log_coefficients)) - logs)

    first = np.log(np.maximum(start, 1e-30))
    return [float(value) for value in np.exp(least_squares(residuals, first, loss="soft_l1", f_scale=_SOFT).x)]
