"""Which rows of a table in host memory cross the host link: in expectation, of an ideal cache of the hottest rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.ids.access import Distribution, RowParts
from foreshard.simulator.job.codecs import FULL_BYTES
from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.plans.rows import rows_held

__all__ = ["cached_rows", "host_state_bytes", "missing_share", "row_parts_of"]

FloatArray = NDArray[np.float64]


def row_parts_of(sharded: ShardedTable) -> RowParts:
    """The row parts of a table with the ids that fall on them."""
    distribution = Distribution.of(sharded.table)
    if sharded.owner == "hash" and sharded.row_parts > 1:
        return distribution.hash_parts(sharded.row_parts)
    return distribution.row_ranges(sharded.row_bounds)


def cached_rows(sharded: ShardedTable) -> FloatArray:
    """Rows that HBM holds of each row part, [row parts]: all with fused, none with fused_uvm."""
    match sharded.compute_kernel:
        case "fused":
            share = 1.0
        case "fused_uvm":
            share = 0.0
        case "fused_uvm_caching":
            share = sharded.cache_load_factor
    return np.asarray(np.floor(share * rows_held(sharded)), dtype=np.float64)


def missing_share(sharded: ShardedTable, draws: float, streams: int) -> FloatArray:
    """Share of the distinct rows among `draws` ids in each of `streams` batches that HBM lacks, [row parts]."""
    if sharded.compute_kernel != "fused_uvm_caching":
        return np.full(sharded.row_parts, float(sharded.in_host_memory))
    return row_parts_of(sharded).missed(cached_rows(sharded), draws, streams)


def host_state_bytes(optimizer: Optimizer, columns: int) -> float:
    """Bytes of optimizer state in host memory for a row of `columns` columns of a table in host memory.

    Row-wise state stays in HBM; other state lies in host memory with the weights, and is never cached:
    pytorch/FBGEMM, construct_split_state, called with cacheable=False for optimizer state.
    """
    per_element = {"adagrad": 1, "adam": 2}.get(optimizer, 0)
    return float(per_element * columns * FULL_BYTES)
