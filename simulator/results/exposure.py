"""Where the time of a step goes on one rank: computing, waiting for a stage, or idle while the host issues work.

A rank's compute stream is busy or it is not; a span in which its device waits for the next launch of the host is idle
in so far. Each gap is followed backwards from its end: the operation on another
stream that ended last before it is what the compute stream waited for, and before that operation's start the one that
ended last before then. What no such operation covers is idle (launches, the host). So the parts sum to the step time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.program import STAGES, Stage
from foreshard.simulator.job.trace import StepTrace

__all__ = ["Breakdown", "StageTime", "breakdown", "slowest_rank"]

FloatArray = NDArray[np.float64]
Interval = tuple[float, float]

_PERIODS = range(-2, 3)  # an operation of the pipeline may run a step or two before or after the reported one


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTime:
    """One stage on one rank, in seconds.

    `time_s`: any operation of the stage runs; `compute_s`: it works on the compute stream; `exposed_s`: no compute
    runs and the compute stream waits for it.
    """

    time_s: float
    compute_s: float
    exposed_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """A step of one rank: its stages, the exposed seconds of every operation, and idle seconds.

    Compute and exposed seconds of all stages and idle seconds sum to `step_time_s`.
    """

    rank: int
    step_time_s: float
    stages: dict[Stage, StageTime]
    exposed_s: dict[str, float]
    idle_s: float

    @property
    def compute_s(self) -> float:
        """Seconds in which the device works on the compute stream."""
        return sum(stage.compute_s for stage in self.stages.values())

    def mixed(self, other: Breakdown, weight: float) -> Breakdown:
        """The average of this step and `other`, which is `weight` of all steps; operations of either are kept."""

        def mean(a: float, b: float) -> float:
            return a + (b - a) * weight

        stages = {
            name: StageTime(
                time_s=mean(mine.time_s, theirs.time_s),
                compute_s=mean(mine.compute_s, theirs.compute_s),
                exposed_s=mean(mine.exposed_s, theirs.exposed_s),
            )
            for (name, mine), theirs in zip(self.stages.items(), other.stages.values(), strict=True)
        }
        names = {**self.exposed_s, **other.exposed_s}
        return Breakdown(
            rank=self.rank,
            step_time_s=mean(self.step_time_s, other.step_time_s),
            stages=stages,
            exposed_s={name: mean(self.exposed_s.get(name, 0.0), other.exposed_s.get(name, 0.0)) for name in names},
            idle_s=mean(self.idle_s, other.idle_s),
        )


def slowest_rank(trace: StepTrace) -> int:
    """The rank the others wait for: the one that waits least in its collectives; the lowest of several."""
    return int(np.argmin(np.round(np.nansum(trace.wait_s, axis=0), 12)))


def breakdown(trace: StepTrace, rank: int) -> Breakdown:
    """Return where one rank's time goes in one step of `trace`."""
    period = trace.step_time_s
    on_compute = [index for index, op in enumerate(trace.ops) if op.stream == "compute"]
    # An operation in which the rank has no part is none of its time.
    start, stop = np.nan_to_num(trace.start_s[:, rank]), np.nan_to_num(trace.end_s[:, rank])
    spans = list(zip(start.tolist(), stop.tolist(), strict=True))
    end = max((spans[index][1] for index in on_compute), default=period)
    window = (end - period, end)
    busy = {index: _clipped([spans[index]], window) for index in on_compute}
    others = [
        (start + shift * period, stop + shift * period, index)
        for index, (start, stop) in enumerate(spans)
        if index not in busy and stop > start
        for shift in _PERIODS
    ]
    exposed, idle = _attribute(list(_gaps([part for parts in busy.values() for part in parts], window)), others)
    working = {index: _working(trace, index, rank) * _length(parts) for index, parts in busy.items()}
    idle += sum(_length(parts) - working[index] for index, parts in busy.items())
    return Breakdown(
        rank=rank,
        step_time_s=period,
        stages={stage: _stage(trace, stage, spans, working, exposed) for stage in STAGES},
        exposed_s={trace.ops[index].name: seconds for index, seconds in sorted(exposed.items())},
        idle_s=idle,
    )


def _stage(
    trace: StepTrace,
    stage: Stage,
    spans: list[Interval],
    working: dict[int, float],
    exposed: dict[int, float],
) -> StageTime:
    members = [index for index, op in enumerate(trace.ops) if op.stage == stage]
    return StageTime(
        time_s=_length(spans[index] for index in members),
        compute_s=sum(working.get(index, 0.0) for index in members),
        exposed_s=sum(exposed.get(index, 0.0) for index in members),
    )


def _working(trace: StepTrace, index: int, rank: int) -> float:
    """Share of an operation's span in which the device works instead of waiting for launches."""
    span = float(trace.end_s[index, rank] - trace.start_s[index, rank])
    if not trace.launch_s.size or not span > 0:
        return 1.0
    return 1.0 - float(trace.launch_s[index, rank]) / span


def _attribute(gaps: list[Interval], others: list[tuple[float, float, int]]) -> tuple[dict[int, float], float]:
    """Seconds of the gaps by the operation waited for, and those that no operation explains."""
    exposed: dict[int, float] = {}
    idle = 0.0
    for begin, now in gaps:
        while now > begin:
            waited = _last_before(now, others)
            stop = begin if waited is None else max(begin, min(waited[1], now))
            idle += now - stop
            now = stop
            if waited is not None and now > begin:
                start = max(begin, waited[0])
                exposed[waited[2]] = exposed.get(waited[2], 0.0) + now - start
                now = start
    return exposed, idle


def _last_before(now: float, others: list[tuple[float, float, int]]) -> tuple[float, float, int] | None:
    """The operation that ended last, up to `now`; of several the one that began first, then the first issued."""
    tolerance = 1e-9 * max(abs(now), 1e-6)
    ended = [other for other in others if other[1] <= now + tolerance and other[0] < now]
    return max(ended, key=lambda other: (other[1], -other[0], -other[2]), default=None)


def _clipped(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    parts = ((max(start, window[0]), min(stop, window[1])) for start, stop in intervals)
    return [(start, stop) for start, stop in parts if stop > start]


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _length(intervals: Iterable[Interval]) -> float:
    return sum(stop - start for start, stop in _merged(intervals))


def _gaps(busy: list[Interval], window: Interval) -> Iterator[Interval]:
    """What of `window` no busy interval covers."""
    now = window[0]
    for start, stop in _merged(busy):
        if start > now:
            yield now, start
        now = max(now, stop)
    if window[1] > now:
        yield now, window[1]
