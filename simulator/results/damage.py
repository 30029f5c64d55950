"""What damaged links do to a step: how long it would take without the damage or, if no longer, why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.damage import SAME, UNDAMAGED, apart
from foreshard.simulator.job.program import StepProgram
from foreshard.simulator.job.trace import StepTrace
from foreshard.simulator.results.link_load import LinkLoads
from foreshard.simulator.step.prediction import Prediction

__all__ = ["Damage", "damage_of_step"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """`links` links that match `pattern`, of whose bandwidth `factor` is left.

    A mean step takes `step_time_s`, and `whole_step_time_s` without this damage, while all other damage stays. Without
    it the busiest of these links carries `nbytes` a step; `busy_s` is how long that takes on what is left of it, None
    if nothing is. `reason` says what follows, in words.
    """

    pattern: str
    factor: float
    links: int
    nbytes: float
    busy_s: float | None
    whole_step_time_s: float
    step_time_s: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """JSON values in bytes and seconds."""
        return asdict(self)


def damage_of_step(source: Prediction) -> tuple[Damage, ...]:
    """Return what each pattern of damaged links does to the step of a prediction; empty for a whole machine."""
    degrade = source.cluster.spec.degrade
    return tuple(_damage(source, pattern, factor) for pattern, factor in degrade.items())


def _damage(source: Prediction, pattern: str, factor: float) -> Damage:
    whole = source.on(source.cluster.mended(pattern))
    links = source.cluster.links_named(pattern)
    moved = np.max([trace.link_bytes[links] for _, trace in _steps(whole)], axis=0)
    usable = source.cluster.link_usable[links]
    whole_usable = whole.cluster.link_usable[links]
    busiest = int(np.argmax(np.divide(moved, whole_usable, out=np.zeros(len(links)), where=whole_usable > 0)))
    return Damage(
        pattern=pattern,
        factor=factor,
        links=len(links),
        nbytes=float(moved[busiest]),
        busy_s=float(moved[busiest] / usable[busiest]) if usable[busiest] > 0 else None,
        whole_step_time_s=whole.step_time_s,
        step_time_s=source.step_time_s,
        reason=_reason(source, whole, links, factor) if moved.any() else "unused: no bytes of this step cross it",
    )


def _steps(source: Prediction) -> Iterator[tuple[StepProgram, StepTrace]]:
    """The steps that the mean step time is made of, with their programs."""
    yield source.program(source.shown_sync), source.trace
    if source.sync is not None and source.shown_sync is None:
        yield source.program("weights"), source.sync.weights


@dataclass(frozen=True, kw_only=True, slots=True)
class _Use:
    """An operation that crosses the damaged links: its seconds with and without the damage, and what bounds it."""

    name: str
    time_s: float
    whole_s: float
    bound_by: str

    @property
    def slower(self) -> bool:
        return self.time_s > self.whole_s * (1 + SAME)

    def words(self) -> str:
        if self.time_s == self.whole_s:
            return f"{self.name} takes {apart('ms', self.time_s)[0]} as before"
        now, whole = apart("ms", self.time_s, self.whole_s)
        return f"{self.name} takes {now} instead of {whole}"


def _reason(source: Prediction, whole: Prediction, links: NDArray[np.int64], factor: float) -> str:
    if factor == 1:
        return UNDAMAGED
    uses = list(_uses(source, whole, links))
    worst = max(uses, key=lambda use: use.time_s - use.whole_s)
    longest = max(uses, key=lambda use: use.whole_s)
    detour = "" if factor else "missing, its bytes go another way; "
    change = source.step_time_s - whole.step_time_s
    if abs(change) > SAME * whole.step_time_s:
        how = "longer" if change > 0 else "shorter, since transfers overlap otherwise"
        return f"{detour}the step takes {apart('ms', abs(change))[0]} {how}: {worst.words()}"
    if worst.slower:
        return f"{detour}no change of the step: {worst.words()}, behind other work"
    if longest.bound_by in {source.cluster.link_name(link) for link in links.tolist()}:
        return f"{detour}no change: what is left of it is more than {longest.name}, the longest over it, takes"
    bound = f"{longest.name}, the longest over it, is bound by {longest.bound_by}"
    return f"{detour}no change, it is not the bottleneck: {bound}"


def _uses(source: Prediction, whole: Prediction, links: NDArray[np.int64]) -> Iterator[_Use]:
    for (program, before), (_, now) in zip(_steps(whole), _steps(source), strict=True):
        loads = LinkLoads(before, program, whole.cluster)
        for index in loads.ops_over_any(links).tolist():
            info = now.ops[index].collective
            yield _Use(
                name=now.ops[index].name,
                time_s=_seconds(now, index),
                whole_s=_seconds(before, index),
                bound_by=info.bottleneck if info else whole.cluster.link_name(loads.narrowest(index)),
            )


def _seconds(trace: StepTrace, index: int) -> float:
    """How long an operation's transfers take: a collective, or copies over the host's links."""
    info = trace.ops[index].collective
    return info.time_s if info is not None else float(trace.copied_s[index].max())
