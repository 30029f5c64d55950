"""Tiered memory on the device: rows in pinned host memory, a set-associative LRU cache of them in HBM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from foreshard.kernels.checks import Problems, dtype_name
from foreshard.kernels.cupy_device import cupy_device
from foreshard.kernels.device import Device, blocks_for
from foreshard.kernels.reference_tiers import EMPTY, WAYS
from foreshard.kernels.segments import segment_keys
from foreshard.kernels.tables import ROW_FORMATS, lanes_for, row_shape

__all__ = ["RowCache", "copy_rows", "pinned_rows"]


def pinned_rows(shape: Sequence[int], dtype: str, *, device: Device | None = None) -> np.ndarray[Any, Any]:
    """A NumPy array in pinned host memory, which kernels read and write in place over the host link (zero-copy)."""
    device = device or cupy_device()
    cuda, size = device.xp.cuda, int(np.prod(shape))
    memory = cuda.alloc_pinned_memory(max(size * np.dtype(dtype).itemsize, 1))
    return np.frombuffer(memory, dtype=dtype, count=size).reshape(tuple(shape))


def copy_rows(
    target: Any, target_rows: Any | None, source: Any, source_rows: Any | None, count: int, *, device: Device
) -> None:
    """Copy row `source_rows[i]` to row `target_rows[i]` for i below `count`; None stands for i, EMPTY skips the pair.

    Either side may be a device array or pinned host rows; row bytes must be equal. Rows named twice as targets get
    one of the sources, whole lanes of it at a time: name each once.
    """
    row_bytes = int(source.shape[1]) * source.dtype.itemsize
    problems = Problems("copy_rows")
    same = (target.shape[1], dtype_name(target)) == (source.shape[1], dtype_name(source))
    problems.unless(same, f"rows are {dtype_name(source)} [{source.shape[1]}] but their target is "
                          f"{dtype_name(target)} [{target.shape[1]}]: expected the same")  # fmt: skip
    problems.raise_any()
    if not count:
        return
    vector = min(_byte_vector(row_bytes, device.address(side)) for side in (target, source))
    lanes = lanes_for(row_bytes // vector)
    sizes = (np.int64(count), np.int64(row_bytes), np.int32(vector), np.int32(lanes))
    sides = (np.uint64(device.address(target)), target_rows, np.uint64(device.address(source)), source_rows)
    device.launch("copy_rows", blocks_for(device, count * lanes), (*sides, *sizes), threads=device.threads)


def _byte_vector(row_bytes: int, address: int) -> int:
    """Bytes that a lane copies at once, 16, 4 or 1: they divide the row, and all rows are aligned to them."""
    return next((wide for wide in (16, 4) if row_bytes % wide == 0 and address % wide == 0), 1)


class RowCache:
    """A cache of `sets` x 32 rows of the host rows [num_embeddings, dim]; least recently used rows go first.

    The rows of a batch: `query` their distinct ids, `fetch` the ones that miss, then `lookup`. A row in the cache is
    newer than the host's copy; it is written back when it is driven out, or by `flush`. Steps must not fall.
    """

    def __init__(self, host: Any, sets: int, *, device: Device | None = None) -> None:
        self.device, self.host, self.sets = device or cupy_device(), host, sets
        problems = Problems("cache")
        problems.dtype(host, "host rows", tuple(ROW_FORMATS))
        problems.shape(host, "host rows", "[num_embeddings, dim]", host.ndim == 2 and host.shape[1] > 0)
        problems.unless(sets > 0, f"{sets} sets: expected at least one, of {WAYS} rows each")
        problems.raise_any()
        xp = self.device.xp
        self.rows = xp.empty((sets * WAYS, host.shape[1]), dtype=host.dtype)
        self.tags = xp.full((sets, WAYS), EMPTY, dtype=np.int64)
        self.stamps = xp.full((sets, WAYS), EMPTY, dtype=np.int64)

    def query(self, ids: object, step: int) -> Any:
        """The slot of every id (int64), EMPTY where it misses, int64 [ids]; hits count as used in `step`."""
        with self.device.on(ids):
            return self.device.give(self._query(self._take(ids), step), ids)

    def _query(self, ids: Any, step: int) -> Any:
        slots = self.device.xp.empty(ids.size, dtype=np.int64)
        args = (self.tags, self.stamps, np.uint32(self.sets), ids, np.int64(ids.size), np.int64(step), slots)
        self._launch("query_cache", int(ids.size) * WAYS, args)
        return slots

    def insert(self, ids: object, step: int, *, keep_from: int) -> tuple[Any, Any]:
        """Return (slot, row driven out) of every id, EMPTY where there is none, int64 [ids]; moves no rows.

        `ids` are distinct and not in the cache. Ways used in step `keep_from` or later stay. Order and choice are
        those of `reference.SetAssociativeCache`.
        """
        with self.device.on(ids):
            slots, evicted = self._insert(self._take(ids), step, keep_from)
            return self.device.give(slots, ids), self.device.give(evicted, ids)

    def _insert(self, ids: Any, step: int, keep_from: int) -> tuple[Any, Any]:
        xp = self.device.xp
        slots, evicted, set_of = (xp.empty(ids.size, dtype=np.int64) for _ in range(3))
        if not ids.size:
            return slots, evicted
        self._launch("hash_parts", int(ids.size), (ids, np.int64(ids.size), np.uint32(self.sets), set_of))
        groups = segment_keys(self.device, set_of, limit=self.sets)
        runs = (ids, groups.order, groups.distinct, groups.starts, groups.count)
        args = (self.tags, self.stamps, *runs, np.int64(step), np.int64(keep_from), slots, evicted)
        self._launch("insert_into_cache", int(ids.size) * WAYS, args)
        return slots, evicted

    def fetch(self, ids: object, step: int, *, keep_from: int) -> Any:
        """Insert missing ids, write the rows they drive out back to the host, and read theirs; the slots [ids].

        The two copies follow each other on the stream, so that a row is never overwritten before it is saved.
        """
        with self.device.on(ids):
            taken = self._take(ids)
            slots, evicted = self._insert(taken, step, keep_from)
            count = int(taken.size)
            copy_rows(self.host, evicted, self.rows, slots, count, device=self.device)
            copy_rows(self.rows, slots, self.host, taken, count, device=self.device)
            return self.device.give(slots, ids)

    def lookup(self, ids: object, slots: object) -> Any:
        """The vector of every id, float32 [ids, dim]: from its slot, or from host memory where `slots` is EMPTY."""
        device, dim = self.device, int(self.host.shape[1])
        with device.on(ids, slots):
            taken, places = self._take(ids), self._take(slots, "slots")
            problems = Problems("cache")
            problems.shape(places, "slots", f"{list(taken.shape)}, one for each id", places.shape == taken.shape)
            problems.raise_any()
            addresses = (device.address(self.host), device.address(self.rows))
            shape = row_shape(dim, self.host.dtype.itemsize, addresses[0] | addresses[1])
            out = device.xp.empty((taken.size, dim), dtype=np.float32)
            tiers = tuple(np.uint64(address) for address in addresses)
            sizes = (np.int64(taken.size), np.int32(dim), np.int32(shape.vector), np.int32(shape.lanes))
            kernel = f"tiered_lookup_{ROW_FORMATS[dtype_name(self.host)]}"
            self._launch(kernel, int(taken.size) * shape.lanes, (*tiers, taken, places, *sizes, out))
            return device.give(out, ids)

    def flush(self) -> None:
        """Write every row in the cache back to the host; they stay in the cache."""
        count = self.sets * WAYS
        copy_rows(self.host, self.tags.reshape(-1), self.rows, None, count, device=self.device)

    def _take(self, given: object, what: str = "ids") -> Any:
        taken = self.device.take(given, what)
        problems = Problems("cache")
        problems.dtype(taken, what, ("int64",))
        problems.shape(taken, what, "[n]", taken.ndim == 1)
        problems.raise_any()
        return taken

    def _launch(self, kernel: str, threads: int, args: tuple[Any, ...]) -> None:
        if threads:
            self.device.launch(kernel, blocks_for(self.device, threads), args, threads=self.device.threads)
