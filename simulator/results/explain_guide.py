"""Works out the way of one id: owners and replicas from plans, paths from the cluster, times from the prediction."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np

from foreshard.simulator.comms.hierarchical import way_in_two_steps
from foreshard.simulator.comms.members import Members
from foreshard.simulator.ids.access import Distribution
from foreshard.simulator.job.codecs import FULL_BYTES, carried, wire_bytes
from foreshard.simulator.job.hashing import hash_part
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, DataType
from foreshard.simulator.lookups.tally import state_elements_per_row
from foreshard.simulator.plans.balance import ROW_READ_FLOOR_BYTES
from foreshard.simulator.plans.rows import part_finder
from foreshard.simulator.results.explain import (
    Explanation,
    Holder,
    Hop,
    LinkOnPath,
    Owner,
    Span,
    StageStory,
    check_question,
)
from foreshard.simulator.results.explain_host import read_words, written_words
from foreshard.simulator.results.profile_text import timed_by
from foreshard.simulator.step.costs import INDEX_BYTES, LENGTH_BYTES
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import InputError
from foreshard.topologies.units import format_bandwidth

__all__ = ["explain"]

_COUNTED_IDS = 200_000_000  # ids before one of a hashed table that are still hashed to count its local row: seconds
_AT_ONCE = 1 << 20


def explain(source: Prediction, table: str, row: int | str, rank: int | str) -> Explanation:
    """Return the way of id `row` of `table`, asked by `rank`, through the predicted step.

    Raises InputError with everything that does not exist: the table, the id in the table, the rank in the world.
    """
    problems = [*check_question(source, table, row, rank)]
    if problems or isinstance(row, str) or isinstance(rank, str):
        raise InputError(problems, where=f"scenario {source.scenario.name!r}")
    return _Guide(source, table, row, rank).explanation()


class _Guide:
    def __init__(self, source: Prediction, table: str, row: int, rank: int) -> None:
        self.source, self.row, self.rank = source, row, rank
        tables = [one.name for one in source.scenario.workload.tables]
        self.index = tables.index(table)
        self.cut = source.sharded_for(rank)[self.index]
        self.table = self.cut.table
        sharding = source.layout.sharding
        self.group, self.position = int(sharding.group_of[rank]), int(sharding.position_of[rank])
        self._places: dict[int, tuple[int, int | None]] = {}
        self.members: tuple[int, ...] = tuple(sharding.members[self.group].tolist())
        pooled = self.table.pooling != "none"
        self.family = self.cut.sharding + ("" if pooled else ".sequence")
        # With deduplication owners send the vector of every distinct id, and the batch owner pools.
        self.pooled_at_owner = pooled and not source.scenario.execution.dedup

    def explanation(self) -> Explanation:
        occurrences, counted = self._occurrences()
        return Explanation(
            scenario=self.source.scenario.name,
            table=self.table,
            sharding=self.cut.sharding,
            hashed=self.cut.owner == "hash" and self.cut.row_parts > 1,
            id=self.row,
            rank=self.rank,
            node=self._node(self.rank),
            group=self.group,
            members=self.members,
            position=self.position,
            occurrences=occurrences,
            counted=counted,
            owners=self.owners,
            stages=tuple(self._stages()),
            synchronised=self._synchronised(),
            timed_by=timed_by(self.source.profile, on_cpu=self.source.cluster.on_cpu),
        )

    # -- where the row is --------------------------------------------------------------------------------------

    def _node(self, rank: int) -> int:
        return int(self.source.cluster.node_of[rank])

    @cached_property
    def owners(self) -> tuple[Owner, ...]:
        """One owner for each column slice; none for a table that every rank holds."""
        return () if self.cut.sharding == "data_parallel" else tuple(map(self._owner, range(self.cut.col_parts)))

    def _owner(self, column: int) -> Owner:
        cut = self.cut
        part, _ = self._place(self.source.layout.size_index(self.rank))
        ranged = cut.owner == "range" or cut.row_parts == 1
        others = [group for group in range(self.source.layout.replicas) if group != self.group]
        return Owner(
            columns=(int(cut.col_bounds[column]), int(cut.col_bounds[column + 1])),
            row_part=part,
            rows=(int(cut.row_bounds[part]), int(cut.row_bounds[part + 1])) if ranged else None,
            holder=self._holder(self.group, column),
            replicas=tuple(self._holder(group, column) for group in others),
        )

    def _holder(self, group: int, column: int) -> Holder:
        """Who holds the row's column slice in one sharding group; groups of another size cut the table differently."""
        members = self.source.layout.sharding.members[group]
        size = self.source.layout.size_index(int(members[0]))
        part, local = self._place(size)
        position = int(self.source.plans[size][self.index].owners[column, part])
        rank = int(members[position])
        return Holder(rank=rank, node=self._node(rank), group=group, position=position, local_row=local)

    def _place(self, size: int) -> tuple[int, int | None]:
        """(Row part, local row) of the row in sharding groups of one size."""
        if size not in self._places:
            cut = self.source.plans[size][self.index]
            part = int(part_finder(cut)(np.array([self.row]))[0])
            self._places[size] = part, _local_row(cut, self.row, part)
        return self._places[size]

    def _occurrences(self) -> tuple[float, bool]:
        if self.source.scenario.execution.routing != "expected":
            batch = self.source.batches()[self.rank]
            return float(sum((batch.ids(name) == self.row).sum() for name in self.table.features)), True
        ids = self.source.scenario.workload.batch_size * self.table.ids_per_sample
        return ids * Distribution.of(self.table).chance_of(self.row), False

    # -- the seven stages --------------------------------------------------------------------------------------

    def _stages(self) -> Iterator[StageStory]:
        yield self._batch_input()
        if self.owners:
            yield self._lookup_routing()
            yield self._vector_return()
        else:
            yield StageStory(stage="lookup_routing", told="nothing moves: every rank holds the whole table")
            read = max(ROW_READ_FLOOR_BYTES, self.table.row_bytes)
            told = f"the rank reads the row in its own memory, {read:,} B; nothing moves"
            yield StageStory(stage="vector_return", told=told, spans=self._spans("lookup.data_parallel"))
        told = "the dense model runs once every vector of the rank's own batch is there; nothing moves"
        yield StageStory(stage="local_compute", told=told, spans=self._spans("forward", "backward"))
        yield (
            self._gradient_return()
            if self.owners
            else StageStory(
                stage="sparse_gradient_return",
                told="the row's gradient stays on the rank, in the table's dense gradient",
            )
        )
        yield self._synchronisation()
        yield self._update()

    def _batch_input(self) -> StageStory:
        rate = float(self.source.cluster.host_to_device_bytes_per_s[self.rank])
        over = f" at {format_bandwidth(rate)}" if rate else ""
        told = f"the id, {INDEX_BYTES} B, and its bag's length, {LENGTH_BYTES} B, come from the host{over}"
        return StageStory(stage="batch_input", told=told, spans=self._spans("copy_batch_to_device"))

    def _lookup_routing(self) -> StageStory:
        told = "the id goes to the owner of its row"
        if len(self.owners) > 1:
            told += f", once for each of {len(self.owners)} column slices"
        if self.source.scenario.execution.dedup:
            told += ", once however often the batch holds it"
        if self.cut.row_parts > 1:
            told += f"; lengths of {LENGTH_BYTES} B a bag go to every owner of rows"
        ways = [self._hop("id", self.rank, owner.holder.rank, INDEX_BYTES) for owner in self.owners]
        hops = [hop for way in ways for hop in self._stepped(way)]
        names = ("permute", "splits", "lengths", "values", "weights", "recat")
        spans = self._spans("input_dist.splits.fused", *(f"input_dist.{name}.{self.family}" for name in names))
        return StageStory(stage="lookup_routing", told=told, hops=tuple(hops), spans=spans)

    def _vector_return(self) -> StageStory:
        first, cluster = self.owners[0], self.source.cluster
        told = f"{_each(self.owners, 'the owner')} reads {_bytes_each(self._read_bytes)}"
        told += read_words(self.cut, first.row_part, float(cluster.host_to_device_bytes_per_s[first.holder.rank]))
        if self.pooled_at_owner:
            partial = " (a part of it: other owners hold the bag's other rows)" if self.cut.row_parts > 1 else ""
            told += f", adds it to its bag's vector{partial} and returns that"
        else:
            told += " and returns it as a vector of its own"
            told += "; the batch owner pools" if self.table.pooling != "none" else ""
        if len(self.owners) > 1:
            told += "; the slices are joined"
        ways = [hop for owner in self.owners for hop in self._way(owner, self.source.scenario.comms.forward)]
        hops = [hop for way in ways for hop in self._stepped(way)]
        if any(hop.what == "reduce_scatter" for hop in hops):
            told += "; NCCL passes the sums of a reduce_scatter along a ring, shown is the direct way"
        exchange = self._spans(*self._exchange_names("output_dist"), f"output_dist.join.{self.family}")
        spans = (*self._spans(f"lookup.{self.family}", rank=self.owners[0].holder.rank), *exchange)
        return StageStory(stage="vector_return", told=told, hops=tuple(hops), spans=spans)

    def _gradient_return(self) -> StageStory:
        what = "its bag's vector" if self.pooled_at_owner else "its vector"
        told = f"the gradient of {what} goes the same way back to {_each(self.owners, 'the owner')}"
        ways = [self._way(owner, self.source.scenario.comms.backward) for owner in self.owners]
        turned = [self._turned(hop) for way in ways for hop in reversed(way)]
        hops = [hop for way in turned for hop in self._stepped(way)]
        update = self._spans(f"embedding_backward.{self.family}", rank=self.owners[0].holder.rank)
        spans = (*self._spans(*self._exchange_names("output_dist_backward")), *update)
        return StageStory(stage="sparse_gradient_return", told=told, hops=tuple(hops), spans=spans)

    def _synchronisation(self) -> StageStory:
        names = ["dense_all_reduce"] if not self.owners else []
        hops: list[Hop] = []
        rank = self.owners[0].holder.rank if self.owners else self.rank
        for owner in self.owners if self.source.layout.replicas > 1 else ():
            hops += [
                self._hop(what, owner.holder.rank, owner.replicas[0].rank, nbytes)
                for what, nbytes in self._synchronised_bytes(owner)
            ]
        told = self._synchronised()
        if hops and len(self.owners[0].replicas) > 1:
            told += "; shown is the way to the first of the other replicas"
        spans = self._spans(*names, "replica_sync", rank=rank)
        return StageStory(stage="dense_gradient_sync", told=told, hops=tuple(hops), spans=spans)

    def _update(self) -> StageStory:
        optimizer = self.source.scenario.execution.optimizer
        if not self.owners:
            told = "the dense optimizer updates the whole table on every rank"
            return StageStory(stage="optimizer_update", told=told, spans=self._spans("dense_optimizer"))
        state = [FULL_BYTES * state_elements_per_row(optimizer, owner.width) for owner in self.owners]
        told = f"{_each(self.owners, 'the owner')} adds the gradients of all its occurrences and writes "
        told += f"{_bytes_each(self._slice_bytes)} of weights and {_bytes_each(state)} of {optimizer} state, "
        told += "fused with the embedding backward"
        first, cluster = self.owners[0], self.source.cluster
        rate = float(cluster.device_to_host_bytes_per_s[first.holder.rank])
        told += written_words(self.cut, first.row_part, optimizer, rate)
        spans = self._spans("embedding_optimizer.replicas", rank=self.owners[0].holder.rank)
        if spans:
            told += "; then the other replicas' gradients are applied"
        return StageStory(stage="optimizer_update", told=told, spans=spans)

    # -- bytes, ways and times ---------------------------------------------------------------------------------

    @property
    def _slice_bytes(self) -> list[int]:
        """Weight bytes of the row in each column slice."""
        element = BYTES_PER_ELEMENT[self.table.data_type]
        return [owner.width * element for owner in self.owners]

    @property
    def _read_bytes(self) -> list[int]:
        """What a look-up reads: HBM is read in whole sectors, host memory byte by byte."""
        least = 0 if self.cut.in_host_memory else ROW_READ_FLOOR_BYTES
        return [max(least, nbytes) for nbytes in self._slice_bytes]

    def _way(self, owner: Owner, precision: DataType) -> list[Hop]:
        """The exchanges of a vector from its owner to the batch's rank, in the forward's order."""
        whole, summed = (
            owner.width * wire_bytes(carried(kind, precision), owner.width) for kind in ("all_to_all", "reduce_scatter")
        )
        src = owner.holder.rank
        if self.pooled_at_owner and self.cut.sharding == "row_wise":
            return [self._hop("reduce_scatter", src, self.rank, summed)]
        if not (self.pooled_at_owner and self.cut.sharding in ("table_row_wise", "grid_shard")):
            return [self._hop("all_to_all", src, self.rank, whole)]
        local = self.cut.row_parts  # the ranks of a node
        place = self.members[owner.holder.position // local * local + self.position % local]
        hops = [self._hop("reduce_scatter", src, place, summed)]
        across = self._hop("all_to_all", place, self.rank, whole)
        return [*hops, across] if len(self.members) > local else hops

    def _turned(self, hop: Hop) -> Hop:
        """The hop of the backward that mirrors a hop of the forward."""
        what = "all_gather" if hop.what == "reduce_scatter" else hop.what
        return self._hop(what, hop.dst, hop.src, hop.nbytes)

    def _stepped(self, hop: Hop) -> list[Hop]:
        """The hop as all-to-alls run: perhaps in two steps, by way of a rank in the sender's node."""
        if hop.what not in ("id", "all_to_all") or self.source.scenario.comms.all_to_all == "pairwise":
            return [hop]
        way = way_in_two_steps(Members(self.source.cluster, np.array(self.members)), hop.src, hop.dst)
        return [self._hop(hop.what, *ends, hop.nbytes) for ends in pairwise(way)] or [hop]

    def _hop(self, what: str, src: int, dst: int, nbytes: float) -> Hop:
        cluster = self.source.cluster
        paths = cluster.paths(src, dst)
        links = tuple(
            LinkOnPath(
                name=cluster.link_name(link),
                bandwidth=float(cluster.link_bandwidth[link]),
                usable=float(cluster.link_usable[link]),
            )
            for link in paths[0][0]
        )
        return Hop(what=what, src=src, dst=dst, nbytes=float(nbytes), links=links, paths=len(paths))

    def _synchronised_bytes(self, owner: Owner) -> list[tuple[str, float]]:
        """(Collective, bytes of this row) of replica synchronisation."""
        weights = float(owner.width * BYTES_PER_ELEMENT[self.table.data_type])
        state = FULL_BYTES * state_elements_per_row(self.source.scenario.execution.optimizer, owner.width)
        match self.source.scenario.layout.sync:
            case "weights":
                return [("all_reduce", weights + state)]
            case "gradients":
                return [("all_gather", float(INDEX_BYTES + owner.width * FULL_BYTES))]
            case "fully_sharded":
                return [("reduce_scatter", weights), ("all_gather", weights)]

    def _synchronised(self) -> str:
        layout, how = self.source.layout, self.source.scenario.layout
        if not self.owners:
            return f"its gradient is summed with that of all {layout.world_size} ranks in the dense all-reduce"
        if layout.replicas == 1:
            return "no replicas: the row exists once"
        match how.sync:
            case "weights":
                when = "every step" if how.sync_interval == 1 else f"every {how.sync_interval} steps"
                return f"whole shards, weights and optimizer state, are averaged over {layout.replicas} replicas {when}"
            case "gradients":
                return f"the gradients of touched rows are exchanged among {layout.replicas} replicas every step"
            case "fully_sharded":
                return (
                    f"fully sharded: after the lookup the shard is averaged and each of {layout.replicas} replicas "
                    "keeps a part of it; for the update it is gathered again"
                )

    def _exchange_names(self, label: str) -> tuple[str, ...]:
        return (f"{label}.encode.{self.family}", f"{label}.{self.family}", f"{label}.decode.{self.family}")

    def _spans(self, *names: str, rank: int | None = None) -> tuple[Span, ...]:
        """The operations of these names, and numbered parts of them, on the asking rank or on `rank`.

        What works on a later batch was done for this one that many steps before.
        """
        trace, at = self.source.trace, self.rank if rank is None else rank
        spans = []
        for number, op in enumerate(trace.ops):
            if any(op.name == name or _is_part(op.name, name, self.family) for name in names):
                before = op.batch * trace.step_time_s
                start, end = float(trace.start_s[number, at]), float(trace.end_s[number, at])
                spans.append(Span(name=op.name, rank=at, start_s=start - before, end_s=end - before))
        return tuple(spans)


def _is_part(name: str, whole: str, family: str) -> bool:
    """Whether an operation is a hop of `whole` ("output_dist.grid_shard.2") or synchronises the family's replicas."""
    if whole == "replica_sync":
        kind, _, rest = name.removeprefix("replica_sync.").partition(".")
        return name.startswith("replica_sync.") and (kind in ("weights", "state", "rows") or rest == family)
    return name.startswith(f"{whole}.") and name.removeprefix(f"{whole}.").isdigit()


def _local_row(cut: ShardedTable, row: int, part: int) -> int | None:
    """The row's number in its shard: from the range's start, or among the rows that hash to the same part."""
    if cut.row_parts == 1 or cut.owner == "range":
        return row - (int(cut.row_bounds[part]) if cut.row_parts > 1 else 0)
    if row > _COUNTED_IDS:
        return None
    blocks = (np.arange(begin, min(row, begin + _AT_ONCE)) for begin in range(0, row, _AT_ONCE))
    return sum(int((hash_part(ids, cut.row_parts) == part).sum()) for ids in blocks)


def _each(owners: tuple[Owner, ...], one: str) -> str:
    return one if len(owners) == 1 else f"each of {len(owners)} owners"


def _bytes_each(values: list[int]) -> str:
    """Bytes of each slice: "512 B", or "256 to 260 B" where slices differ."""
    least, most = min(values), max(values)
    return f"{least:,} B" if least == most else f"{least:,} to {most:,} B"
