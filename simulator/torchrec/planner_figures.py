"""What the planner that made an imported plan said of it: carried in the scenario's assumptions, under fixed names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foreshard.simulator.job.scenario import Assumption

__all__ = ["PlannerFigures", "figures_of", "planner_figures"]

_RATING, _HBM = "planner.rating", "planner.fullest_rank_hbm"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannerFigures:
    """The planner's own figures: `rating_s` of its slowest rank, `hbm_bytes` of its fullest; None if not said."""

    rating_s: float | None
    hbm_bytes: float | None
    source: str


def planner_figures(planner: Mapping[str, Any], source: str) -> Iterator[Assumption]:
    """Yield the rating and the fullest rank's HBM that a plan file's `planner` holds, as assumptions."""
    ranks = [row for row in _rows(planner.get("ranks")) if isinstance(row, Mapping)]
    totals = [_number(row["perf_ms"].get("total")) for row in ranks if isinstance(row.get("perf_ms"), Mapping)]
    rating = _number(planner.get("max_perf_ms")) or max(filter(None, totals), default=None)
    if rating is not None:
        yield Assumption(name=_RATING, value=rating / 1e3, unit="s", source=f"as the {source} has it, slowest rank")
    hbm = max(filter(None, (_number(row.get("hbm_bytes")) for row in ranks)), default=None)
    if hbm is not None:
        yield Assumption(name=_HBM, value=hbm, unit="bytes", source=f"as the {source} has it, shards of one rank")


def figures_of(assumptions: Sequence[Assumption]) -> PlannerFigures | None:
    """Return the planner's own figures that a scenario carries; None without any."""
    found = {one.name: one for one in assumptions if one.name in (_RATING, _HBM)}
    rating, hbm = (_number(found[name].value) if name in found else None for name in (_RATING, _HBM))
    if rating is None and hbm is None:
        return None
    return PlannerFigures(rating_s=rating, hbm_bytes=hbm, source=next(iter(found.values())).source)


def _rows(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
