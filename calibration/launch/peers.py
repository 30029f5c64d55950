"""The other ranks on this machine: noticed the moment they end, and ended when they no longer answer."""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Peer", "Process"]


@dataclass(frozen=True, slots=True)
class Process:
    """A process by its number, which means something only where `space` is the same: one kernel, one pid namespace."""

    pid: int
    space: str

    @classmethod
    def own(cls) -> Process:
        """This process."""
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            return cls(os.getpid(), f"{boot} {os.readlink('/proc/self/ns/pid')}")
        except OSError:
            return cls(os.getpid(), uuid.uuid4().hex)


class Peer:
    """Another rank on this machine, by a file descriptor that becomes readable when its process ends (pidfd_open(2)).

    `gone` from the beginning if it has ended already.
    """

    def __init__(self, rank: int, process: Process) -> None:
        self.rank = rank
        self.gone = False
        self.handle = -1
        try:
            self.handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self.gone = True

    @staticmethod
    def can_watch(process: Process) -> bool:
        """Whether a process can be watched from here: Linux, and the same kernel and pid namespace."""
        return hasattr(os, "pidfd_open") and process.space == Process.own().space

    def kill(self) -> None:
        """End the process for good; it was asked before and does not answer."""
        with suppress(OSError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def close(self) -> None:
        """Give the descriptor back."""
        if self.handle >= 0:
            os.close(self.handle)
        self.handle = -1
