"""`python -m foreshard.kernels.bench`: look-up and update against the copy bandwidth of the device and against torch.

A look-up reads a row and an id for every look-up and the offsets, and writes pooled vectors. An update reads ids,
offsets and the gradient of every bag once, and reads and writes every distinct row and its accumulator once: what it
reads again, or sorts, counts as time alone. Rows that Zipf ids repeat may come from L2, so that a look-up's fraction
may pass 1 there. The fraction is of the bandwidth that a device-to-device copy reached on the same GPU just before.
Every run starts with an L2 cache full of other data. torch's backward is followed by its Adagrad, whose accumulator is
as large as the row; it is timed with sparse and with dense gradients. Without a GPU nothing is measured, and the rows
say so; so do rows for which the memory did not suffice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from statistics import median
from typing import Any

import numpy as np
from tabulate import tabulate

from foreshard.kernels import RowWiseAdagrad, pooled_lookup, table_group, update_pooled
from foreshard.kernels.cupy_device import CupyDevice, cupy_device
from foreshard.topologies.errors import ForeshardError

__all__ = ["CASES", "Case", "main", "rows_of"]

NOT_MEASURED = "not measured"
_REPEATS = 20
_COPY_BYTES = 1 << 30
_TABLE_BYTES = 8 << 30  # far larger than any L2 cache
_LOOKUPS = 1 << 21
_ZIPF = 1.15  # FBGEMM's benchmarks recommend it for training
_HEADERS = ("pass", "dim", "pooling", "ids", "MB", "us", "GB/s", "of copy", "torch / ours", "torch, dense / ours")
_PASSES = ("forward", "backward")
_DENSE = "dense backward"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One table of fp32 rows looked up by bags of `pooling` ids."""

    dim: int
    pooling: int
    ids: str  # "uniform" or "zipf 1.15"

    @property
    def rows(self) -> int:
        """Rows that make the table far larger than L2, at most 64 Mi."""
        return min(_TABLE_BYTES // (4 * self.dim), 1 << 26)

    @property
    def bags(self) -> int:
        """Bags of about 2 Mi look-ups in all, fewer where vectors would not fit."""
        return max(1, min(_LOOKUPS, (1 << 31) // (4 * self.dim)) // self.pooling)

    def moved(self, distinct: int) -> dict[str, int]:
        """Bytes of a look-up and of an update of `distinct` rows: fp32 vectors and accumulators, int64 ids, offsets."""
        vector, lookups = 4 * self.dim, self.bags * self.pooling
        jagged = 8 * lookups + 8 * (self.bags + 1)
        return {
            "forward": jagged + lookups * vector + self.bags * vector,
            "backward": jagged + self.bags * vector + distinct * 2 * (vector + 4),
        }


CASES = tuple(
    Case(dim=dim, pooling=pooling, ids=ids)
    for ids, dim, pooling in product(
        ("uniform", f"zipf {_ZIPF}"), (4, 8, 16, 32, 64, 128, 256, 512, 1024), (1, 10, 100)
    )
)


def main() -> None:
    """Print one row a case and pass; always ends well, with "not measured" where no GPU is at hand."""
    try:
        device = cupy_device()
    except ForeshardError as error:
        print(f"{NOT_MEASURED}: {error}", file=sys.stderr)
        rows = [row for case in CASES for row in rows_of(case)]
    else:
        copy = _copy_bandwidth(device)
        print(f"device copy: {copy / 1e9:.0f} GB/s (reads and writes, {_COPY_BYTES >> 20} MiB, median of {_REPEATS})")
        rows = [row for case in CASES for row in _tried(device, case, copy)]
    print(tabulate(rows, headers=_HEADERS))


def rows_of(case: Case) -> Iterator[tuple[Any, ...]]:
    """The rows of a case that nobody measured."""
    for name in _PASSES:
        yield (name, case.dim, case.pooling, case.ids, *[NOT_MEASURED] * 5, "" if name == "forward" else NOT_MEASURED)


def _tried(device: CupyDevice, case: Case, copy: float) -> list[tuple[Any, ...]]:
    """The rows of a case, and memory given back for the next one."""
    try:
        return list(_measured(device, case, copy))
    except MemoryError as error:  # CuPy's is one
        print(f"{NOT_MEASURED}: {case}: {error}", file=sys.stderr)
        return list(rows_of(case))
    finally:
        device.xp.get_default_memory_pool().free_all_blocks()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()


def _seconds(device: CupyDevice, work: Callable[[], object]) -> float:
    """Median seconds of `work` on the GPU, each time with an L2 cache full of other data."""
    cuda, xp = device.xp.cuda, device.xp
    other = xp.empty(2 * max(cuda.Device().attributes["L2CacheSize"], 1 << 26), dtype=np.uint8)
    times = []
    for repeat in range(_REPEATS + 3):
        other.fill(repeat % 7)
        begin, end = cuda.Event(), cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(cuda.get_elapsed_time(begin, end) / 1e3)
    return float(median(times[3:]))


def _copy_bandwidth(device: CupyDevice) -> float:
    source = device.xp.ones(_COPY_BYTES, dtype=np.uint8)
    target = device.xp.empty_like(source)

    def copy() -> None:
        target[...] = source

    return 2 * _COPY_BYTES / _seconds(device, copy)


def _draw_ids(device: CupyDevice, case: Case) -> Any:
    """Row of every look-up; Zipf by inversion of the continuous law x^-1.15 on [1, rows + 1), its ranks scattered."""
    xp = device.xp
    uniform = xp.random.default_rng(0).random(case.bags * case.pooling)
    if case.ids == "uniform":
        return (uniform * case.rows).astype(np.int64)
    power = 1 - _ZIPF
    rank = ((uniform * ((case.rows + 1) ** power - 1) + 1) ** (1 / power)).astype(np.int64) - 1
    return xp.minimum(rank, case.rows - 1) * 2654435761 % case.rows  # Knuth's multiplier, odd and prime


def _measured(device: CupyDevice, case: Case, copy: float) -> Iterator[tuple[Any, ...]]:
    xp = device.xp
    table, state = xp.zeros((case.rows, case.dim), dtype=np.float32), xp.zeros(case.rows, dtype=np.float32)
    ids = _draw_ids(device, case)
    offsets = xp.arange(case.bags + 1, dtype=np.int64) * case.pooling
    gradients = xp.ones((case.bags, case.dim), dtype=np.float32)
    group = table_group([table], momentum=[state])
    optimizer = RowWiseAdagrad(learning_rate=0.01)
    moved = case.moved(int(xp.unique(ids).size))
    ours = {
        "forward": _seconds(device, lambda: pooled_lookup(group, ids, offsets)),
        "backward": _seconds(device, lambda: update_pooled(group, optimizer, gradients, ids, offsets)),
    }
    theirs = _torch_seconds(device, table, ids, offsets, gradients)
    for name, nbytes in moved.items():
        rate = nbytes / ours[name]
        ratios = [
            f"{theirs[other] / ours[name]:.2f}" if other in theirs else NOT_MEASURED
            for other in ([name] if name == "forward" else [name, _DENSE])
        ]
        figures = (f"{nbytes / 1e6:.0f}", f"{ours[name] * 1e6:.0f}", f"{rate / 1e9:.0f}", f"{rate / copy:.2f}")
        yield (name, case.dim, case.pooling, case.ids, *figures, *ratios, *[""] * (2 - len(ratios)))


def _torch_seconds(device: CupyDevice, table: Any, ids: Any, offsets: Any, gradients: Any) -> dict[str, float]:
    """embedding_bag, its sparse and its dense backward with torch's Adagrad, on the same memory; none without torch."""
    try:
        torch = import_module("torch")
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    weight = torch.nn.Parameter(torch.from_dlpack(table))
    own_ids, starts, upstream = (torch.from_dlpack(array) for array in (ids, offsets[:-1], gradients))
    bag = torch.nn.functional.embedding_bag
    found = {}
    with device.on(weight):  # torch's current stream
        with torch.no_grad():
            found["forward"] = _seconds(device, lambda: bag(own_ids, weight, starts, mode="sum"))
        for name, sparse in (("backward", True), (_DENSE, False)):
            out = bag(own_ids, weight, starts, mode="sum", sparse=sparse)
            try:
                found[name] = _seconds(device, _torch_backward(torch, weight, out, upstream))
            except torch.cuda.OutOfMemoryError as error:
                print(f"{NOT_MEASURED}: {name} of torch, dim {weight.shape[1]}: {error}", file=sys.stderr)
            weight.grad = None
            torch.cuda.empty_cache()
    return found


def _torch_backward(torch: Any, weight: Any, out: Any, upstream: Any) -> Callable[[], None]:
    optimizer = torch.optim.Adagrad([weight], lr=0.01)

    def backward() -> None:
        out.backward(upstream, retain_graph=True)
        optimizer.step()
        weight.grad = None

    return backward


if __name__ == "__main__":
    main()
