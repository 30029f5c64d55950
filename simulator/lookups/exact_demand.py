"""What a step demands exactly, counted from one batch of ids per rank; the same form as the closed expectation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.demand import BatchOwnerDemand, Demand, FamilyDemand, LocalDemand, ReplicaDemand
from foreshard.simulator.job.layout import Groups, Layout, ResolvedLayout, resolve_layout
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.sharding import ShardedTable, ShardingType
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.job.workload import Workload
from foreshard.simulator.lookups.exact_counts import FamilyCounts, TouchedRows, shards_at_owners, shards_held, union_of
from foreshard.simulator.lookups.expectation import FAMILY_ORDER
from foreshard.simulator.lookups.host_rows import missing_share
from foreshard.simulator.lookups.routing import slots_of
from foreshard.simulator.lookups.tally import state_elements_per_row
from foreshard.simulator.plans.rows import rows_held
from foreshard.topologies.errors import InputError

__all__ = ["CountedStep", "count_step", "exact_demand"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Family:
    """One sharding kind, pooled or sequence: its counts and the distinct rows of the group being counted.

    `rows` [groups][tables] are the distinct rows of the groups counted so far; `touched` [3, ranks] holds rows,
    elements and weight bytes of the distinct rows at their owners, `host` [3, ranks] the bytes of them that cross the
    host link, given the `missing` share of each table's rows (see `TouchedRows.host_at_owners`).
    """

    sharding: ShardingType
    pooled: bool
    tables: tuple[ShardedTable, ...]
    counts: FamilyCounts
    group_rows: TouchedRows
    rows: list[list[IntArray]]
    touched: FloatArray
    host: FloatArray
    missing: tuple[FloatArray, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CountedStep:
    """The demand of a step and the distinct rows of every sharded table, group by group, [groups]."""

    demand: Demand
    rows: Mapping[str, tuple[IntArray, ...]]


def exact_demand(
    workload: Workload,
    sharded: tuple[ShardedTable, ...],
    layout: ResolvedLayout,
    node_of: IntArray,
    batches: Sequence[JaggedBatch],
    *,
    optimizer: Optimizer = "rowwise_adagrad",
    dedup: bool = False,
) -> Demand:
    """Return the demand of the step in which rank r trains on `batches[r]`, counted in ids, rows and elements.

    All groups have one size. `sharded` comes from `resolve_plan`; `node_of` [ranks] is each rank's node. Batches are
    asked for one by one, each once, group by group, so that they may be drawn or read on demand; a terminal sees
    progress after 2 s. With `dedup` every rank asks for an id of a table once and pools by itself. A batch does not
    tell a sample's bags of a feature apart, so their mean number, `num_poolings`, is counted. Raises InputError if
    there is not one batch a rank, a feature is missing or an id lies outside its table.
    """
    return count_step(workload, sharded, layout, node_of, batches, optimizer=optimizer, dedup=dedup).demand


def count_step(
    workload: Workload,
    sharded: tuple[ShardedTable, ...],
    layout: ResolvedLayout,
    node_of: IntArray,
    batches: Sequence[JaggedBatch],
    *,
    optimizer: Optimizer = "rowwise_adagrad",
    dedup: bool = False,
) -> CountedStep:
    """Return what `exact_demand` returns, together with the rows that were touched."""
    if len(batches) != layout.world_size:
        raise InputError(
            f"{len(batches)} batches are given for {layout.world_size} ranks: give one batch for each rank"
        )
    families = _families(sharded, layout, dedup, workload.batch_size)
    replicated = _replicated(sharded, layout.world_size)
    sizes = np.zeros((3, layout.world_size))
    with tqdm(total=layout.world_size, desc="routing ids", unit="rank", delay=2, leave=False, disable=None) as progress:
        for members in layout.sharding.members:
            for rank in members.tolist():
                _count_rank(workload, families, replicated, rank, batches[rank], sizes)
                progress.update()
            for family in families:
                _take_rows(family, members, optimizer)
    demands = tuple(_family_demand(family, layout, node_of, optimizer) for family in families)
    demand = Demand(
        world_size=layout.world_size,
        families=demands,
        data_parallel=_local(replicated, np.zeros(layout.world_size, dtype=np.int64)),
        data_parallel_elements=float(sum(t.table.num_embeddings * t.table.embedding_dim for t in replicated.tables)),
        batch_ids=sizes[0],
        batch_lengths=sizes[1],
        replica_rounds=(_replica(families, demands, layout),),
        weighted=bool(sizes[2].any()),
    )
    return CountedStep(demand=demand, rows=dict(row for family in families for row in _rows(family)))


def _rows(family: _Family) -> Iterator[tuple[str, tuple[IntArray, ...]]]:
    """(Table, its distinct rows in every group) of a family."""
    for table, rows in zip(family.tables, zip(*family.rows, strict=True), strict=True):
        yield table.table.name, rows


def _families(sharded: Sequence[ShardedTable], layout: ResolvedLayout, dedup: bool, batch_size: int) -> list[_Family]:
    kinds = [(kind, pooled) for kind in FAMILY_ORDER for pooled in (True, False)]
    tables = [[t for t in sharded if (t.sharding, t.table.pooling != "none") == kind] for kind in kinds]
    return [_family(*kind, held, layout, dedup, batch_size) for kind, held in zip(kinds, tables, strict=True) if held]


def _family(
    kind: ShardingType,
    pooled: bool,
    tables: Sequence[ShardedTable],
    layout: ResolvedLayout,
    dedup: bool,
    batch_size: int,
) -> _Family:
    return _Family(
        sharding=kind,
        pooled=pooled,
        tables=tuple(tables),
        counts=FamilyCounts(tables, layout, dedup=dedup),
        group_rows=TouchedRows(tables),
        rows=[],
        touched=np.zeros((3, layout.world_size)),
        host=np.zeros((3, layout.world_size)),
        missing=tuple(_missing(table, layout.group_size, batch_size) for table in tables),
    )


def _missing(sharded: ShardedTable, ranks: int, batch_size: int) -> FloatArray:
    """Expected share of a table's distinct rows that HBM lacks, [row parts]."""
    features = len(sharded.table.features)
    return missing_share(sharded, batch_size * sharded.table.ids_per_sample / features, ranks * features)


