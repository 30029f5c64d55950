"""When things happen on a rank: the host's monotonic clock for CPU ranks, CUDA events for GPUs.

A *mark* is what a timer takes; `seconds` turns the marks of a step into seconds of the host's clock afterwards, since
reading a CUDA event would make the host wait for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["CudaTimer", "HostTimer", "Mark", "Timer", "Waitable", "timer_of"]

Mark = Any  # seconds of a HostTimer, a torch.cuda.Event of a CudaTimer


class Waitable(Protocol):
    """What can be waited for: a Work of torch.distributed, or what stands for one."""

    def wait(self) -> object:
        """Return when it is finished (on a GPU: when the current stream will wait for it)."""


class Timer(Protocol):
    """Takes marks on one kind of device."""

    def begin_step(self) -> None:
        """A step begins; marks taken from now on belong to it."""

    def mark(self) -> Mark:
        """Now, on the current stream of the device."""

    def on_end(self, work: dist.Work, stream: str, note: Callable[[Mark], None]) -> Waitable:
        """Call `note` with the mark of the true end of `work`; return what the caller must wait for in its stead."""

    def seconds(self, step: int, mark: Mark) -> float:
        """Seconds of the host's monotonic clock at a mark of the step-th step; NaN if there is none."""

    def close(self) -> None:
        """Wait until every end is noted."""


class HostTimer:
    """Marks of the host's monotonic clock: the device computes in the thread that calls it.

    The end of a collective is noted in the callback of its future, in gloo's own thread, at the moment it ends and
    before `wait` returns. gloo's reduce_scatter has no future, and does its last copy in `wait`: a thread of its stream
    waits for it at once, and the caller waits for that thread.
    """

    def __init__(self) -> None:
        self._waiters: dict[str, ThreadPoolExecutor] = {}

    def begin_step(self) -> None:
        """Nothing to do."""

    def mark(self) -> float:
        """Seconds of the monotonic clock."""
        return time.perf_counter()

    def on_end(self, work: dist.Work, stream: str, note: Callable[[Mark], None]) -> Waitable:
        """See Timer."""
        try:
            future = work.get_future()
        except RuntimeError:  # "Work::getFuture not implemented."
            return self._watched(work, stream, note)
        future.add_done_callback(lambda _: note(time.perf_counter()))
        return work

    def _watched(self, work: dist.Work, stream: str, note: Callable[[Mark], None]) -> Waitable:
        def finish() -> None:
            work.wait()
            note(time.perf_counter())

        if stream not in self._waiters:
            self._waiters[stream] = ThreadPoolExecutor(1, thread_name_prefix=f"foreshard-wait-{stream}")
        return _Done(self._waiters[stream].submit(finish))

    def seconds(self, step: int, mark: Mark) -> float:
        """The mark itself."""
        return float("nan") if mark is None else float(mark)

    def close(self) -> None:
        """Wait for the threads that wait."""
        for waiter in self._waiters.values():
            waiter.shutdown(wait=True)


class _Done:
    """A job of another thread, to be waited for like a Work."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()


class CudaTimer:
    """CUDA events, tied to the host's clock by one event a step whose distance to the first is added up.

    `torch.cuda.Event.elapsed_time` is a float32 of milliseconds: over one step it resolves well below a microsecond.
    The end of a collective is an event of its future's callback, which torch runs at once, on a stream that waits for
    the collective.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._cuda = torch.cuda
        self._device = device
        self._bases: list[torch.cuda.Event] = []
        self._origin_s: list[float] = []
        self._rate = 1.0  # host seconds a device second
        self._first, self._first_s = self._tied()

    def _tied(self) -> tuple[torch.cuda.Event, float]:
        """An event and the host's time at which it happened, to within half the time of a synchronisation."""
        self._cuda.synchronize(self._device)
        before = time.perf_counter()
        event = self.mark()
        self._cuda.synchronize(self._device)
        return event, (before + time.perf_counter()) / 2

    def begin_step(self) -> None:
        """Take the event that the marks of the step are measured from."""
        self._bases.append(self.mark())

    def mark(self) -> torch.cuda.Event:
        """An event on the current stream."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def on_end(self, work: dist.Work, stream: str, note: Callable[[Mark], None]) -> Waitable:
        """See Timer."""
        work.get_future().add_done_callback(lambda _: note(self.mark()))
        return work

    def seconds(self, step: int, mark: Mark) -> float:
        """Seconds of the host's clock at the event; both ends of the run are tied to it, drift in between is even."""
        if mark is None:
            return float("nan")
        return self._origin_s[step] + self._bases[step].elapsed_time(mark) / 1e3 * self._rate

    def close(self) -> None:
        """Wait for the device and place every step's first event on the host's clock."""
        last, last_s = self._tied()
        chain = [self._first, *self._bases, last]
        gaps = [a.elapsed_time(b) / 1e3 for a, b in pairwise(chain)]
        device_s = sum(gaps)
        self._rate = (last_s - self._first_s) / device_s if device_s > 0 else 1.0
        passed = self._first_s
        for gap in gaps[:-1]:
            passed += gap * self._rate
            self._origin_s.append(passed)


def timer_of(device: torch.device) -> Timer:
    """The timer of what a device computes."""
    return CudaTimer(device) if device.type == "cuda" else HostTimer()
