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
from foreshard.topologies.errors import InputError

__all__ = ["RowCache", "copy_rows", "pinned_rows"]


def pinned_rows(shape: Sequence[int], dtype: str, *, device: Device | None = None) -> np.ndarray[Any, Any]:
    """A NumPy array in pinned host memory, which kernels read and write in place over the host link (zero-copy)."""
    device = device or cupy_device()
    if dtype not in ROW_FORMATS:
        raise InputError(
            f"unknown dtype {dtype!r} of rows: expected one of {', '.join(ROW_FORMATS)} (the bits of bf16)"
        )
    cuda, size = device.xp.cuda, int(np.prod(shape))
    memory = cuda.alloc_pinned_memory(max(size * np.dtype(dtype).itemsize, 1))
    return np.frombuffer(memory, dtype=dtype, count=size).reshape(tuple(shape))


def copy_rows(
    target: object,
    target_rows: object | None,
    source: object,
    source_rows: object | None,
    count: int,
    *,
    checked: bool = False,
    device: Device | None = None,
) -> None:
    """Copy row `source_rows[i]` to row `target_rows[i]` for i below `count`; None stands for i, EMPTY skips the pair.

    Either side [rows, dim] may be a device array or pinned host rows, of one dtype and dim; rows are int64. Rows named
    twice as targets get one of the sources, whole lanes of it at a time: name each once. Raises InputError for other
    input; `checked` reads the rows first and raises InputError where one is not there, else foreign memory is copied.
    """
    device = device or cupy_device()
    with device.on(target, target_rows, source, source_rows):
        problems = Problems("copy_rows")
        named = ((target, "target"), (source, "source"))
        sides = [_take_rows(device, side, what, problems) for side, what in named]
        problems.raise_any()
        rows = [
            None if given is None else device.take(given, what)
            for given, what in ((target_rows, "target_rows"), (source_rows, "source_rows"))
        ]
        _check_copy(sides, rows, count, checked)
        _copy_rows(device, sides[0], rows[0], sides[1], rows[1], count)


def _take_rows(device: Device, given: object, what: str, problems: Problems) -> Any:
    """Rows [n, dim] of the device, or of the host, which must be pinned."""
    rows = given if isinstance(given, np.ndarray) else device.take(given, what)
    problems.shape(rows, what, "[rows, dim]", rows.ndim == 2 and rows.shape[1] > 0)
    problems.unless(rows.flags.c_contiguous, f"{what} {tuple(rows.shape)} is not contiguous: pass a contiguous copy")
    problems.unless(device.reaches(rows), f"{what} lies in memory that is not pinned: make it with pinned_rows")
    return rows


def _check_copy(sides: Sequence[Any], rows: Sequence[Any | None], count: int, checked: bool) -> None:
    problems, (target, source) = Problems("copy_rows"), sides
    shapes = [f"{dtype_name(side)} [{side.shape[1]}]" for side in (source, target)]
    problems.unless(shapes[0] == shapes[1], f"rows are {shapes[0]} but their target is {shapes[1]}: expected the same")
    for side, own, what in zip(sides, rows, ("target", "source"), strict=True):
        if own is None:
            problems.unless(0 <= count <= len(side), f"{count} rows of {what}: expected 0 to {len(side)}")
            continue
        problems.dtype(own, f"{what}_rows", ("int64",))
        problems.shape(own, f"{what}_rows", f"[{count} or more]", own.ndim == 1 and 0 <= count <= own.size)
        if checked and not problems.found:
            problems.within(own[:count], f"{what}_rows", EMPTY, len(side) - 1)
    problems.raise_any()


