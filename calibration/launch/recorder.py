"""Records when every operation of every step ran on this rank; the interpreter calls it, nothing else does.

    recorder.begin_step(number, program)              once a step, warm-up steps too
    with recorder.compute(index):                     around the work of a Compute op, when all it waits for is there
        ...
    pending = recorder.collective(index, lambda: dist.all_reduce(x, group=group, async_op=True))
    pending.wait()                                    wherever an operation needs the result
    recorder.phase("building tables")                 outside the steps; tells the watchdog where the rank is

`index` is the operation's place in `program.ops`. An operation in which the rank has no part is not recorded. On GPUs
the caller selects the operation's stream before it enters `compute` or calls `collective`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foreshard.calibration.launch.progress import Progress
from foreshard.calibration.launch.timers import Mark, Timer, Waitable
from foreshard.simulator.job.program import StepProgram

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["Pending", "RankStep", "Recorder"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankStep:
    """One step of one rank, [ops] each, seconds of the host's monotonic clock, NaN where the rank had no part.

    `start_s` of a collective is the time at which its issue was done, `end_s` its true end. `host_s` is the host's time
    to issue the operation, which on CPU ranks includes computing it. `sent_bytes` and `received_bytes` are what a
    collective moved to and from others, where the interpreter said so.
    """

    number: int
    program: StepProgram
    start_s: FloatArray
    end_s: FloatArray
    host_s: FloatArray
    sent_bytes: FloatArray
    received_bytes: FloatArray


@dataclass(slots=True, eq=False)
class _Step:
    """Marks of a step that is not read yet; slots of a list, since callbacks of other threads fill them."""

    number: int
    program: StepProgram
    start: list[Mark] = field(default_factory=list)
    end: list[Mark] = field(default_factory=list)
    host_s: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    received: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.program.ops)
        self.start, self.end = [None] * count, [None] * count
        self.host_s, self.sent, self.received = ([float("nan")] * count for _ in range(3))


class Pending:
    """A collective on its way; `wait` returns when it is finished (on a GPU: makes the current stream wait)."""

    __slots__ = ("_index", "_name", "_progress", "_work")

    def __init__(self, work: Waitable, progress: Progress, index: int, name: str) -> None:
        self._work, self._progress, self._index, self._name = work, progress, index, name

    def wait(self) -> None:
        """Wait for the collective. Raises what torch.distributed raises where it failed."""
        self._progress.waits(self._index, self._name)
        self._work.wait()
        self._progress.passed(self._index, self._name)


class Recorder:
    """The records of one rank; `steps` reads them after the last step."""

    def __init__(self, timer: Timer, progress: Progress) -> None:
        self._timer = timer
        self._progress = progress
        self._steps: list[_Step] = []

    def phase(self, name: str) -> None:
        """Tell the watchdog what the rank does outside of steps; call it again as the work gets on."""
        self._progress.phase(name)

    def begin_step(self, number: int, program: StepProgram) -> None:
        """A step begins; `program` is that of this step, which may or may not synchronise replicas."""
        self._progress.step(number)
        self._steps.append(_Step(number, program))
        self._timer.begin_step()

    @contextmanager
    def compute(self, index: int) -> Iterator[None]:
        """Record a Compute op around its work; enter it when everything the operation waits for is there."""
        step = self._steps[-1]
        name = step.program.ops[index].name
        self._progress.op(index, name)
        step.start[index] = self._timer.mark()
        begun = time.perf_counter()
        yield
        step.end[index] = self._timer.mark()
        step.host_s[index] = time.perf_counter() - begun
        self._progress.passed(index, name)

    def collective(
        self, index: int, issue: Callable[[], dist.Work], *, sent_bytes: float | None = None,
        received_bytes: float | None = None,
    ) -> Pending:  # fmt: skip
        """Call `issue`, which starts a collective with async_op=True, and record when it was issued and truly ended.

        The bytes are those that the rank sends to and receives from other ranks, where they differ from the program's.
        Wait for the returned Pending, not for the Work.
        """
        step = self._steps[-1]
        op = step.program.ops[index]
        self._progress.op(index, op.name)
        if sent_bytes is not None:
            step.sent[index] = sent_bytes
        if received_bytes is not None:
            step.received[index] = received_bytes
        begun = time.perf_counter()
        work = issue()
        step.host_s[index] = time.perf_counter() - begun
        step.start[index] = self._timer.mark()
        waitable = self._timer.on_end(work, op.stream, lambda mark: step.end.__setitem__(index, mark))
        self._progress.passed(index, op.name)
        return Pending(waitable, self._progress, index, op.name)

    def steps(self) -> tuple[RankStep, ...]:
        """All steps in order, read once every collective has ended; call it when the last step is done."""
        self._timer.close()
        return tuple(self._read(place, step) for place, step in enumerate(self._steps))

    def _read(self, place: int, step: _Step) -> RankStep:
        def seconds(marks: list[Mark]) -> FloatArray:
            return np.array([self._timer.seconds(place, mark) for mark in marks])

        end = seconds(step.end)
        return RankStep(
            number=step.number,
            program=step.program,
            start_s=np.fmin(seconds(step.start), end),  # a quick collective may end before its issue returns
            end_s=end,
            host_s=np.array(step.host_s),
            sent_bytes=np.array(step.sent),
            received_bytes=np.array(step.received),
        )
