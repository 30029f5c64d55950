"""Single measured times of collectives, and the curves that they make together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from foreshard.calibration.measure.samples import point_of
from foreshard.simulator.comms.measured_times import shape_words
from foreshard.simulator.job.program import CollectiveKind
from foreshard.simulator.measured.profile import CollectiveCurve, SizePoint
from foreshard.topologies.units import format_bytes

__all__ = ["SAME_POINT_RULE", "Row", "curves_of", "title_of", "unlike"]

SAME_POINT_RULE = (
    "a size that several rows measure has their median, and the interval from the 10 % to the 90 % quantile of them; a "
    "collective and shape that logs measure is taken from logs alone, not from traces"
)
_UNLIKE = 1.2  # rows of one size that differ by more are told; the same as what makes an outlier of a run


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One measured time of a collective over all ranks of a world, in seconds, and where it stands.

    `ranks_per_node` the largest first; `nbytes` as nccl-tests counts it.
    """

    kind: CollectiveKind
    ranks_per_node: tuple[int, ...]
    nbytes: float
    time_s: float
    where: str


def curves_of(rows: Iterable[Row]) -> tuple[CollectiveCurve, ...]:
    """Return a curve for every collective and shape, in order of both; points by SAME_POINT_RULE."""
    curves: dict[tuple[CollectiveKind, tuple[int, ...]], dict[float, list[float]]] = {}
    for row in rows:
        curves.setdefault((row.kind, row.ranks_per_node), {}).setdefault(row.nbytes, []).append(row.time_s)
    return tuple(
        CollectiveCurve(kind=kind, ranks_per_node=shape, points=tuple(_points(sizes)))
        for (kind, shape), sizes in sorted(curves.items())
    )


def _points(sizes: dict[float, list[float]]) -> Iterable[SizePoint]:
    return (SizePoint(nbytes=nbytes, **asdict(point_of(times))) for nbytes, times in sorted(sizes.items()))


def title_of(curve: CollectiveCurve) -> str:
    """Return what a curve is of in words: "all_to_all of 8+8 ranks"."""
    return f"{curve.kind} of {shape_words(curve.ranks_per_node)} ranks"


def unlike(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for every size whose rows differ by more than 20 %."""
    same: dict[tuple[CollectiveKind, tuple[int, ...], float], list[Row]] = {}
    for row in rows:
        same.setdefault((row.kind, row.ranks_per_node, row.nbytes), []).append(row)
    return [_unlike(group) for group in same.values() if _ratio(group) > _UNLIKE]


def _ratio(group: Sequence[Row]) -> float:
    times = [row.time_s for row in group]
    return max(times) / min(times)


def _unlike(group: Sequence[Row]) -> str:
    fastest, slowest = min(group, key=lambda row: row.time_s), max(group, key=lambda row: row.time_s)
    first = group[0]
    return (
        f"{first.kind} of {shape_words(first.ranks_per_node)} ranks at {format_bytes(first.nbytes)} took "
        f"{fastest.time_s * 1e6:.1f} us in {fastest.where}, and {slowest.time_s * 1e6:.1f} us in {slowest.where}: the "
        "median is taken, and intervals hold both"
    )
