"""How far the ranks' clocks are apart: ping-pong with rank 0, before and after the run, drift in between.

Cristian's method: of many exchanges the quickest bounds the offset best, to within half its round trip. Ranks that
read one and the same clock, as all do that run under one kernel, share the best of their estimates, and those that
share rank 0's clock need none.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["ClockOffset", "CommonClock", "Exchange", "best_offset", "clock_id", "measure_offset", "shared_offsets"]

FloatArray = NDArray[np.float64]
Clock = Callable[[], float]

_EXCHANGES = 40  # of 8 bytes; the minimum settles after a few dozen, and 1,024 ranks take their turns in seconds


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question at `asked_s` and its reply at `replied_s` of the own clock; rank 0 answered at `answered_s` of its."""

    asked_s: float
    answered_s: float
    replied_s: float


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Rank 0's clock less the own clock in seconds, at `at_s` of the own one, to within `uncertainty_s`."""

    at_s: float
    offset_s: float
    uncertainty_s: float


@dataclass(frozen=True, slots=True)
class CommonClock:
    """Turns times of this rank's clock into rank 0's: the offset before and after, and a straight line between."""

    before: ClockOffset
    after: ClockOffset

    def to_common(self, times_s: FloatArray) -> FloatArray:
        """Times on rank 0's clock, of the same shape; NaN stays NaN."""
        span = self.after.at_s - self.before.at_s
        drift = (self.after.offset_s - self.before.offset_s) / span if span > 0 else 0.0
        return np.asarray(times_s + self.before.offset_s + drift * (times_s - self.before.at_s))

    @property
    def uncertainty_s(self) -> float:
        """The larger uncertainty of the two offsets in seconds."""
        return max(self.before.uncertainty_s, self.after.uncertainty_s)


def best_offset(exchanges: list[Exchange]) -> ClockOffset:
    """The offset by the quickest exchange: rank 0's answer is taken to lie in the middle between question and reply."""
    quickest = min(exchanges, key=lambda it: it.replied_s - it.asked_s)
    middle = (quickest.asked_s + quickest.replied_s) / 2
    half = (quickest.replied_s - quickest.asked_s) / 2
    return ClockOffset(at_s=middle, offset_s=quickest.answered_s - middle, uncertainty_s=half)


def measure_offset(
    control: dist.ProcessGroup, rank: int, world_size: int, *, clock: Clock = time.perf_counter
) -> ClockOffset:
    """Exchange times with rank 0 over a gloo group of all ranks; ranks take turns, so all must call it together."""
    import torch
    import torch.distributed as dist

    message = torch.zeros(1, dtype=torch.float64)
    if rank:
        exchanges = []
        dist.recv(message, src=0, group=control)  # my turn
        for _ in range(_EXCHANGES):
            asked = clock()
            dist.send(message, dst=0, group=control)
            dist.recv(message, src=0, group=control)
            exchanges.append(Exchange(asked, float(message), clock()))
        return best_offset(exchanges)
    for other in range(1, world_size):
        dist.send(message, dst=other, group=control)
        for _ in range(_EXCHANGES):
            dist.recv(message, src=other, group=control)
            message[0] = clock()
            dist.send(message, dst=other, group=control)
    return ClockOffset(at_s=clock(), offset_s=0.0, uncertainty_s=0.0)


def clock_id() -> str:
    """A name of the clock that this process reads: equal where two processes read the same one.

    The monotonic clock is the kernel's, told by its boot id, and may be shifted in a time namespace (Linux
    time_namespaces(7)). Elsewhere every process gets a name of its own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return uuid.uuid4().hex


def shared_offsets(ids: Sequence[str], offsets: Sequence[ClockOffset]) -> list[ClockOffset]:
    """The offset of every rank, given each one's clock id and own estimate, rank 0 first.

    Offsets to one clock differ by their errors only, so the most certain one holds for all who read it.
    """
    best: dict[str, ClockOffset] = {}
    for name, offset in zip(ids, offsets, strict=True):
        if name not in best or offset.uncertainty_s < best[name].uncertainty_s:
            best[name] = offset
    return [best[name] for name in ids]
