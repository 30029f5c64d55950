"""One family of tables (a sharding kind, pooled or by id) as one rank sees it: slots, lanes, and its exchanges.

A family is exchanged *by id* where its tables are sequences or ids are deduplicated: then a vector comes back for every
id asked for. Else owners pool, and a vector comes back for every bag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from foreshard.calibration.runner.blocks import Block, Hop
from foreshard.simulator.job.demand import FamilyDemand
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.lookups.routing import Lanes, Slot, lanes_of, slots_of
from foreshard.simulator.step.prediction import Prediction
from foreshard.simulator.step.replica_ops import family_name

__all__ = ["Family", "Vector", "families_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Vector:
    """A feature's vectors of a batch: table by its number in the workload, feature, and columns of one piece."""

    table: int
    feature: str
    width: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """The `tables` of a family, by `numbers` in the workload, in a sharding group of `members` ranks.

    This rank stands at `position`; each rank has `samples`. `local` neighbouring positions share a node. `hops` is how
    many exchanges bring vectors back.
    """

    name: str
    pooled: bool
    dedup: bool
    tables: tuple[ShardedTable, ...]
    numbers: tuple[int, ...]
    members: int
    position: int
    local: int
    samples: int
    hops: int

    @property
    def by_id(self) -> bool:
        """Whether a vector comes back for every id."""
        return self.dedup or not self.pooled

    @property
    def summed(self) -> bool:
        """Whether owners' partial pools are summed on the way back."""
        return not self.by_id and self.tables[0].sharding in ("row_wise", "table_row_wise", "grid_shard")

    @property
    def two_level(self) -> bool:
        """Whether they are summed inside a node first."""
        return self.summed and self.tables[0].sharding != "row_wise"

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """All slots, in the order in which ids are requested."""
        return slots_of(self.tables)

    @cached_property
    def lanes(self) -> Lanes:
        """(Owner, slot) pairs of the whole group."""
        return lanes_of(self.slots, self.members)

    def slots_at(self, position: int) -> list[int]:
        """The slots of which a position owns a part: its lanes."""
        slots: list[int] = self.lanes.slot[self.lanes.owner == position].tolist()
        return slots

    @cached_property
    def mine(self) -> list[int]:
        """The slots of which this rank owns a part."""
        return self.slots_at(self.position)

    def widths_at(self, position: int) -> tuple[int, ...]:
        """Columns of every lane of a position."""
        return self._widths(self.slots_at(position))

    def _widths(self, slots: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.slots[slot].width for slot in slots)

    @cached_property
    def all_widths(self) -> tuple[int, ...]:
        """Columns of every slot."""
        return self._widths(range(len(self.slots)))

    @cached_property
    def lanes_sent(self) -> list[int]:
        """Lanes of each member."""
        counts: list[int] = np.bincount(self.lanes.owner, minlength=self.members).tolist()
        return counts

    @cached_property
    def number_of(self) -> dict[str, int]:
        """The number in the workload of each table."""
        return {one.table.name: number for one, number in zip(self.tables, self.numbers, strict=True)}

    @cached_property
    def features(self) -> tuple[tuple[int, str], ...]:
        """(Place among `tables`, feature), table by table."""
        return tuple((place, feature) for place, one in enumerate(self.tables) for feature in one.table.features)

    @property
    def has_means(self) -> bool:
        """Whether any table is pooled by the mean."""
        return any(one.table.pooling == "mean" for one in self.tables)

    @cached_property
    def pieces(self) -> tuple[Vector, ...]:
        """The vectors of a joined output in order: slot by slot, or feature by feature where ids are deduplicated."""
        if self.dedup:
            return tuple(
                Vector(table=self.numbers[place], feature=feature, width=self.tables[place].table.embedding_dim)
                for place, feature in self.features
            )
        return tuple(
            Vector(table=self.number_of[slot.table.table.name], feature=slot.feature, width=slot.width)
            for slot in self.slots
        )

    # -- pooled vectors on their way back ----------------------------------------------------------------------

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """The slots that come from each source of the last exchange: a member, a node, or the sum of all."""
        if self.two_level:
            return tuple(tuple(self.slots_at(first)) for first in range(0, self.members, self.local))
        if self.summed:
            return (tuple(range(len(self.slots))),)
        return tuple(tuple(self.slots_at(member)) for member in range(self.members))

    @cached_property
    def joined_widths(self) -> list[tuple[int, ...]]:
        """Columns of what comes from each source."""
        return [self._widths(slots) for slots in self.sources]

    @cached_property
    def join_order(self) -> list[int] | None:
        """Which received vector comes first when joined in slot order; None where they come in that order."""
        received = [slot for slots in self.sources for slot in slots]
        order: list[int] = np.argsort(received, kind="stable").tolist()
        return None if order == list(range(len(order))) else order

    @cached_property
    def pooled_hops(self) -> tuple[Hop, ...]:
        """The exchanges of pooled vectors, from owners to batch owners."""
        own, batch = self.widths_at(self.position), self.samples
        if self.two_level:
            return self._two_level(own)
        if self.summed:
            part = (Block(batch, self.all_widths),)
            return (Hop("reduce_scatter", (part,) * self.members, (part,)),)
        receive = tuple((Block(batch, widths),) for widths in self.joined_widths)
        return (Hop("all_to_all", ((Block(batch, own),),) * self.members, receive),)

    def _two_level(self, own: tuple[int, ...]) -> tuple[Hop, ...]:
        """Sums inside the node, then across nodes between ranks at equal places; a group on one node keeps its own."""
        nodes = self.members // self.local
        part = (Block(self.samples, own),) * nodes
        inside = Hop("reduce_scatter", (part,) * self.local, (part,))
        if self.hops == 1:
            return (inside,)
        receive = tuple((Block(self.samples, widths),) for widths in self.joined_widths)
        return inside, Hop("all_to_all", ((Block(self.samples, own),),) * nodes, receive)


def families_of(prediction: Prediction, rank: int) -> tuple[Family, ...]:
    """The families of a job as `rank` sees them, in the order of the program."""
    layout, workload = prediction.layout, prediction.scenario.workload
    size, local = layout.group_shapes(prediction.cluster.node_of)[layout.size_index(rank)]
    tables = list(enumerate(prediction.sharded_for(rank)))

    def build(demand: FamilyDemand) -> Family:
        kind = (demand.sharding, demand.pooled)
        held = [(number, one) for number, one in tables if (one.sharding, one.table.pooling != "none") == kind]
        return Family(
            name=family_name(demand),
            pooled=demand.pooled,
            dedup=demand.own is not None,
            tables=tuple(one for _, one in held),
            numbers=tuple(number for number, _ in held),
            members=size,
            position=int(layout.sharding.position_of[rank]),
            local=local,
            samples=workload.batch_size,
            hops=len(demand.output),
        )

    return tuple(build(demand) for demand in prediction.demand.families)