def _replicated(sharded: Sequence[ShardedTable], world_size: int) -> _Family:
    """The data_parallel tables as a family in which every rank is its own sharding group."""
    alone = Layout(sharding_group_size=1)
    held = [replace(t, owners=np.zeros((1, 1), dtype=np.int64)) for t in sharded if t.sharding == "data_parallel"]
    return _family("data_parallel", True, held, resolve_layout(alone, world_size), False, 1)


def _count_rank(
    workload: Workload,
    families: Sequence[_Family],
    replicated: _Family,
    rank: int,
    batch: JaggedBatch,
    sizes: FloatArray,
) -> None:
    """Count one rank's batch in every family; its ids, lengths and whether there are weights in `sizes` [3, ranks]."""
    for family in (*families, replicated):
        family.counts.add(rank, batch)
        family.group_rows.add(batch)
    _take_rows(replicated, np.array([rank]), "sgd")
    lengths = dict(zip(batch.features, batch.lengths.sum(axis=1).tolist(), strict=True))
    used = [feature for table in workload.tables for feature in table.features]
    bags = batch.samples * sum(table.poolings_per_sample for table in workload.tables)
    sizes[:, rank] = sum(lengths[feature] for feature in used), bags, batch.weights is not None


def _take_rows(family: _Family, members: IntArray, optimizer: Optimizer) -> None:
    """Book the rows that one sharding group touched at its `members`, and keep them for the union over replicas."""
    rows = family.group_rows.take()
    family.touched[:, members] = family.group_rows.at_owners(rows, len(members))
    family.host[:, members] = family.group_rows.host_at_owners(rows, len(members), family.missing, optimizer)
    if family.sharding != "data_parallel":
        family.rows.append(rows)


def _local(family: _Family, position_of: IntArray) -> LocalDemand:
    """The family's row work on every rank."""
    counts, members = family.counts, int(position_of.max()) + 1
    shards = sum((shards_held(table, members) for table in family.tables), start=np.zeros(members))
    return LocalDemand(
        lookups=counts.lookups,
        lookup_bytes=counts.lookup_bytes,
        outputs=counts.outputs,
        distinct_rows=family.touched[0],
        distinct_elements=family.touched[1],
        distinct_bytes=family.touched[2],
        tables=shards[position_of],
        host_reads=counts.host_lookup_bytes + family.host[0],
        host_update_reads=family.host[1],
        host_writes=family.host[2],
    )


