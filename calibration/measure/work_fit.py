"""Fits of work: seconds as a sum of what the work is counted in, no term negative, robust on logarithms of residuals.

Kinds that some operation does together are fitted together: its time is the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from foreshard.calibration.measure.device_records import WorkRecord
from foreshard.calibration.measure.samples import point_of
from foreshard.simulator.job.work import FEATURES, WORK_KINDS, WorkKind
from foreshard.simulator.measured.profile import QUANTILES, Point, WorkFit, WorkPoint

__all__ = ["fit_work"]

FloatArray = NDArray[np.float64]

_SOFT = 0.1  # residuals beyond 10 % count for less and less (SciPy's soft_l1)
_TINY = 1e-12


def fit_work(records: Iterable[WorkRecord]) -> tuple[WorkFit, ...]:
    """Return a fit for every kind of work that was measured, in the order of WORK_KINDS.

    The point of an operation is the mean over the steps of the rank in the middle: ranks that work at the same time
    share what the machine has, and a step waits for all.
    """
    kept = [record for record in records if record.works]
    together = nx.Graph()
    for record in kept:
        kinds = [kind for kind, _ in record.works]
        together.add_nodes_from(kinds)
        nx.add_path(together, kinds)
    fits = [
        fit
        for kinds in nx.connected_components(together)
        for fit in _fit(sorted(kinds), [record for record in kept if record.works[0][0] in kinds])
    ]
    return tuple(sorted(fits, key=lambda fit: WORK_KINDS.index(fit.kind)))


def _fit(kinds: Sequence[WorkKind], records: Sequence[WorkRecord]) -> list[WorkFit]:
    columns = [(kind, name) for kind in kinds for name in FEATURES[kind]]
    rows, points = zip(*map(_point, _by_operation(records)), strict=True)
    counts = np.array([[row.get(column, 0.0) for column in columns] for row in rows])
    measured = np.array([point.expected_s for point in points])
    used = np.flatnonzero(counts.any(axis=0))
    slopes = np.zeros(len(columns))
    slopes[used] = _slopes(counts[:, used], measured)
    logs = np.log(measured / np.maximum(counts @ slopes, _TINY))
    return [_of_kind(kind, columns, slopes, counts, logs, points) for kind in kinds]


def _by_operation(records: Sequence[WorkRecord]) -> list[list[WorkRecord]]:
    """The records of each operation of each job, one a rank."""
    key = lambda record: (record.job, record.op)  # noqa: E731
    return [list(group) for _, group in groupby(sorted(records, key=key), key=key)]


def _point(group: Sequence[WorkRecord]) -> tuple[dict[tuple[WorkKind, str], float], Point]:
    """Counts, averaged over the ranks, and the time, whose spread is that over steps of the rank in the middle."""
    middle = sorted(group, key=lambda record: float(np.median(record.times_s)))[len(group) // 2]
    counts: dict[tuple[WorkKind, str], float] = {}
    for record in group:
        for kind, features in record.works:
            for name, count in features.items():
                counts[kind, name] = counts.get((kind, name), 0.0) + count / len(group)
    return counts, point_of(middle.times_s)


def _slopes(counts: FloatArray, measured: FloatArray) -> FloatArray:
    """Coefficients >= 0 with the smallest robust sum of squared logarithms of measured over fitted."""
    scale = counts.max(axis=0)
    relative = counts / scale / measured[:, None]  # what each term adds, as a share of the measured time
    start, _ = nnls(relative, np.ones(len(measured)))
    floor = max(float(start.max()), _TINY) * 1e-6

    def residuals(logs: FloatArray) -> FloatArray:
        return np.log(np.maximum(relative @ np.exp(logs), _TINY))

    found = least_squares(residuals, np.log(np.maximum(start, floor)), loss="soft_l1", f_scale=_SOFT)
    slopes = np.exp(found.x)
    shares = (relative * slopes).max(axis=0)
    return np.asarray(np.where(shares > 1e-3, slopes, 0.0) / scale)  # a term that never adds 0.1 % is none


def _of_kind(
    kind: WorkKind,
    columns: Sequence[tuple[WorkKind, str]],
    slopes: FloatArray,
    counts: FloatArray,
    logs: FloatArray,
    points: Sequence[Point],
) -> WorkFit:
    own = [place for place, (owner, _) in enumerate(columns) if owner == kind]
    kept = [place for place in own if slopes[place] > 0] or own[:1]
    rows = np.flatnonzero(counts[:, own].any(axis=1))
    return WorkFit(
        kind=kind,
        features=tuple(columns[place][1] for place in kept),
        coefficients=tuple(slopes[kept].tolist()),
        residuals=tuple(np.quantile(logs[rows], QUANTILES).tolist()),
        points=tuple(
            WorkPoint(
                counts=tuple(counts[row, kept].tolist()), **asdict(points[row]),
            )
            for row in rows.tolist()
        ),
    )  # fmt: skip
