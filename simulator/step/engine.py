"""Runs a step program in simulated time: SimPy drives the collectives, everything between them is arithmetic.

Every operation of every step is a node of a graph. An edge (predecessor, lag) says: not before the predecessor's end
plus the lag, on the same rank. Edges come from dependencies, from stream order and from the host, which issues the
operations one after the other and stops where it must wait. Compute nodes are resolved as vectors over ranks the
moment their predecessors are known; only a collective needs simulated time: it starts when its last member joins
and shares links with whatever else is in flight. So the events of a step are its collectives, whatever the world size.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import simpy
from numpy.typing import NDArray

from foreshard.simulator.comms.collectives import Lowered, LoweredGroups, lower
from foreshard.simulator.comms.transfers import Done, Transfers
from foreshard.simulator.job.program import Collective, Compute, Dep, Op, StepProgram
from foreshard.simulator.step.host_copies import CopiesInFlight, HostCopies
from foreshard.simulator.step.shared_cores import SharedCores
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import DeadlockError, InputError

__all__ = ["Engine", "Lowering", "Timeline"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Lowering = Callable[[Cluster, Collective], LoweredGroups | Sequence[Lowered]]

_NAMED = 8  # ranks named in an error before it says "and N more"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Timeline:
    """Times of every operation, `start` and `end` [steps, ops, ranks] in seconds; NaN where a rank has no part.

    `begun` [steps, ops, ranks]: when the last member had joined the collective (its start, for compute). `copied_s`
    [ranks]: how long copies over the host's links took before an operation (by its index) computed in the last step.
    `link_bytes` [links] moved in all steps; `events` SimPy events processed.
    """

    start: FloatArray
    begun: FloatArray
    end: FloatArray
    copied_s: Mapping[int, FloatArray]
    link_bytes: FloatArray
    events: int


class Engine:
    """One simulation of `steps` successive steps of a program on a cluster.

    `shares_cores` says that ranks compute on the cores that carry their collectives (see `SharedCores`).
    """

    def __init__(
        self, program: StepProgram, cluster: Cluster, steps: int, lowering: Lowering = lower, *,
        shares_cores: bool = False,
    ) -> None:  # fmt: skip
        self._program = program
        self._cluster = cluster
        self._steps = steps
        self._ops = program.ops
        self._index = {op.name: i for i, op in enumerate(program.ops)}
        if len(self._index) != len(program.ops):
            raise InputError("two operations of a step program have the same name: give each its own")
        nodes = steps * len(program.ops)
        shape = (nodes, program.world_size)
        self._start = np.zeros(shape)
        self._begun = np.full(shape, np.nan)
        self._end = np.full(shape, np.nan)
        self._issued = np.zeros(shape)  # the host has launched the operation's last kernel
        self._pending = np.zeros(shape, dtype=np.int16)
        self._successors: list[list[tuple[int, float]]] = [[] for _ in range(nodes)]
        self._host_edges: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
        self._points: list[FloatArray] = []  # host waiting points: time [ranks]
        self._points_pending: list[IntArray] = []
        self._point_waits: dict[int, list[int]] = defaultdict(list)
        self._next_point: list[float] = []
        self._lowering = lowering
        self._lowered: dict[int, LoweredGroups] = {}
        self._joined: dict[int, IntArray] = {}
        self._joined_at: dict[int, FloatArray] = {}
        self._copies = HostCopies(cluster)
        self._copied_s: dict[int, FloatArray] = {}
        self._todo: deque[Callable[[], None]] = deque()
        self._env = simpy.Environment()
        self._transfers = Transfers(self._env, cluster.link_usable, self._finished)
        self._cores = SharedCores(cluster, self._transfers, self._computed) if shares_cores else None
        self._connect()

    # -- the graph ---------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Build edges: dependencies, stream order, and the host's issue order with its waiting points."""
        last_on_stream: dict[str, int] = {}
        issued = 0.0
        self._new_point([], 0.0)
        for step in range(self._steps):
            for index, op in enumerate(self._ops):
                node = step * len(self._ops) + index
                waits = self._nodes(op.host_waits, step)
                if waits:
                    self._new_point(waits, issued)
                    issued = 0.0
                first = issued + op.host_s / max(op.launches, 1)
                issued += op.host_s
                self._host_edges[len(self._points) - 1].append((node, first, issued))
                before = set(self._nodes(op.deps, step))
                if op.stream in last_on_stream:
                    before.add(last_on_stream[op.stream])
                for predecessor in sorted(before):
                    self._successors[predecessor].append((node, 0.0))
                self._pending[node] = len(before) + 1
                last_on_stream[op.stream] = node
                if isinstance(op.work, Compute) and op.work.copies:
                    self._copied_s[node] = np.zeros(self._program.world_size)
                if isinstance(op.work, Collective):
                    self._joined[node] = np.zeros(len(op.work.groups), dtype=np.int64)
                    self._joined_at[node] = np.zeros(len(op.work.groups))

    def _new_point(self, waits: list[int], issued: float) -> None:
        """Add a host waiting point after `waits` and after `issued` seconds of issuing since the last point."""
        point = len(self._points)
        ranks = self._program.world_size
        self._points.append(np.zeros(ranks))
        self._points_pending.append(np.full(ranks, len(waits) + (point > 0), dtype=np.int64))
        self._next_point.append(issued)
        for node in waits:
            self._point_waits[node].append(point)

    def _nodes(self, deps: Iterable[Dep], step: int) -> list[int]:
        """Nodes that dependencies of an operation of `step` mean; those before the first step count as done."""
        nodes = []
        for dep in deps:
            if dep.op not in self._index:
                raise InputError(f"the step program depends on {dep.op!r}, which it does not contain")
            if step >= dep.steps_back:
                nodes.append((step - dep.steps_back) * len(self._ops) + self._index[dep.op])
        return nodes

    # -- resolving, vectorised over ranks ----------------------------------------------------------------------

    def _resolve_point(self, point: int, ranks: IntArray) -> None:
        """The host of `ranks` is past waiting point `point`: issue the operations up to the next one."""
        now = self._points[point][ranks]
        for node, first, issued in self._host_edges[point]:
            self._issued[node, ranks] = now + issued
            self._arrive(node, ranks, now + first)
        following = point + 1
        if following < len(self._points):
            self._arrive_point(following, ranks, now + self._next_point[following])

    def _arrive_point(self, point: int, ranks: IntArray, times: FloatArray) -> None:
        at, pending = self._points[point], self._points_pending[point]
        at[ranks] = np.maximum(at[ranks], times)
        pending[ranks] -= 1
        ready = ranks[pending[ranks] == 0]
        if len(ready):
            self._todo.append(partial(self._resolve_point, point, ready))

    def _arrive(self, node: int, ranks: IntArray, times: FloatArray) -> None:
        """One predecessor of `node` is known on `ranks`; resolve the ranks for which it was the last."""
        start, pending = self._start[node], self._pending[node]
        start[ranks] = np.maximum(start[ranks], times)
        pending[ranks] -= 1
        ready = ranks[pending[ranks] == 0]
        if not len(ready):
            return
        work = self._ops[node % len(self._ops)].work
        if isinstance(work, Compute):
            self._begun[node, ready] = start[ready]
            self._compute(node, work, ready, start[ready])
        else:
            self._join(node, work, ready)

    def _compute(self, node: int, work: Compute, ranks: IntArray, times: FloatArray, copied: int = 0) -> None:
        """`ranks` are at `times` past so many of an operation's copies over the host's links: copy on, or compute."""
        finite = np.isfinite(times)
        ranks, times = ranks[finite], times[finite]  # a rank that never gets there: whoever waits for it will be told
        for number in range(copied, len(work.copies)):
            moving = self._copies.moving(work.copies[number], ranks)
            waiting = self._copies.wait((node, number), work.copies[number], ranks[moving], times[moving])
            for at in waiting:
                self._transfers.at(at, partial(self._begin_copies, at))
            ranks, times = ranks[~moving], times[~moving]
        if work.copies:
            self._copied_s[node][ranks] = times - self._begun[node, ranks]
        if self._cores is not None and len(ranks):
            self._cores.begin(node, ranks, times, work.seconds[ranks])
            return
        ends = np.maximum(times + work.seconds[ranks], self._issued[node, ranks])
        self._todo.append(partial(self._complete, node, ranks, ends))

    def _computed(self, node: int, ranks: IntArray) -> None:
        """`ranks` have computed an operation now, on cores that they share."""
        self._complete(node, ranks, np.full(len(ranks), self._env.now))
        self._drain()

    def _begin_copies(self, at: float) -> None:
        for copies in self._copies.begin(at):
            nodes = copies.bundle.groups
            self._transfers.begin(copies, (copies.bundle,), nodes, np.full(len(nodes), self._env.now))

    def _complete(self, node: int, ranks: IntArray, ends: FloatArray) -> None:
        finite = np.isfinite(ends)
        if not finite.all():  # work without an end
            ranks, ends = ranks[finite], ends[finite]
        self._end[node, ranks] = ends
        for successor, lag in self._successors[node]:
            self._arrive(successor, ranks, ends + lag)
        for point in self._point_waits.get(node, ()):
            self._arrive_point(point, ranks, ends)

    def _drain(self) -> None:
        """Follow every consequence of what is now known; a queue, since chains are longer than Python's stack."""
        while self._todo:
            self._todo.popleft()()

    # -- collectives in simulated time -------------------------------------------------------------------------

    def _join(self, node: int, work: Collective, ranks: IntArray) -> None:
        """`ranks` have reached the collective; start it in every group that is now complete."""
        groups = work.groups.group_of[ranks]
        np.maximum.at(self._joined_at[node], groups, self._start[node, ranks])
        joined = self._joined[node]
        np.add.at(joined, groups, 1)
        touched = np.unique(groups)
        full = touched[joined[touched] == work.groups.sizes[touched]]
        begun = self._joined_at[node][full]
        ranks = work.groups.ranks_of(full)
        self._begun[node, ranks] = np.repeat(begun, work.groups.sizes[full])
        idle = self._transfers.begin(node, self._lower(node).phases, full, begun)
        if len(idle):  # nothing to move, as in a group of one rank
            ranks = work.groups.ranks_of(idle)
            self._todo.append(partial(self._complete, node, ranks, self._begun[node, ranks]))
        if self._cores is not None:
            for group, at in zip(full.tolist(), begun.tolist(), strict=True):
                if group not in idle:
                    members = work.groups.members[group]
                    self._cores.collective(node, group, at, self._lower(node)[group], members)

    def _lower(self, node: int) -> LoweredGroups:
        index = node % len(self._ops)
        if index not in self._lowered:
            work = self._ops[index].work
            assert isinstance(work, Collective)
            lowered = self._lowering(self._cluster, work)
            if not isinstance(lowered, LoweredGroups):
                lowered = LoweredGroups.of(self._cluster, lowered)
            self._lowered[index] = lowered
        return self._lowered[index]

    def _finished(self, done: Done) -> None:
        """Copies have ended now, or collectives, all groups of one at once: go on with what comes after them."""
        for owner, groups in done:
            if isinstance(owner, CopiesInFlight):
                (node, number), ranks = owner.place, self._copies.of_nodes(owner, groups)
                work = self._ops[node % len(self._ops)].work
                assert isinstance(work, Compute)
                self._compute(node, work, ranks, np.full(len(ranks), self._env.now), number + 1)
            else:
                assert isinstance(owner, int)
                work = self._ops[owner % len(self._ops)].work
                assert isinstance(work, Collective)
                ranks = work.groups.ranks_of(groups)
                if self._cores is not None:
                    self._cores.ended(owner, groups)
                self._todo.append(partial(self._complete, owner, ranks, np.full(len(ranks), self._env.now)))
        self._drain()

    # -- running -----------------------------------------------------------------------------------------------

    def run(self) -> Timeline:
        """Run all steps and return their times. Raises DeadlockError if a collective's member never joins."""
        self._resolve_point(0, np.arange(self._program.world_size))
        self._drain()
        self._env.run()
        self._check_complete()
        shape = (self._steps, len(self._ops), self._program.world_size)
        return Timeline(
            start=self._start.reshape(shape),
            begun=self._begun.reshape(shape),
            end=self._end.reshape(shape),
            copied_s={node % len(self._ops): seconds for node, seconds in self._copied_s.items()},
            link_bytes=self._transfers.link_bytes,
            events=self._transfers.events,
        )

    def lowered(self, op: Op) -> LoweredGroups:
        """How the collective of `op` was carried out, group by group."""
        return self._lower(self._index[op.name])

    def _check_complete(self) -> None:
        for node in range(len(self._end)):
            op = self._ops[node % len(self._ops)]
            if isinstance(op.work, Compute):
                continue
            groups = op.work.groups
            there = np.bincount(groups.group_of, self._pending[node] == 0, len(groups))
            for group in np.flatnonzero((there > 0) & (there < groups.sizes)).tolist():
                members = groups.members[group]
                come = self._pending[node, members] == 0
                raise DeadlockError(
                    f"collective {op.name!r} (group {group}, step {node // len(self._ops)}) never started: "
                    f"{_ranks(members[come])} wait for {_ranks(members[~come])}, which never joined"
                )
        unfinished = np.argwhere(np.isnan(self._end))
        if len(unfinished):
            node = int(unfinished[0, 0])
            ranks = np.flatnonzero(np.isnan(self._end[node]))
            raise DeadlockError(
                f"operation {self._ops[node % len(self._ops)].name!r} (step {node // len(self._ops)}) never finished "
                f"on {_ranks(ranks)}: it waits for itself, or its work has no end"
            )


def _ranks(ranks: IntArray) -> str:
    """Ranks in words: "ranks 0, 1, 2 and 5 more"."""
    named = ", ".join(str(rank) for rank in ranks[:_NAMED])
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}{more}"
