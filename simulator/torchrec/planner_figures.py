"""What the planner that made an imported plan said of it: carried in the scenario's assumptions, under fixed names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foreshard.simulator.job.scenario import Assumption

__all__ = ["PlannerFigures", "figures_of", "planner_figures"]

_NAMES = {
    "rating_s": "planner.rating",
    "hbm_bytes": "planner.fullest_rank_hbm",
    "shards_hbm_bytes": "planner.fullest_rank_shards_hbm",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannerFigures:
    """The planner's own figures: `rating_s` of its slowest rank and bytes of its fullest; None if not said.

    `hbm_bytes` counts shards, dense tensors and features (KJT), `shards_hbm_bytes` shards with their buffers.
    """

    source: str
    rating_s: float | None = None
    hbm_bytes: float | None = None
    shards_hbm_bytes: float | None = None


def planner_figures(planner: Mapping[str, Any], source: str) -> Iterator[Assumption]:
    """Yield the rating and the fullest rank's HBM that a plan file's `planner` holds, as assumptions.

    What it prints as a rank's HBM is of shards, dense tensors and features together (meta-pytorch/torchrec
    planner/stats.py).
    """
    ranks = [row for row in _rows(planner.get("ranks")) if isinstance(row, Mapping)]
    totals = [_number(row["perf_ms"].get("total")) for row in ranks if isinstance(row.get("perf_ms"), Mapping)]
    rating = _number(planner.get("max_perf_ms")) or max(filter(None, totals), default=None)
    if rating is not None:
        yield Assumption(name=_NAMES["rating_s"], value=rating / 1e3, unit="s", source=source)
    hbm = max(filter(None, (_number(row.get("hbm_bytes")) for row in ranks)), default=None)
    if hbm is None:
        return
    yield Assumption(name=_NAMES["hbm_bytes"], value=hbm, unit="bytes", source=source)
    dense, features = _number(planner.get("dense_hbm_bytes")), _number(planner.get("kjt_hbm_bytes"))
    if dense is not None and features is not None and dense + features < hbm:
        yield Assumption(
            name=_NAMES["shards_hbm_bytes"], value=hbm - dense - features, unit="bytes",
            source=f"{source}: less its dense and KJT storage",
        )  # fmt: skip


def figures_of(assumptions: Sequence[Assumption]) -> PlannerFigures | None:
    """Return the planner's own figures that a scenario carries; None without any."""
    given = {one.name: one for one in assumptions if _number(one.value) is not None}
    found = {field: given[name] for field, name in _NAMES.items() if name in given}
    if not found:
        return None
    first = next(iter(found.values()))
    return PlannerFigures(source=first.source, **{field: _number(one.value) for field, one in found.items()})


def _rows(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
