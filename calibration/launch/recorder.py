"""Records when every operation of every step ran on this rank; the interpreter calls it, nothing else does.

    recorder.step(number)                             once a step, warm-up steps too, and once more after the last
    with recorder.compute(index):                     around the work of a Compute op, when all it waits for is there
        ...
    pending = recorder.collective(index, lambda: dist.all_reduce(x, group=group, async_op=True))
    pending.wait()                                    wherever an operation needs the result
    recorder.phase("building tables")                 outside the steps; tells the watchdog where the rank is

`index` is the operation's place in `program.ops`. An operation in which the rank has no part, or that is left out of a
step, is not recorded in it. On GPUs the caller selects the operation's stream before it calls any of these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foreshard.calibration.launch.progress import Progress
from foreshard.calibration.launch.timers import Mark, Timer, Waitable
from foreshard.simulator.job.program import Collective, StepProgram

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["Pending", "RankTimes", "Recorder"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankTimes:
    """Every step of one rank, [steps, ops] each, seconds of the host's monotonic clock, NaN where it had no part.

    `start_s` of a collective is the moment from which the rank waits for nothing but the others: it was issued and the
    one before it on the same process group has ended; `end_s` is its true end. `host_s` is the host's time to issue the
    operation, which on CPU ranks includes computing it; for `cpu_s` of that its thread had a core. `sent_bytes` and
    `received_bytes` are what a collective moved to and from other ranks, where the interpreter said so.
    """

    start_s: FloatArray
    end_s: FloatArray
    host_s: FloatArray
    cpu_s: FloatArray
    sent_bytes: FloatArray
    received_bytes: FloatArray


class _Step:
    """Marks of a step that is not read yet; slots of lists, since callbacks of other threads fill them."""

    def __init__(self, ops: int) -> None:
        self.start: list[Mark] = [None] * ops
        self.end: list[Mark] = [None] * ops
        self.host_s = [float("nan")] * ops
        self.cpu_s = [float("nan")] * ops
        self.sent = [float("nan")] * ops
        self.received = [float("nan")] * ops


class Pending:
    """A collective on its way; `wait` returns when it is finished (on a GPU: makes the current stream wait)."""

    __slots__ = ("_name", "_progress", "_work")

    def __init__(self, work: Waitable, progress: Progress, name: str) -> None:
        self._work, self._progress, self._name = work, progress, name

    def wait(self) -> None:
        """Wait for the collective. Raises what torch.distributed raises where it failed."""
        self._progress.waits(self._name)
        self._work.wait()
        self._progress.passed(self._name)


class Recorder:
    """The records of one rank that runs `program`; `times` reads them after the last step."""

    def __init__(self, program: StepProgram, rank: int, timer: Timer, progress: Progress) -> None:
        self.program = program
        self._rank = rank
        self._timer = timer
        self._progress = progress
        self._steps: list[_Step] = []

    def phase(self, name: str) -> None:
        """Tell the watchdog what the rank does outside of steps; call it again as the work gets on."""
        self._progress.phase(name)

    def step(self, number: int) -> None:
        """Step `number` begins, warm-up included; the one after the last says that the last is done."""
        self._progress.step(number)
        self._steps.append(_Step(len(self.program.ops)))
        self._timer.begin_step()

    @contextmanager
    def compute(self, index: int) -> Iterator[None]:
        """Record a Compute op around its work; enter it when everything the operation waits for is there."""
        step, name = self._steps[-1] if self._steps else None, self.program.ops[index].name
        self._progress.compute(index, name)
        cpu, begun, start = time.thread_time(), time.perf_counter(), self._timer.mark()
        yield
        if step is not None:  # before the first step the pipeline fills
            step.start[index], step.end[index] = start, self._timer.mark()
            step.host_s[index] = time.perf_counter() - begun
            step.cpu_s[index] = time.thread_time() - cpu
        self._progress.passed(name)

    def collective(
        self, index: int, issue: Callable[[], dist.Work], *, sent_bytes: float | None = None,
        received_bytes: float | None = None,
    ) -> Pending:  # fmt: skip
        """Call `issue`, which starts a collective with async_op=True, and record when it was issued and truly ended.

        The bytes are those that the rank sends to and receives from other ranks, where they differ from the program's.
        Wait for the returned Pending, not for the Work: of gloo's reduce_scatter another thread waits already.
        """
        op = self.program.ops[index]
        self._progress.issues(index, op.name)
        step = self._steps[-1] if self._steps else _Step(len(self.program.ops))
        cpu, begun = time.thread_time(), time.perf_counter()
        work = issue()
        step.host_s[index] = time.perf_counter() - begun
        step.cpu_s[index] = time.thread_time() - cpu
        step.start[index] = self._timer.mark()
        waitable = self._timer.on_end(work, op.stream, lambda mark: step.end.__setitem__(index, mark))
        step.sent[index] = float("nan") if sent_bytes is None else sent_bytes
        step.received[index] = float("nan") if received_bytes is None else received_bytes
        self._progress.passed(op.name)
        return Pending(waitable, self._progress, op.name)

    def times(self) -> RankTimes:
        """All steps in order, read once every collective has ended; call it when the last step is done."""
        self._timer.close()
        steps = self._steps[:-1]  # the last call of `step` only ended the one before
        start = self._seconds([step.start for step in steps])
        end = self._seconds([step.end for step in steps])
        return RankTimes(
            start_s=self._in_line(start, end),
            end_s=end,
            host_s=np.array([step.host_s for step in steps]),
            cpu_s=np.array([step.cpu_s for step in steps]),
            sent_bytes=np.array([step.sent for step in steps]),
            received_bytes=np.array([step.received for step in steps]),
        )

    def _seconds(self, marks: list[list[Mark]]) -> FloatArray:
        return np.array([[self._timer.seconds(step, mark) for mark in row] for step, row in enumerate(marks)])

    def _in_line(self, issued: FloatArray, end: FloatArray) -> FloatArray:
        """Starts of all operations: a collective waits for the one before it on its process group."""
        start = np.fmin(issued, end)  # a quick collective may end before its issue returns
        free: dict[tuple[str, tuple[int, ...]], float] = {}
        groups = {index: key for index, key in enumerate(map(self._group, range(len(self.program.ops)))) if key}
        for step, index in np.ndindex(start.shape):
            if index in groups and not np.isnan(end[step, index]):
                before = free.get(groups[index], -np.inf)
                start[step, index] = min(max(start[step, index], before), end[step, index])
                free[groups[index]] = end[step, index]
        return start

    def _group(self, index: int) -> tuple[str, tuple[int, ...]] | None:
        """The stream and the members of the rank's group, which together name a process group."""
        op = self.program.ops[index]
        if not isinstance(op.work, Collective):
            return None
        members = op.work.groups.members[int(op.work.groups.group_of[self._rank])]
        return op.stream, tuple(members.tolist())
