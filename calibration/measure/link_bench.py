"""All ranks measure links together: every rank walks the same points in the same order and comes to the same times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foreshard.calibration.launch.gathering import common_offset
from foreshard.calibration.launch.progress import Progress
from foreshard.calibration.launch.timers import Mark, Timer, timer_of
from foreshard.calibration.launch.world import World
from foreshard.calibration.measure.exchanges import Start, all_to_all, collective, ping_pong
from foreshard.calibration.measure.link_plan import (
    UNEVEN,
    GroupShape,
    LinkPlan,
    Pair,
    group_shapes,
    pairs_of,
    uneven_splits,
)
from foreshard.calibration.measure.link_records import Beside, LinkRecord, Wire
from foreshard.calibration.measure.own_work import OwnWork
from foreshard.calibration.measure.samples import enough
from foreshard.calibration.measure.wire import node_bytes
from foreshard.simulator.job.program import CollectiveKind

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["LinkBench", "Task"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Marks = tuple[Mark, list[Mark]]
Run = Callable[[Timer], Marks]  # runs once; the second mark comes when the end is noted

_WARM_UPS = 2
_FEW_RUNS = 3  # of what takes seconds
_MOST_BESIDE = 10  # runs beside work, which take long
_BATCHES = 4  # in which a point is measured at least, so that it can end early
_COUNTED_BYTES = 1 << 20  # from here on all else on the interfaces is below 1 % of what is counted
_UNEVEN_BYTES = (1 << 20, 1 << 23)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One point to measure: its record still without times, who takes part, and what prepares this rank's runs."""

    record: LinkRecord
    label: str
    groups: tuple[IntArray, ...]
    prepare: Callable[[], Run]
    counted: bool = False  # whether one run is to be counted on the interfaces
    beside: Callable[[OwnWork], Run] | None = None  # what prepares runs beside work