def _family_demand(family: _Family, layout: ResolvedLayout, node_of: IntArray, optimizer: Optimizer) -> FamilyDemand:
    counts, groups = family.counts, layout.sharding
    held = np.sum([_weights(table, layout.group_size, optimizer) for table in family.tables], axis=0)
    return FamilyDemand(
        sharding=family.sharding,
        pooled=family.pooled,
        tables=len(family.tables),
        features=sum(len(table.table.features) for table in family.tables),
        own=BatchOwnerDemand(ids=counts.own[0], gathered=counts.own[1], outputs=counts.own[2])
        if counts.dedup
        else None,
        ids=_all_to_all(groups, [counts.ids[members] for members in groups.members]),
        lengths=_all_to_all(groups, [counts.lengths[members] for members in groups.members]),
        output=_output(family, layout, node_of),
        local=_local(family, groups.position_of),
        weight_bytes=held[2][groups.position_of],
        weight_elements=held[1][groups.position_of],
        state_elements=held[3][groups.position_of],
    )


def _all_to_all(groups: Groups, matrices: Sequence[FloatArray]) -> Collective:
    return Collective(kind="all_to_all", groups=groups, traffic=tuple(map(PairBytes.dense, matrices)))


def _output(family: _Family, layout: ResolvedLayout, node_of: IntArray) -> tuple[Collective, ...]:
    """The exchanges of the forward; deduplicated and sequence families return vectors id by id."""
    counts, groups = family.counts, layout.sharding
    if family.pooled and not counts.dedup and family.sharding == "row_wise":
        columns = sum(table.table.poolings_per_sample * table.table.embedding_dim for table in family.tables)
        elements = tuple(float(counts.samples[members].sum()) * columns for members in groups.members)
        return (Collective(kind="reduce_scatter", groups=groups, nbytes=elements),)
    if family.pooled and not counts.dedup and family.sharding in ("table_row_wise", "grid_shard"):
        return _two_level(family, groups, layout.local_group_size(node_of))
    return (_all_to_all(groups, [counts.vectors[members].T for members in groups.members]),)


def _two_level(family: _Family, groups: Groups, local: int) -> tuple[Collective, ...]:
    """Partial pools summed inside the node that holds the table, then sent across nodes between equal places."""
    columns = _columns_of_nodes(family, len(groups.members[0]) // local, local)
    places = [members.reshape(-1, local) for members in groups.members]
    samples = family.counts.samples
    reduced = tuple(float(samples[place].sum() * held) for place in places for held in columns)
    inside = Groups(node for place in places for node in place)
    reduce = Collective(kind="reduce_scatter", groups=inside, nbytes=reduced)
    if len(columns) == 1:
        return (reduce,)
    across = Groups(row for place in places for row in place.T)
    return reduce, _all_to_all(across, [np.outer(columns, samples[row]) for row in across.members])


def _columns_of_nodes(family: _Family, nodes: int, local: int) -> FloatArray:
    """Pooled columns, over all features, of the column slices that each node of the group holds, [nodes]."""
    columns = np.zeros(nodes)
    for slot in slots_of(family.tables):
        columns[slot.table.owners[slot.column, 0] // local] += slot.width * slot.table.table.num_poolings
    return columns


def _replica(families: Sequence[_Family], demands: Sequence[FamilyDemand], layout: ResolvedLayout) -> ReplicaDemand:
    assert layout.replica is not None
    position, members = layout.sharding.position_of, layout.group_size
    union = np.zeros((3, members))
    for family in families:
        union += family.group_rows.at_owners(_union(family), members)
    return ReplicaDemand.of_shards(layout.replica, demands, union[0][position], union[1][position])


def _union(family: _Family) -> list[IntArray]:
    """Distinct rows of every table over all groups."""
    tables = zip(family.tables, zip(*family.rows, strict=True), strict=True)
    return [union_of(rows, table.table.num_embeddings) for table, rows in tables]


def _weights(table: ShardedTable, members: int, optimizer: Optimizer) -> FloatArray:
    """(Rows, elements, weight bytes, optimizer state elements) that every position holds, [4, members]."""
    rows = rows_held(table)
    state = np.zeros(members)
    for owners, width in zip(table.owners, np.diff(table.col_bounds).tolist(), strict=True):
        state += np.bincount(owners, weights=rows * state_elements_per_row(optimizer, width), minlength=members)
    return np.vstack((shards_at_owners(table, rows, members), state))
