"""The other ranks on this machine: where they are, noticed the moment they end, ended when they no longer answer."""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from foreshard.calibration.launch.position_memory import PositionView
from foreshard.calibration.launch.progress import Position

__all__ = ["Peer", "Process"]


@dataclass(frozen=True, slots=True)
class Process:
    """A process by its number, which means something only where `space` is the same: one kernel, one pid namespace.

    `memory` is the descriptor of its position in memory, -1 if it has none.
    """

    pid: int
    space: str
    memory: int = -1

    @classmethod
    def own(cls, memory: int = -1) -> Process:
        """This process."""
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            return cls(os.getpid(), f"{boot} {os.readlink('/proc/self/ns/pid')}", memory)
        except OSError:
            return cls(os.getpid(), uuid.uuid4().hex)


class Peer:
    """Another rank on this machine, by a file descriptor that becomes readable when its process ends (pidfd_open(2)).

    `gone` from the beginning if it has ended already.
    """

    def __init__(self, rank: int, process: Process) -> None:
        self.rank = rank
        self.gone = False
        self._pid = process.pid
        self.handle = -1
        self._view: PositionView | None = None
        with suppress(OSError):  # another user's, or gone already: what it published must do
            self._view = PositionView(process.pid, process.memory)
        try:
            self.handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self.gone = True

    @property
    def position(self) -> Position | None:
        """Where the rank is, or was when it ended; None if its memory cannot be read."""
        return self._view.read() if self._view is not None else None

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped the process (state T of proc_pid_stat(5))."""
        try:
            stat = Path(f"/proc/{self._pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    @staticmethod
    def can_watch(process: Process) -> bool:
        """Whether a process can be watched from here: Linux, and the same kernel and pid namespace."""
        return hasattr(os, "pidfd_open") and process.space == Process.own().space

    def kill(self) -> None:
        """End the process for good; it was asked before and does not answer."""
        with suppress(OSError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def close(self) -> None:
        """Give the descriptor and the memory back."""
        if self.handle >= 0:
            os.close(self.handle)
        self.handle = -1
        if self._view is not None:
            self._view.close()
        self._view = None