class LinkBench:
    """One rank's part in measuring `plan`. `node_of` [ranks]; every method is called by all ranks together."""

    def __init__(self, world: World, progress: Progress, node_of: IntArray, plan: LinkPlan) -> None:
        self._world = world
        self._progress = progress
        self._node_of = node_of
        self._plan = plan
        self._offset_s = common_offset(world).offset_s
        self._work = OwnWork(self._meet) if world.device.type == "cpu" else None

    def curves(self) -> Iterator[list[Task]]:
        """What there is to measure: tasks of rising size that may end early, one list after the other."""
        for shape in group_shapes(self._node_of):
            yield from ([*self._sizes(shape, kind)] for kind in self._plan.kinds)
            if "all_to_all" in self._plan.kinds:
                yield from ([*self._uneven(shape, pattern)] for pattern in UNEVEN)
        yield from ([*self._pair(pair)] for pair in pairs_of(self._node_of))

    def _sizes(self, shape: GroupShape, kind: CollectiveKind) -> Iterator[Task]:
        sizes = self._plan.sizes(shape.members)
        counted = next((size for size in sizes if size >= _COUNTED_BYTES), None)
        for nbytes in sizes:
            label = f"{kind}, {shape}"
            yield Task(
                _record(shape, kind, nbytes),
                label,
                shape.groups.members,
                lambda kind=kind, nbytes=nbytes: self._even(shape, kind, nbytes),
                nbytes == counted,
                lambda work, kind=kind, nbytes=nbytes: self._even(shape, kind, nbytes, work),
            )

    def _even(self, shape: GroupShape, kind: CollectiveKind, nbytes: int, beside: OwnWork | None = None) -> Run:
        # gloo's reduce_scatter copies its input while it is issued: that belongs to what it takes.
        own = kind == "reduce_scatter" and self._world.backend == "gloo"
        start = collective(kind, self._world.group(shape.groups), nbytes, self._world.device)
        if beside is None:
            return _async_run(start, from_issue=own)
        return _working_run(start, beside, self._world.control, from_issue=own)

    def _uneven(self, shape: GroupShape, pattern: str) -> Iterator[Task]:
        for nbytes in _UNEVEN_BYTES:
            if self._plan.smallest <= nbytes <= self._plan.largest:
                splits = uneven_splits(pattern, shape.members, nbytes, self._plan.seed)
                record = replace(_record(shape, "all_to_all", nbytes), pattern=pattern)
                label = f"all_to_all {pattern}, {shape}"
                yield Task(record, label, shape.groups.members, self._split(shape, splits))

    def _split(self, shape: GroupShape, splits: IntArray) -> Callable[[], Run]:
        return lambda: _async_run(all_to_all(self._world.group(shape.groups), splits, self._world.device))

    def _pair(self, pair: Pair) -> Iterator[Task]:
        first = (np.array(pair.ranks[:1]),)
        label = f"send and receive, ranks {pair.ranks[0]} and {pair.ranks[1]}"
        for nbytes in self._plan.sizes(1):
            ranks_per_node = (2,) if pair.same_node else (1, 1)
            record = LinkRecord(
                kind="send_recv", ranks_per_node=ranks_per_node, nbytes=nbytes, times_s=(), ranks=pair.ranks
            )
            yield Task(record, label, first, self._ping(pair.ranks, nbytes))

    def _ping(self, ranks: tuple[int, int], nbytes: int) -> Callable[[], Run]:
        return lambda: _plain_run(ping_pong(self._world.rank, ranks, nbytes, self._world.device))

    # -- measuring ---------------------------------------------------------------------------------------------

    def measure(self, task: Task) -> LinkRecord:
        """Return the task's record with the seconds of every run: from the last member's start to the last one's end,
        of the slowest group."""
        self._progress.phase(f"measuring {task.label}, {task.record.nbytes} bytes", talking=True)
        run = task.prepare()
        share = 0.5 if task.record.kind == "send_recv" else 1.0  # there and back
        warm_s = share * float(self._times(task, run, _WARM_UPS)[-1])
        plan, times = self._plan, list[float]()
        least = plan.least_runs if warm_s * plan.least_runs < 2 * plan.point_s else _FEW_RUNS
        batch = max(1, min(plan.most_runs // _BATCHES, int(plan.point_s / _BATCHES / warm_s)))
        while len(times) < least or (len(times) < plan.most_runs and sum(times) < plan.point_s and not enough(times)):
            times += (share * self._times(task, run, min(batch, plan.most_runs - len(times)))).tolist()
        wire = self._count(task, run) if task.counted else None
        work, beside = self._work, None
        if task.beside is not None and work is not None:
            beside = self._beside(task, task.beside(work), work)
        return replace(task.record, times_s=_rounded(times), wire=wire, beside=beside)

    def _beside(self, task: Task, run: Run, work: OwnWork) -> Beside:
        """Seconds of runs beside work of all ranks: for about the time of a point, at most ten."""
        times = list[float]()
        while len(times) < _FEW_RUNS or (len(times) < _MOST_BESIDE and sum(times) < self._plan.point_s):
            times += self._times(task, run, 1).tolist()
        worked_s, alone_s = np.sum(self._world.everyones(work.counted()), axis=0).tolist()
        return Beside(times_s=_rounded(times), worked_s=worked_s, alone_s=alone_s)

    def too_long(self, last: LinkRecord, nbytes: int) -> bool:
        """Whether a run of `nbytes` is to take longer than the plan allows, by the last size of its curve."""
        return median(last.times_s) * nbytes / last.nbytes > self._plan.longest_run_s

    def _times(self, task: Task, run: Run, runs: int) -> FloatArray:
        """Seconds of so many runs, [runs]."""
        timer = timer_of(self._world.device)
        marks = []
        for _ in range(runs):
            self._meet()
            timer.begin_step()
            marks.append(run(timer))
        timer.close()
        own = [[timer.seconds(index, start), timer.seconds(index, end[0])] for index, (start, end) in enumerate(marks)]
        self._progress.phase(f"measuring {task.label}, {task.record.nbytes} bytes", talking=True)
        start, end = np.moveaxis(self._world.everyones(np.array(own) + self._offset_s), -1, 0)  # [ranks, runs] each
        start = np.fmin(start, end)  # a quick one may end before its issue returns
        taken = [end[group].max(axis=0) - start[group].max(axis=0) for group in task.groups]
        return np.asarray(np.maximum(np.max(taken, axis=0), 1e-9))

    def _count(self, task: Task, run: Run) -> Wire | None:
        """What one run puts on the interfaces of every node; None where a node cannot count."""
        self._meet()
        before = node_bytes()
        self._meet()
        self._times(task, run, 1)
        self._meet()
        after = node_bytes()
        own = np.subtract(after, before) if before and after else np.full(3, np.nan)
        found = np.array(self._world.everyones(own.astype(np.float64)))  # [ranks, 3]
        firsts = np.unique(self._node_of, return_index=True)[1]
        if np.isnan(found).any():
            return None
        sent, received, looped = (tuple(column.tolist()) for column in found[firsts].T)
        return Wire(sent=sent, received=received, looped=looped)

    def _meet(self) -> None:
        """Return when all ranks are here and their devices idle."""
        import torch
        import torch.distributed as dist

        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        dist.barrier(group=self._world.control)


def _record(shape: GroupShape, kind: CollectiveKind, nbytes: int) -> LinkRecord:
    ranks_per_node, groups, groups_per_node = shape.key
    return LinkRecord(
        kind=kind, ranks_per_node=ranks_per_node, groups=groups, groups_per_node=groups_per_node, nbytes=nbytes,
        times_s=(),
    )  # fmt: skip


def _async_run(start: Start, *, from_issue: bool = False) -> Run:
    """A collective, from when it is issued (or from when its issue begins) to its true end."""

    def run(timer: Timer) -> Marks:
        before = timer.mark()
        work = start()
        issued = before if from_issue else timer.mark()
        ended: list[Mark] = []
        timer.on_end(work, "comm", ended.append).wait()
        return issued, ended

    return run


def _working_run(start: Start, work: OwnWork, control: ProcessGroup, *, from_issue: bool) -> Run:
    """A collective beside work, which goes on until it has ended on all ranks, and counts until it has on this one."""
    import torch.distributed as dist

    def run(timer: Timer) -> Marks:
        before = timer.mark()
        issue = start()
        issued = before if from_issue else timer.mark()
        ended: list[Mark] = []
        waitable = timer.on_end(issue, "comm", ended.append)
        work.beside(lambda: bool(ended))
        waitable.wait()
        all_ended = dist.barrier(group=control, async_op=True)
        assert all_ended is not None
        work.until(all_ended.is_completed)
        all_ended.wait()
        return issued, ended

    return run


def _rounded(times_s: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(taken, 9) for taken in times_s)


def _plain_run(go: Callable[[], None]) -> Run:
    def run(timer: Timer) -> Marks:
        begun = timer.mark()
        go()
        return begun, [timer.mark()]

    return run
