"""Fitting a machine's collective constants to measured collectives, and predicting measured rows again.

Constants are fitted on the rows given and nothing else; what validates them must be other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.machine_constants import machine_constants
from foreshard.simulator.comms.single import alone_s, uniform_collective
from foreshard.simulator.job.program import CollectiveKind
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.machine import Sourced

__all__ = ["MeasuredCollective", "fit_constants", "predict_rows", "relative_errors", "with_constants"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCollective:
    """One measured row: a collective of nccl-tests' size `nbytes` over all ranks of `nodes` nodes."""

    kind: CollectiveKind
    nodes: int
    nbytes: float
    time_s: float


def with_constants(cluster: Cluster, values: Mapping[str, float], source: str) -> Cluster:
    """Return the same cluster with these constants of its own, in base units, all from `source`."""
    known = machine_constants(cluster)
    own = {name: Sourced(value=value, unit=_unit(known, name), source=source) for name, value in values.items()}
    return cluster.with_constants(own)


def _unit(known: Mapping[str, Sourced], name: str) -> str:
    return known[name].unit if name in known else "s" if name.endswith("_s") else "1"


def predict_rows(cluster_of: Callable[[int], Cluster], rows: Sequence[MeasuredCollective]) -> NDArray[np.float64]:
    """Return the predicted seconds of every row, [rows]; `cluster_of` gives the machine with so many nodes."""
    return np.array([_predict(cluster_of(row.nodes), row) for row in rows])


def _predict(cluster: Cluster, row: MeasuredCollective) -> float:
    (lowered,) = lower(cluster, uniform_collective(row.kind, range(cluster.size), row.nbytes))
    return alone_s(cluster, lowered)


def relative_errors(cluster_of: Callable[[int], Cluster], rows: Sequence[MeasuredCollective]) -> NDArray[np.float64]:
    """Return predicted / measured - 1 of every row, [rows]."""
    measured: NDArray[np.float64] = np.array([row.time_s for row in rows])
    return predict_rows(cluster_of, rows) / measured - 1


def fit_constants(
    cluster_of: Callable[[int], Cluster], rows: Sequence[MeasuredCollective], start: Mapping[str, float]
) -> dict[str, float]:
    """Return values of the constants named in `start` that make the logarithms of predicted over measured smallest.

    Least squares (scipy.optimize.least_squares) from the values in `start`, in relative steps; deterministic.
    """
    names = list(start)
    scale = np.array([start[name] for name in names])

    def residuals(factors: NDArray[np.float64]) -> NDArray[np.float64]:
        values = dict(zip(names, (factors * scale).tolist(), strict=True))
        errors = relative_errors(lambda nodes: with_constants(cluster_of(nodes), values, "being fitted"), rows)
        return np.asarray(np.log1p(errors))

    fitted = least_squares(residuals, np.ones(len(names)), bounds=(0.05, 20.0), diff_step=1e-4)
    return dict(zip(names, (fitted.x * scale).tolist(), strict=True))