def _copy_rows(
    device: Device, target: Any, target_rows: Any | None, source: Any, source_rows: Any | None, count: int
) -> None:
    if not count:
        return
    row_bytes = int(source.shape[1]) * source.dtype.itemsize
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
    newer than the host's copy; it is written back when it is driven out, or by `flush`. Steps must not fall. Raises
    InputError for wrong input; `checked` methods read ids first and raise InputError where one is out of range, else
    such an id reads foreign memory.
    """

    def __init__(self, host: Any, sets: int, *, device: Device | None = None) -> None:
        self.device, self.sets, self._step = device or cupy_device(), sets, 0
        problems = Problems("cache")
        self.host = _take_rows(self.device, host, "host rows", problems)
        problems.dtype(self.host, "host rows", tuple(ROW_FORMATS))
        problems.unless(sets > 0, f"{sets} sets: expected at least one, of {WAYS} rows each")
        problems.raise_any()
        xp = self.device.xp
        self.rows = xp.empty((sets * WAYS, self.host.shape[1]), dtype=self.host.dtype)
        self.tags = xp.full((sets, WAYS), EMPTY, dtype=np.int64)
        self.stamps = xp.full((sets, WAYS), EMPTY, dtype=np.int64)

    def query(self, ids: object, step: int, *, checked: bool = False) -> Any:
        """The slot of every id (int64), EMPTY where it misses, int64 [ids]; hits count as used in `step`."""
        with self.device.on(ids, self.rows):
            taken = self._take(ids)
            self._check_step(step, step)
            if checked:
                self._check_ids(taken)
            return self.device.give(self._query(taken, step), ids)

    def _query(self, ids: Any, step: int) -> Any:
        slots = self.device.xp.empty(ids.size, dtype=np.int64)
        args = (self.tags, self.stamps, np.uint32(self.sets), ids, np.int64(ids.size), np.int64(step), slots)
        self._launch("query_cache", int(ids.size) * WAYS, args)
        return slots

    def insert(self, ids: object, step: int, *, keep_from: int, checked: bool = False) -> tuple[Any, Any]:
        """Return (slot, row driven out) of every id, EMPTY where there is none, int64 [ids]; moves no rows.

        `ids` are distinct and not in the cache, which `checked` looks at too. Ways used in step `keep_from`, at most
        `step`, or later stay. Order and choice are those of `reference.SetAssociativeCache`.
        """
        with self.device.on(ids, self.rows):
            slots, evicted = self._insert(self._take(ids), step, keep_from, checked)
            return self.device.give(slots, ids), self.device.give(evicted, ids)

    def _insert(self, ids: Any, step: int, keep_from: int, checked: bool) -> tuple[Any, Any]:
        xp = self.device.xp
        self._check_step(step, keep_from)
        if checked:
            self._check_ids(ids, new=True)
        slots, evicted, set_of = (xp.empty(ids.size, dtype=np.int64) for _ in range(3))
        if not ids.size:
            return slots, evicted
        self._launch("hash_parts", int(ids.size), (ids, np.int64(ids.size), np.uint32(self.sets), set_of))
        groups = segment_keys(self.device, set_of, limit=self.sets)
        runs = (ids, groups.order, groups.distinct, groups.starts, groups.count)
        args = (self.tags, self.stamps, *runs, np.int64(step), np.int64(keep_from), slots, evicted)
        self._launch("insert_into_cache", int(ids.size) * WAYS, args)
        return slots, evicted

    def fetch(self, ids: object, step: int, *, keep_from: int, checked: bool = False) -> Any:
        """Insert missing ids, write the rows they drive out back to the host, and read theirs; the slots [ids].

        The two copies follow each other on the stream, so that a row is never overwritten before it is saved.
        """
        with self.device.on(ids, self.rows):
            taken = self._take(ids)
            slots, evicted = self._insert(taken, step, keep_from, checked)
            count = int(taken.size)
            _copy_rows(self.device, self.host, evicted, self.rows, slots, count)
            _copy_rows(self.device, self.rows, slots, self.host, taken, count)
            return self.device.give(slots, ids)

    def lookup(self, ids: object, slots: object, *, checked: bool = False) -> Any:
        """The vector of every id, float32 [ids, dim]: from its slot, or from host memory where `slots` is EMPTY."""
        device, dim = self.device, int(self.host.shape[1])
        with device.on(ids, slots, self.rows):
            taken, places = self._take(ids), self._take(slots, "slots")
            problems = Problems("cache")
            problems.shape(places, "slots", f"{list(taken.shape)}, one for each id", places.shape == taken.shape)
            if checked:
                problems.within(taken, "ids", 0, len(self.host) - 1)
                problems.within(places, "slots", EMPTY, self.sets * WAYS - 1)
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
        """Write every row in the cache back to the host; they stay in the cache.

        Waits for the device before, since any stream may have changed rows, and after: the host may read them then.
        """
        with self.device.on(self.rows):
            self.device.synchronize()
            _copy_rows(self.device, self.host, self.tags.reshape(-1), self.rows, None, self.sets * WAYS)
            self.device.synchronize()

    def _take(self, given: object, what: str = "ids") -> Any:
        taken = self.device.take(given, what)
        problems = Problems("cache")
        problems.dtype(taken, what, ("int64",))
        problems.shape(taken, what, "[n]", taken.ndim == 1)
        problems.raise_any()
        return taken

    def _check_step(self, step: int, keep_from: int) -> None:
        """A way that this very step took must stay: its row is not there yet."""
        problems = Problems("cache")
        problems.unless(step >= self._step, f"step is {step}: expected at least {self._step}, which was the last one")
        problems.unless(keep_from <= step, f"keep_from is {keep_from}: expected at most the step, {step}")
        problems.raise_any()
        self._step = step

    def _check_ids(self, ids: Any, *, new: bool = False) -> None:
        """Ids lie on the host, and `new` ones are distinct and not in the cache; waits for the device."""
        problems, xp = Problems("cache"), self.device.xp
        problems.within(ids, "ids", 0, len(self.host) - 1)
        if new and ids.size:
            problems.unless(int(xp.unique(ids).size) == ids.size, "ids repeat: expected distinct ones")
            held = int(xp.isin(ids, self.tags).sum())
            problems.unless(not held, f"{held} ids are in the cache: expected those that `query` missed")
        problems.raise_any()

    def _launch(self, kernel: str, threads: int, args: tuple[Any, ...]) -> None:
        if threads:
            self.device.launch(kernel, blocks_for(self.device, threads), args, threads=self.device.threads)
