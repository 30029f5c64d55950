"""What the way of an id says of a table in host memory: where its row is read, and where it is written back."""

from __future__ import annotations

from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.lookups.host_rows import cached_rows, host_state_bytes
from foreshard.topologies.units import format_bandwidth

__all__ = ["read_words", "written_words"]


def read_words(cut: ShardedTable, part: int, rate: float) -> str:
    """Where the owner of row part `part` reads a row; `rate` is what its host link carries in bytes/s."""
    link = f"over its host link at {format_bandwidth(rate)}"
    match cut.compute_kernel:
        case "fused":
            return ""
        case "fused_uvm":
            return f" of it in host memory, {link}"
        case "fused_uvm_caching":
            return f" of it, fetched from host memory {link} unless {_cached(cut, part)}"


def written_words(cut: ShardedTable, part: int, optimizer: Optimizer, rate: float) -> str:
    """Where the owner's update leaves a row and its state; `rate` is what its host link carries back in bytes/s."""
    if not cut.in_host_memory:
        return ""
    unless = f" unless {_cached(cut, part)}" if cut.compute_kernel == "fused_uvm_caching" else ""
    state = "the state too, uncached" if host_state_bytes(optimizer, 1) else "the state stays in HBM"
    return f"; weights go back to host memory at {format_bandwidth(rate)}{unless}, {state}"


def _cached(cut: ShardedTable, part: int) -> str:
    held = int(cached_rows(cut)[part])
    return f"it is one of the {held:,} hottest rows of the shard, which an ideal cache holds in HBM"
