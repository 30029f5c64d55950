"""What the wrappers need of a device: an array module, launches, and arrays taken in and given back without copies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import numpy as np

__all__ = ["MAX_GRID", "SHARED_BYTES", "WARP", "Argument", "Device", "blocks_for"]

WARP = 32
MAX_GRID = 2**31 - 1  # blocks of a one-dimensional grid (CUDA C++ Programming Guide, compute capabilities)
SHARED_BYTES = 48 * 1024  # shared memory of a block without opting in to more (same table)

# An array or None is passed as its address; scalars as they are, so their type must be the parameter's.
Argument: TypeAlias = Any


class Device(Protocol):
    """Where kernels run. CUDA devices are `cupy_device()`; the tests run the same wrappers on a CPU."""

    xp: Any  # cupy, or numpy
    threads: int  # of a block, a multiple of WARP

    def launch(self, kernel: str, grid: int, args: Sequence[Argument], *, threads: int, shared_bytes: int = 0) -> None:
        """Run `kernel` on `grid` blocks, on the current stream."""

    def take(self, given: object, what: str) -> Any:
        """`given` as an array of `xp` that shares its memory. Raises InputError naming `what` for other objects."""

    def give(self, result: Any, like: object) -> Any:
        """`result` in the library of `like`, sharing its memory."""

    def on(self, *given: object) -> AbstractContextManager[Any]:
        """A context on the device and stream of the given arrays. Raises InputError if they are on several devices."""

    def upload(self, host: np.ndarray[Any, Any]) -> Any:
        """A copy of `host` on the device, as bytes if it holds structures."""

    def stable_argsort(self, keys: Any) -> Any:
        """The permutation that sorts `keys` [n] and leaves equal ones in order, int64 [n]."""

    def address(self, array: Any) -> int:
        """The address at which kernels find the array's memory."""

    def reaches(self, array: Any) -> bool:
        """Whether kernels can read and write the array's memory: the device's, or pinned memory of the host."""

    def synchronize(self) -> None:
        """Wait until the current device has done all work of all streams."""


def blocks_for(device: Device, threads: int) -> int:
    """Blocks for this many threads; kernels take further turns where a grid cannot be that large."""
    return min(-(-threads // device.threads), MAX_GRID)
