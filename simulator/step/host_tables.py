"""Tables in host memory: the bytes that leave HBM for it, and the cache that stays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.layout import ResolvedLayout
from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT
from foreshard.simulator.lookups.host_rows import host_state_bytes
from foreshard.simulator.plans.rows import rows_held

__all__ = ["CACHE_ROW_BYTES", "CACHE_SLOT_BYTES", "HostTables", "tables_in_host_memory"]

FloatArray = NDArray[np.float64]

# A cache needs 4 bytes for each row of the shard and 16 for each row it has room for:
# meta-pytorch/torchrec planner/shard_estimators.py, calculate_shard_storages, "cache_aux_state".
CACHE_ROW_BYTES = 4.0
CACHE_SLOT_BYTES = 16.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HostTables:
    """Bytes of the tables in host memory that are a rank's, all [ranks].

    `weights` and optimizer `state` lie in the host memory of the rank's node, the `cache` in its HBM.
    """

    weights: FloatArray
    state: FloatArray
    cache: FloatArray


def tables_in_host_memory(sharded: Iterable[ShardedTable], layout: ResolvedLayout, optimizer: Optimizer) -> HostTables:
    """Return what the ranks of equal sharding groups keep in host memory, and their caches."""
    weights, state, cache = np.zeros((3, layout.group_size))
    for table in sharded:
        if table.in_host_memory:
            element = float(BYTES_PER_ELEMENT[table.table.data_type])
            for owners, width in zip(table.owners, np.diff(table.col_bounds).tolist(), strict=True):
                rows = np.bincount(owners, weights=rows_held(table), minlength=layout.group_size)
                weights += rows * width * element
                state += rows * host_state_bytes(optimizer, width)
                cache += rows * _cache_bytes(table, width * element)
    position = layout.sharding.position_of
    if not layout.even:  # plans with tables in host memory have one group
        return HostTables(weights=np.zeros(len(position)), state=np.zeros(len(position)), cache=np.zeros(len(position)))
    return HostTables(weights=weights[position], state=state[position], cache=cache[position])


def _cache_bytes(table: ShardedTable, row_bytes: float) -> float:
    """HBM bytes of the cache for each row of a shard."""
    if table.compute_kernel != "fused_uvm_caching":
        return 0.0
    load = table.cache_load_factor
    return load * row_bytes + CACHE_ROW_BYTES + CACHE_SLOT_BYTES * load
