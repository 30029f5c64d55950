"""What one step asks of every rank: ids, vectors and gradients to exchange, rows to read and to update.

A demand is counted in ids, rows and elements, never in seconds; it is either expected (closed form over the access
distributions) or exact (one sampled or recorded batch). The step program turns it into operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.sharding import ShardedTable, ShardingType, mean_vector_width

__all__ = ["BatchOwnerDemand", "Demand", "FamilyDemand", "LocalDemand", "ReplicaDemand", "vector_width"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LocalDemand:
    """Row work of every rank on its own shards in one step, all [ranks].

    `lookups` rows read; `lookup_bytes` bytes read for them, at least 128 per row (a DRAM sector group); `outputs`
    elements the lookup writes; `distinct_rows` rows written by the update, `distinct_elements` their elements,
    `distinct_bytes` their weight bytes; `tables` tables with a shard on the rank. Of tables in host memory,
    `host_reads` bytes come over the host link for the lookup, `host_update_reads` for the update, and `host_writes`
    go back; 0 without such tables.
    """

    lookups: FloatArray
    lookup_bytes: FloatArray
    outputs: FloatArray
    distinct_rows: FloatArray
    distinct_elements: FloatArray
    distinct_bytes: FloatArray
    tables: FloatArray
    host_reads: FloatArray = field(default_factory=lambda: np.zeros(1))
    host_update_reads: FloatArray = field(default_factory=lambda: np.zeros(1))
    host_writes: FloatArray = field(default_factory=lambda: np.zeros(1))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BatchOwnerDemand:
    """What ranks do for their own batch where ids are deduplicated, all [ranks].

    `ids` of the batch are made distinct before they are sent; `gathered` elements are read from the distinct vectors
    that come back, one vector for each id; `outputs` elements are written, one vector a bag or, of sequences, an id.
    """

    ids: FloatArray
    gathered: FloatArray
    outputs: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FamilyDemand:
    """The tables of one sharding kind, pooled or sequence: TorchRec runs one set of collectives for each.

    Where ids are deduplicated, `own` says what batch owners do for themselves; there `output` is one all_to_all of
    distinct vectors for every kind.

    `ids` and `lengths` are all-to-alls in the sharding groups, counted in ids and in lengths, from batch owner to
    row owner. `output` lists the exchanges of the forward in order, counted in elements, row owner to batch owner:
    an all_to_all for table-wise and column-wise kinds, a reduce_scatter for row-wise pooled tables, both for
    table_row_wise and grid_shard. The backward mirrors them in reverse order. `weight_bytes`, `weight_elements`
    and `state_elements` (fp32 elements of optimizer state) [ranks] are those of the rank's shards.
    """

    sharding: ShardingType
    pooled: bool
    tables: int
    features: int
    own: BatchOwnerDemand | None = None
    ids: Collective
    lengths: Collective
    output: tuple[Collective, ...]
    local: LocalDemand
    weight_bytes: FloatArray
    weight_elements: FloatArray
    state_elements: FloatArray

    @property
    def imbalance(self) -> float:
        """Lookups of the busiest rank over the mean of all ranks; 1 is perfect balance."""
        mean = float(self.local.lookups.mean())
        return float(self.local.lookups.max()) / mean if mean > 0 else 1.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReplicaDemand:
    """What replicas must synchronise at once; `groups` are ranks that hold the same rows, arrays are [ranks].

    `shards` are the shards, or the pieces of shards, that the rank holds in common with its group, `weight_bytes` and
    `weight_elements` their weights, `state_elements` optimizer state elements kept with them (fp32). `touched_rows` and
    `touched_elements`: those of its distinct rows that the rank's step touched; `union_rows`, `union_elements`:
    distinct over all ranks of the group.
    """

    groups: Groups
    shards: FloatArray
    weight_bytes: FloatArray
    weight_elements: FloatArray
    state_elements: FloatArray
    touched_rows: FloatArray
    touched_elements: FloatArray
    union_rows: FloatArray
    union_elements: FloatArray

    @classmethod
    def of_shards(
        cls, groups: Groups, families: Sequence[FamilyDemand], union_rows: FloatArray, union_elements: FloatArray
    ) -> ReplicaDemand:
        """What replicas of whole shards synchronise: all that the families' ranks hold and touch."""
        zero = np.zeros(groups.world_size)
        return cls(
            groups=groups,
            shards=sum((family.local.tables for family in families), start=zero),
            weight_bytes=sum((family.weight_bytes for family in families), start=zero),
            weight_elements=sum((family.weight_elements for family in families), start=zero),
            state_elements=sum((family.state_elements for family in families), start=zero),
            touched_rows=sum((family.local.distinct_rows for family in families), start=zero),
            touched_elements=sum((family.local.distinct_elements for family in families), start=zero),
            union_rows=union_rows,
            union_elements=union_elements,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Demand:
    """One step of the whole job.

    `families` in the order table_wise, column_wise, table_column_wise, row_wise, table_row_wise, grid_shard, pooled
    before sequence. `data_parallel` is the row work of replicated tables, `data_parallel_elements` their weight
    elements, whose dense gradients join the dense all-reduce. `batch_ids` and `batch_lengths` [ranks] are the ids
    and lengths of the rank's own batch, as they come from the host; `weighted`, whether every id has an fp32 weight.
    `replica_rounds` is what replicas synchronise, in turn: whole shards in one round where sharding groups have one
    size, else pieces that shards have in common.
    """

    world_size: int
    families: tuple[FamilyDemand, ...]
    data_parallel: LocalDemand
    data_parallel_elements: float
    batch_ids: FloatArray
    batch_lengths: FloatArray
    replica_rounds: tuple[ReplicaDemand, ...]
    weighted: bool = False

    def sends_weights(self, family: FamilyDemand) -> bool:
        """Whether ids go to their owners with weights: not where owners return vectors id by id."""
        return self.weighted and family.pooled and family.own is None

    @property
    def replica(self) -> ReplicaDemand:
        """What each rank synchronises in all rounds together; in several, the groups are all ranks."""
        if len(self.replica_rounds) == 1:
            return self.replica_rounds[0]
        names = [item.name for item in fields(ReplicaDemand) if item.name != "groups"]
        zero = np.zeros(self.world_size)
        totals = {name: sum((getattr(one, name) for one in self.replica_rounds), start=zero) for name in names}
        return ReplicaDemand(groups=Groups.world(self.world_size), **totals)


def vector_width(family: FamilyDemand, sharded: Iterable[ShardedTable]) -> float:
    """Return the mean elements of a vector that a family's owners send: of bags, of ids, or of distinct rows."""
    if family.own is not None:
        return float(family.local.outputs.sum() / family.local.lookups.sum())
    return mean_vector_width(sharded, family.sharding, pooled=family.pooled)
