"""The demand of a step whose sharding groups may have different sizes: counted size by size, then put together.

Look-ups never leave a sharding group, so the groups of one size are a job of their own up to replica synchronisation,
which `overlap` works out between all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.demand import BatchOwnerDemand, Demand, FamilyDemand, LocalDemand, ReplicaDemand
from foreshard.simulator.job.handed import received
from foreshard.simulator.job.layout import Groups, ResolvedLayout, SameSize
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.job.workload import Workload
from foreshard.simulator.lookups.exact_counts import union_of
from foreshard.simulator.lookups.exact_demand import CountedStep, count_step, exact_demand
from foreshard.simulator.lookups.expectation import expected_demand
from foreshard.simulator.lookups.overlap import Overlap, TablePieces

__all__ = ["exact_demand_of_plans", "expected_demand_of_plans"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Plans = Sequence[tuple[ShardedTable, ...]]


def expected_demand_of_plans(
    workload: Workload,
    plans: Plans,
    layout: ResolvedLayout,
    node_of: IntArray,
    optimizer: Optimizer = "rowwise_adagrad",
    *,
    count_rows: bool = True,
    dedup: bool = False,
) -> Demand:
    """Return the expected demand of one step, as `expected_demand` does; `plans` are those of `layout.by_size()`."""
    parts = layout.by_size()
    demands = [
        expected_demand(
            workload, sharded, part.layout, node_of[part.ranks], optimizer, count_rows=count_rows, dedup=dedup
        )
        for sharded, part in zip(plans, parts, strict=True)
    ]
    if layout.even:
        return demands[0]
    batch_size = workload.batch_size if count_rows else None
    return _joined(layout, parts, demands, _expected_rounds(batch_size, plans, layout, optimizer))


def _expected_rounds(
    batch_size: int | None, plans: Plans, layout: ResolvedLayout, optimizer: Optimizer
) -> tuple[ReplicaDemand, ...]:
    """What replicas synchronise; without a batch size distinct rows are left out."""
    overlap = Overlap(plans, layout)
    if not overlap.tables:
        return ()

    def distinct(ranks: int) -> list[FloatArray]:
        if batch_size is None:
            return [np.full(table.pieces, np.nan) for table in overlap.tables]
        return [_distinct(table, batch_size, ranks) for table in overlap.tables]

    touched = [distinct(part.layout.group_size) for part in layout.by_size()]
    return overlap.demand(touched, overlap.size_of, distinct(layout.world_size), optimizer)


def _distinct(pieces: TablePieces, batch_size: int, ranks: int) -> FloatArray:
    """Expected distinct rows of each piece in the batches of so many ranks; each feature of a rank is a stream."""
    features = len(pieces.table.features)
    return pieces.split.distinct(batch_size * pieces.table.ids_per_sample / features, ranks * features)


def exact_demand_of_plans(
    workload: Workload,
    plans: Plans,
    layout: ResolvedLayout,
    node_of: IntArray,
    batches: Sequence[JaggedBatch],
    *,
    optimizer: Optimizer = "rowwise_adagrad",
    dedup: bool = False,
) -> Demand:
    """Return the demand of the step in which rank r trains on `batches[r]`, as `exact_demand` does."""
    if layout.even:
        return exact_demand(workload, plans[0], layout, node_of, batches, optimizer=optimizer, dedup=dedup)
    parts = layout.by_size()
    steps = [
        count_step(
            workload, sharded, part.layout, node_of[part.ranks], _Renumbered(batches, part.ranks),
            optimizer=optimizer, dedup=dedup,
        )
        for sharded, part in zip(plans, parts, strict=True)
    ]  # fmt: skip
    return _joined(layout, parts, [step.demand for step in steps], _exact_rounds(plans, layout, steps, optimizer))


class _Renumbered(Sequence[JaggedBatch]):
    """The batches of some ranks of the world, numbered anew."""

    def __init__(self, batches: Sequence[JaggedBatch], ranks: IntArray) -> None:
        self._batches = batches
        self._ranks: list[int] = ranks.tolist()

    def __len__(self) -> int:
        return len(self._ranks)

    @overload
    def __getitem__(self, index: int) -> JaggedBatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[JaggedBatch]: ...
    def __getitem__(self, index: int | slice) -> JaggedBatch | list[JaggedBatch]:
        if isinstance(index, slice):
            return [self._batches[rank] for rank in self._ranks[index]]
        return self._batches[self._ranks[index]]


def _exact_rounds(
    plans: Plans, layout: ResolvedLayout, steps: Sequence[CountedStep], optimizer: Optimizer
) -> tuple[ReplicaDemand, ...]:
    overlap = Overlap(plans, layout)
    if not overlap.tables:
        return ()
    touched: list[list[IntArray]] = []  # size by size, group by group
    union = [np.zeros(0, dtype=np.int64)] * len(overlap.tables)
    for step in steps:
        by_table = [step.rows[table.table.name] for table in overlap.tables]
        touched += [list(map(_in_pieces, overlap.tables, rows)) for rows in zip(*by_table, strict=True)]
        union = [
            union_of([before, *rows], table.table.num_embeddings)
            for before, rows, table in zip(union, by_table, overlap.tables, strict=True)
        ]
    order = np.argsort(overlap.size_of, kind="stable")
    which = np.empty_like(order)
    which[order] = np.arange(len(order))
    return overlap.demand(touched, which, list(map(_in_pieces, overlap.tables, union)), optimizer)


def _in_pieces(pieces: TablePieces, rows: IntArray) -> IntArray:
    """Rows in each piece, [pieces]."""
    return np.bincount(pieces.find(rows), minlength=pieces.pieces)


# -- putting the sizes together ----------------------------------------------------------------------------------


def _joined(
    layout: ResolvedLayout,
    parts: Sequence[SameSize],
    demands: Sequence[Demand],
    rounds: tuple[ReplicaDemand, ...],
) -> Demand:
    ranks = [part.ranks for part in parts]
    families = zip(*(demand.families for demand in demands), strict=True)
    return Demand(
        world_size=layout.world_size,
        families=tuple(_joined_family(ranks, family) for family in families),
        data_parallel=_joined_local(ranks, [demand.data_parallel for demand in demands]),
        data_parallel_elements=demands[0].data_parallel_elements,
        batch_ids=_scattered(ranks, [demand.batch_ids for demand in demands]),
        batch_lengths=_scattered(ranks, [demand.batch_lengths for demand in demands]),
        replica_rounds=rounds,
        weighted=any(demand.weighted for demand in demands),
    )


def _joined_family(ranks: Sequence[IntArray], family: Sequence[FamilyDemand]) -> FamilyDemand:
    def scattered(of: Callable[[FamilyDemand], FloatArray]) -> FloatArray:
        return _scattered(ranks, [of(part) for part in family])

    hops = max(len(part.output) for part in family)
    outputs = [_padded(part.output, hops) for part in family]
    return replace(
        family[0],
        ids=_joined_collective(ranks, [part.ids for part in family]),
        lengths=_joined_collective(ranks, [part.lengths for part in family]),
        output=tuple(_joined_collective(ranks, hop) for hop in zip(*outputs, strict=True)),
        local=_joined_local(ranks, [part.local for part in family]),
        own=_joined_own(ranks, [part.own for part in family if part.own is not None]),
        weight_bytes=scattered(lambda part: part.weight_bytes),
        weight_elements=scattered(lambda part: part.weight_elements),
        state_elements=scattered(lambda part: part.state_elements),
    )


def _padded(output: tuple[Collective, ...], hops: int) -> tuple[Collective, ...]:
    """The exchanges with one more for groups inside one node, which send nothing across: each rank keeps its own."""
    if len(output) == hops:
        return output
    kept = received(output[-1])
    alone = Groups(np.arange(len(kept))[:, None])
    traffic = tuple(PairBytes.dense(np.array([[elements]])) for elements in kept.tolist())
    return (*output, Collective(kind="all_to_all", groups=alone, traffic=traffic))


def _joined_collective(ranks: Sequence[IntArray], parts: Sequence[Collective]) -> Collective:
    """One collective over the groups of all parts."""
    members = [ranks_of[group] for ranks_of, part in zip(ranks, parts, strict=True) for group in part.groups.members]
    numbered = [(part, group) for part in parts for group in range(len(part.groups))]
    if parts[0].kind == "all_to_all":
        traffic = tuple(part.traffic_of(group) for part, group in numbered)
        return replace(parts[0], groups=Groups(members), traffic=traffic)
    return replace(parts[0], groups=Groups(members), nbytes=tuple(part.nbytes_of(group) for part, group in numbered))


def _joined_local(ranks: Sequence[IntArray], parts: Sequence[LocalDemand]) -> LocalDemand:
    names = [field.name for field in fields(LocalDemand)]
    return LocalDemand(**{name: _scattered(ranks, [getattr(part, name) for part in parts]) for name in names})


def _joined_own(ranks: Sequence[IntArray], parts: Sequence[BatchOwnerDemand]) -> BatchOwnerDemand | None:
    """Where ids are deduplicated, what ranks do for their own batches."""
    if not parts:
        return None
    names = [field.name for field in fields(BatchOwnerDemand)]
    return BatchOwnerDemand(**{name: _scattered(ranks, [getattr(part, name) for part in parts]) for name in names})


def _scattered(ranks: Sequence[IntArray], parts: Sequence[FloatArray]) -> FloatArray:
    """The values of all parts' ranks on the ranks of the world."""
    values = np.empty(sum(map(len, parts)))
    for ranks_of, part in zip(ranks, parts, strict=True):
        values[ranks_of] = part
    return values
