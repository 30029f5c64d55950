"""How far a step may be off: it is simulated again and again with times drawn from what measurements scattered.

A draw moves all work of one kind by one residual of its fit, all collectives of one curve by one factor of its runs,
and everything by the noise from run to run, each independent of the others. What was not measured stays as it is. Draws
are a Latin hypercube over all of these, so that few of them cover every one evenly; they depend on the seed alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from foreshard.simulator.comms.collectives import Lowered
from foreshard.simulator.comms.measured_times import MeasuredCollectives, Timed
from foreshard.simulator.job.program import Collective, Compute, Op, StepProgram
from foreshard.simulator.job.trace import StepTrace
from foreshard.simulator.measured.profile import Profile
from foreshard.simulator.measured.spreads import factor_of_deciles, factor_of_quantiles
from foreshard.topologies.cluster import Cluster

__all__ = ["PROBABILITIES", "Draw", "DrawnStep", "draws", "draws_for", "interval_of", "scatters"]

FloatArray = NDArray[np.float64]

PROBABILITIES = (0.1, 0.9)  # an interval holds what lies between: 80 %
_MOST_DRAWS, _LEAST_DRAWS = 64, 8
_RANK_OPERATIONS = 1 << 18  # of all draws together: 64 draws of 100 ranks with 40 operations


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DrawnStep:
    """One draw: the step with its synchronisation if that happens every step, else without, and the mean step time."""

    trace: StepTrace
    step_time_s: float


def scatters(profile: Profile) -> bool:
    """Whether a profile knows of any spread at all."""
    moved = any(
        point.low_s < point.median_s or point.high_s > point.median_s
        for curve in profile.collectives
        for point in curve.points
    )
    return moved or any((*(fit.residuals for fit in profile.work), profile.noise.compute, profile.noise.collectives))


def draws_for(ranks: int, operations: int) -> int:
    """How many draws a step is worth: 64, and fewer from about 100 ranks on, down to 8."""
    return max(_LEAST_DRAWS, min(_MOST_DRAWS, _RANK_OPERATIONS // (ranks * operations)))


def interval_of(values: Sequence[float]) -> tuple[float, float]:
    """The 10 % and the 90 % quantile of drawn values."""
    low, high = np.quantile(np.asarray(values), PROBABILITIES)
    return float(low), float(high)


class Draw:
    """One draw: what it makes of a program and of its collectives."""

    def __init__(self, profile: Profile, deviates: Mapping[object, float], measured: MeasuredCollectives) -> None:
        self._deviates = deviates
        self._measured = measured
        self._collective_noise = factor_of_quantiles(profile.noise.collectives, deviates["noise of collectives"])
        noise = factor_of_quantiles(profile.noise.compute, deviates["noise of compute"])
        self._work = {fit.kind: noise * factor_of_quantiles(fit.residuals, deviates[fit.kind]) for fit in profile.work}

    def program(self, program: StepProgram) -> StepProgram:
        """The program with all measured work moved."""
        return replace(program, ops=tuple(self._moved(op) for op in program.ops))

    def _moved(self, op: Op) -> Op:
        if not isinstance(op.work, Compute):
            return replace(op, host_s=op.host_s * self._work.get("issue", 1.0))
        seconds = op.work.seconds
        for work in op.work.works:
            seconds = seconds + work.seconds * (self._work.get(work.kind, 1.0) - 1.0)
        return replace(op, work=replace(op.work, seconds=np.maximum(seconds, 0.0)))

    def lower(self, cluster: Cluster, collective: Collective) -> tuple[Lowered, ...]:
        """What each group puts on the links, with all measured collectives moved."""
        lowered, times = self._measured.lower(cluster, collective), self._measured.times(cluster, collective)
        return tuple(_slower(one, self._factor(timed)) for one, timed in zip(lowered, times, strict=True))

    def _factor(self, timed: Timed | None) -> float:
        if timed is None:
            return self._collective_noise
        return self._collective_noise * factor_of_deciles(*timed.spread, self._deviates[timed.key])


def _slower(lowered: Lowered, factor: float) -> Lowered:
    phases = tuple(
        replace(
            phase, latency_s=factor * phase.latency_s, floor_s=factor * phase.floor_s, stretch=factor * phase.stretch
        )
        for phase in lowered.phases
    )
    return replace(lowered, phases=phases, bound_s=min(1.0, factor) * lowered.bound_s)


def draws(profile: Profile, measured: MeasuredCollectives, *, count: int, seed: int) -> Iterator[Draw]:
    """Yield `count` draws of everything that a profile measured."""
    kinds: list[object] = [fit.kind for fit in profile.work]
    names = ["noise of compute", "noise of collectives", *kinds, *measured.curves]
    # Every name takes each of `count` equally likely values once, in an order of its own.
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(count), (len(names), 1)), axis=1)
    for row in ndtri((order.T + 0.5) / count):
        yield Draw(profile, dict(zip(names, row.tolist(), strict=True)), measured)
