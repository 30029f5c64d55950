"""The collectives of one family of tables, in ids, lengths and elements, as TorchRec's sharding kinds run them.

Kinds and their exchanges: meta-pytorch/torchrec distributed/sharding (tw, cw, rw, twrw, grid) and a profiler record
of its steps. Each member of a group contributes an equal batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.demand import BatchOwnerDemand, FamilyDemand
from foreshard.simulator.job.layout import Groups, ResolvedLayout
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.sharding import ShardedTable, ShardingType
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.lookups.tally import Tally

__all__ = ["Family", "family_demand"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Family:
    """The tables of one sharding kind, pooled or sequence, and what was counted for them."""

    sharding: ShardingType
    pooled: bool
    members: tuple[ShardedTable, ...]
    tally: Tally


def family_demand(family: Family, layout: ResolvedLayout, node_of: IntArray) -> FamilyDemand:
    """Return the family's collectives over the sharding groups and its row work on every rank."""
    position_of = layout.sharding.position_of
    return FamilyDemand(
        sharding=family.sharding,
        pooled=family.pooled,
        tables=len(family.members),
        features=sum(len(item.table.features) for item in family.members),
        own=_own(family, layout.world_size) if family.tally.batch.dedup else None,
        ids=_from_batches(layout.sharding, family.tally.of("ids")),
        lengths=_from_batches(layout.sharding, family.tally.of("lengths")),
        output=_output(family, layout, node_of),
        local=family.tally.local(position_of),
        weight_bytes=family.tally.of("weight_bytes")[position_of],
        weight_elements=family.tally.of("weight_elements")[position_of],
        state_elements=family.tally.of("state_elements")[position_of],
    )


def _own(family: Family, world_size: int) -> BatchOwnerDemand:
    """What every rank does for its own batch to deduplicate it and to use the distinct vectors."""
    tables = [item.table for item in family.members]
    ids = sum(table.ids_per_sample for table in tables)
    gathered = sum(table.ids_per_sample * table.embedding_dim for table in tables)
    outputs = sum(table.vectors_per_sample * table.embedding_dim for table in tables)
    batch = float(family.tally.batch.size)
    return BatchOwnerDemand(
        ids=np.full(world_size, batch * ids),
        gathered=np.full(world_size, batch * gathered),
        outputs=np.full(world_size, batch * outputs),
    )


def _from_batches(groups: Groups, wanted: FloatArray) -> Collective:
    """Every member sends `wanted` [members] to its group: the same from each, for batches are equal."""
    total = float(wanted.sum())
    traffic = PairBytes.outer(np.full(len(wanted), total), wanted / total)
    return Collective(kind="all_to_all", groups=groups, traffic=(traffic,))


def _to_batches(groups: Groups, held: FloatArray) -> Collective:
    """Every member sends what it `held` [members] in equal parts to the batches of its group."""
    members = len(held)
    traffic = PairBytes.outer(held, np.full(members, 1.0 / members))
    return Collective(kind="all_to_all", groups=groups, traffic=(traffic,))


def _output(family: Family, layout: ResolvedLayout, node_of: IntArray) -> tuple[Collective, ...]:
    if family.tally.batch.dedup:
        return (_to_batches(layout.sharding, family.tally.of("vectors")),)
    if family.pooled and family.sharding == "row_wise":
        return (_reduce_over_group(family, layout),)
    if family.pooled and family.sharding in ("table_row_wise", "grid_shard"):
        return _reduce_over_nodes(family, layout, node_of)
    return (_to_batches(layout.sharding, family.tally.of("vectors")),)


def _reduce_over_group(family: Family, layout: ResolvedLayout) -> Collective:
    """Partial pools of the whole group's batch, [ranks x batch, sum of dims], summed and scattered to batch owners."""
    columns = sum(item.table.vectors_per_sample * item.table.embedding_dim for item in family.members)
    elements = float(family.tally.batch.ranks * family.tally.batch.size * columns)
    return Collective(kind="reduce_scatter", groups=layout.sharding, nbytes=(elements,))


def _reduce_over_nodes(family: Family, layout: ResolvedLayout, node_of: IntArray) -> tuple[Collective, ...]:
    """Partial pools are summed inside the node that holds the table, then sent across nodes between equal places.

    After the reduce_scatter the l-th rank of node n holds the node's pooled columns for the batches of the l-th
    ranks of all nodes; the all_to_all brings each batch its own.
    """
    batch = family.tally.batch
    local = layout.local_group_size(node_of)
    nodes = batch.ranks // local
    columns = _columns_of_nodes(family, nodes, local)
    places = [members.reshape(nodes, local) for members in layout.sharding.members]
    inside = Groups(node for place in places for node in place)
    across = Groups(row for place in places for row in place.T)
    elements = [float(batch.ranks * batch.size * held) for held in columns] * len(places)
    reduce = Collective(kind="reduce_scatter", groups=inside, nbytes=tuple(elements))
    return (reduce, _to_batches(across, nodes * batch.size * columns)) if nodes > 1 else (reduce,)


def _columns_of_nodes(family: Family, nodes: int, local: int) -> FloatArray:
    """Pooled columns per sample, over all features, of the tables and column slices that each node holds, [nodes]."""
    columns = np.zeros(nodes)
    for item in family.members:
        widths = np.diff(item.col_bounds) * item.table.vectors_per_sample
        np.add.at(columns, item.owners[:, 0] // local, widths)
    return columns
