"""What a step demands in expectation, in closed form over the access distributions: equal batches on every rank.

A batch of one rank holds `batch_size` x pooling factor ids of every feature. All ranks send the same, so traffic has
the form out[s] x share[d], and every replica of the tables sees the same demand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.demand import Demand, FamilyDemand, LocalDemand, ReplicaDemand
from foreshard.simulator.job.layout import ResolvedLayout
from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.sharding import ShardedTable, ShardingType
from foreshard.simulator.job.workload import Table, Workload
from foreshard.simulator.lookups.exchange import Family, family_demand
from foreshard.simulator.lookups.tally import Batch, Tally

__all__ = ["FAMILY_ORDER", "expected_demand"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FAMILY_ORDER: tuple[ShardingType, ...] = (
    "table_wise", "column_wise", "table_column_wise", "row_wise", "table_row_wise", "grid_shard",
)  # fmt: skip


def expected_demand(
    workload: Workload,
    sharded: tuple[ShardedTable, ...],
    layout: ResolvedLayout,
    node_of: IntArray,
    optimizer: Optimizer = "rowwise_adagrad",
    *,
    count_rows: bool = True,
    dedup: bool = False,
) -> Demand:
    """Return the expected demand of one step, counted in ids, rows and elements; all groups have one size.

    `sharded` comes from `resolve_plan`; `node_of` [ranks] is each rank's node, which node-wise kinds exchange over.
    Without `count_rows`, which take most of the time, distinct rows are left out: NaN.
    With `dedup` every rank asks for a row of a table once and pools by itself.
    """
    batch = Batch(
        size=workload.batch_size,
        ranks=layout.group_size,
        replicas=layout.replicas,
        optimizer=optimizer,
        count_rows=count_rows,
        dedup=dedup,
    )
    families = _families(sharded, batch, layout, node_of)
    replicated = [item.table for item in sharded if item.sharding == "data_parallel"]
    tables = [item.table for item in sharded]
    return Demand(
        world_size=layout.world_size,
        families=tuple(demand for demand, _ in families),
        data_parallel=_data_parallel(replicated, workload.batch_size, layout.world_size),
        data_parallel_elements=float(sum(table.num_embeddings * table.embedding_dim for table in replicated)),
        batch_ids=np.full(layout.world_size, workload.batch_size * sum(table.ids_per_sample for table in tables)),
        batch_lengths=np.full(
            layout.world_size, workload.batch_size * sum(table.poolings_per_sample for table in tables)
        ),
        replica_rounds=(_replica(families, layout),),
        weighted=workload.weighted,
    )


def _families(
    sharded: Sequence[ShardedTable], batch: Batch, layout: ResolvedLayout, node_of: IntArray
) -> list[tuple[FamilyDemand, Tally]]:
    """Demand and tally of each kind of sharding, pooled before sequence, of those that have tables."""
    found = []
    for kind in FAMILY_ORDER:
        for pooled in (True, False):
            members = [s for s in sharded if s.sharding == kind and (s.table.pooling != "none") == pooled]
            if members:
                tally = Tally(batch)
                for item in members:
                    tally.add(item)
                family = Family(sharding=kind, pooled=pooled, members=tuple(members), tally=tally)
                found.append((family_demand(family, layout, node_of), tally))
    return found


def _data_parallel(tables: Sequence[Table], batch_size: int, world_size: int) -> LocalDemand:
    """Row work on tables that every rank holds whole: each rank looks up its own batch."""
    whole = Batch(size=batch_size, ranks=1, replicas=1, optimizer="sgd")
    tally = Tally(whole)
    for table in tables:
        tally.add_whole(table)
    return tally.local(np.zeros(world_size, dtype=np.int64))


def _replica(families: Sequence[tuple[FamilyDemand, Tally]], layout: ResolvedLayout) -> ReplicaDemand:
    assert layout.replica is not None
    position = layout.sharding.position_of

    def union(name: str) -> FloatArray:
        return sum((tally.of(name)[position] for _, tally in families), start=np.zeros(layout.world_size))

    demands = [demand for demand, _ in families]
    return ReplicaDemand.of_shards(layout.replica, demands, union("union_rows"), union("union_elements"))
