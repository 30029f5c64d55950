"""A rank's position in memory that the other ranks of its machine read, also when it is stopped or dead.

What a rank publishes in the store lags a fraction of a second behind, in which quick steps run through many operations.
The memory is a file without a name (memfd_create(2)), which goes when the last process that has it open ends.
"""

from __future__ import annotations

import mmap
import os
import struct
from functools import lru_cache
from typing import get_args

from foreshard.calibration.launch.progress import Position, State

__all__ = ["PositionMemory", "PositionView"]

_NAME = 160  # bytes of an operation's name that are kept
_FORMAT = struct.Struct(f"<qqB?d{_NAME}s")
_STATES: tuple[State, ...] = get_args(State)
_TRIES = 100  # reads until two agree: the writer may be half through


class PositionMemory:
    """The own position, written with every report; `handle` is the descriptor by which others find it."""

    def __init__(self) -> None:
        self.handle = os.memfd_create("foreshard-position")
        os.ftruncate(self.handle, _FORMAT.size)
        self._memory = mmap.mmap(self.handle, _FORMAT.size)

    @staticmethod
    def can_be() -> bool:
        """Whether this system has such memory: Linux."""
        return hasattr(os, "memfd_create")

    def write(self, at: Position) -> None:
        """Replace the position; takes about a microsecond."""
        state = _STATES.index(at.state)
        _FORMAT.pack_into(self._memory, 0, at.step, at.index, state, at.in_step, at.since_s, _encoded(at.name))


class PositionView:
    """Another rank's position, by its process number and the descriptor in it. Raises OSError if it cannot be had."""

    def __init__(self, pid: int, handle: int) -> None:
        descriptor = os.open(f"/proc/{pid}/fd/{handle}", os.O_RDONLY)
        try:
            self._memory = mmap.mmap(descriptor, _FORMAT.size, prot=mmap.PROT_READ)
        except ValueError as error:  # another file than it should be
            raise OSError(str(error)) from None
        finally:
            os.close(descriptor)

    def read(self) -> Position | None:
        """The position; None if it was never written, or its writer was killed while it wrote."""
        before = self._memory[:]
        for _ in range(_TRIES):
            now = self._memory[:]
            if now == before:
                return _position(now)
            before = now
        return None

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()


def _position(data: bytes) -> Position | None:
    step, index, state, in_step, since_s, name = _FORMAT.unpack(data)
    if not since_s or state >= len(_STATES):
        return None
    return Position(step, index, _STATES[state], name.rstrip(b"\0").decode("utf-8", "replace"), in_step, since_s)


@lru_cache(maxsize=4096)
def _encoded(name: str) -> bytes:
    return name.encode()[:_NAME]
