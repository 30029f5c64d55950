"""Which collective or host copy loads which link when: the transfers of a step, seen from the links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.job.program import Collective, Compute, StepProgram
from foreshard.simulator.job.trace import StepTrace
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.machine import LinkKind

__all__ = ["LinkLoads", "Transfer"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """Bytes that one group of the operation `op` (an index) moves over one link between two times in seconds.

    The ranks of a machine that copy from or to host memory are a group, numbered as their node.
    """

    op: int
    group: int
    start_s: float
    end_s: float
    nbytes: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Moved:
    """What groups of one operation (an index) move: start_s, end_s of groups[i], [n]; of each entry the place of its
    group in these, its link and bytes, [entries]."""

    op: int
    groups: IntArray
    start_s: FloatArray
    end_s: FloatArray
    owner: IntArray
    link: IntArray
    nbytes: FloatArray


class LinkLoads:
    """All transfers of a step by link.

    A collective's bytes spread over the time from its last member's joining to its end, a host copy's over the time
    that it took; only totals and means over that time are known, not how the rate varied while others shared the link.
    """

    def __init__(self, trace: StepTrace, program: StepProgram, cluster: Cluster) -> None:
        self._cluster = cluster
        self._link_count = len(cluster.link_usable)
        moved = list(self._collect(trace, program))
        counts = [len(each.groups) for each in moved]
        before = np.cumsum([0, *counts])
        self._op = np.repeat([each.op for each in moved], counts)
        self._group, self._start_s, self._end_s = (
            _joined([getattr(each, name) for each in moved]) for name in ("groups", "start_s", "end_s")
        )
        link = _joined([each.link for each in moved]).astype(np.int64)
        owner = _joined([each.owner + first for each, first in zip(moved, before.tolist(), strict=False)])
        order = np.lexsort((owner, link))
        self._link, self._owner = link[order], owner[order].astype(np.int64)
        self._nbytes = _joined([each.nbytes for each in moved])[order]
        self._first = np.searchsorted(self._link, np.arange(self._link_count + 1))

    def _collect(self, trace: StepTrace, program: StepProgram) -> Iterator[_Moved]:
        """What each collective and each copy moves."""
        position = {op.name: index for index, op in enumerate(trace.ops)}
        for op in program.ops:
            if op.name not in position:
                continue
            if isinstance(op.work, Compute):
                yield from self._copies(trace, position[op.name], op.work)
            else:
                yield self._groups(trace, position[op.name], op.work)

    def _groups(self, trace: StepTrace, index: int, work: Collective) -> _Moved:
        """What the groups of a collective move in all their phases together."""
        every = np.arange(len(work.groups))
        ranks, first = work.groups.ranks_of(every), np.cumsum(work.groups.sizes) - work.groups.sizes
        phases = lower(self._cluster, work).phases
        none = np.zeros(0, dtype=np.int64)
        owner = np.concatenate([none, *(np.repeat(each.groups, np.diff(each.first)) for each in phases)])
        link = np.concatenate([none, *(each.links for each in phases)])
        nbytes = np.concatenate([none, *(each.nbytes for each in phases)]).astype(np.float64)
        if len(phases) > 1:  # a link may be crossed in several
            place, inverse = np.unique(owner * self._link_count + link, return_inverse=True)
            owner, link = np.divmod(place, self._link_count)
            nbytes = _summed(inverse, nbytes, len(place))
        return _Moved(
            op=index,
            groups=every,
            start_s=np.maximum.reduceat((trace.start_s[index] + trace.wait_s[index])[ranks], first),
            end_s=np.maximum.reduceat(trace.end_s[index][ranks], first),
            owner=owner,
            link=link,
            nbytes=nbytes,
        )

    def _copies(self, trace: StepTrace, index: int, work: Compute) -> Iterator[_Moved]:
        """What each machine's ranks copy from and to host memory."""
        for copy in work.copies:
            ranks = np.flatnonzero(copy.nbytes)
            loads = self._cluster.host_loads(ranks, copy.nbytes[ranks], copy.direction)
            copied = np.isin(self._cluster.node_of[ranks], loads.nodes)
            place = np.searchsorted(loads.nodes, self._cluster.node_of[ranks[copied]])
            start_s, end_s = np.full(len(loads.nodes), np.inf), np.zeros(len(loads.nodes))
            begun = trace.start_s[index, ranks[copied]]
            np.minimum.at(start_s, place, begun)
            np.maximum.at(end_s, place, begun + trace.copied_s[index, ranks[copied]])
            yield _Moved(
                op=index,
                groups=loads.nodes,
                start_s=start_s,
                end_s=end_s,
                owner=np.repeat(np.arange(len(loads.nodes)), np.diff(loads.first)),
                link=loads.links,
                nbytes=loads.nbytes,
            )

    @cached_property
    def nbytes(self) -> FloatArray:
        """Bytes each link carries in the step, [links]."""
        return _summed(self._link, self._nbytes, self._link_count)

    def ops_over(self, link: int) -> dict[int, float]:
        """Bytes that each operation (by its index) moves over one link."""
        rows = slice(self._first[link], self._first[link + 1])
        totals: dict[int, float] = {}
        for op, nbytes in zip(self._op[self._owner[rows]].tolist(), self._nbytes[rows].tolist(), strict=True):
            totals[op] = totals.get(op, 0.0) + nbytes
        return totals

    def ops_over_any(self, links: IntArray) -> IntArray:
        """Indices of the operations that move bytes over any of these links, ascending."""
        chosen = np.zeros(self._link_count, dtype=bool)
        chosen[links] = True
        found: IntArray = np.unique(self._op[self._owner[chosen[self._link]]])
        return found

    def narrowest(self, op: int) -> int:
        """The link on which an operation's bytes take longest, by its index."""
        rows = np.flatnonzero(self._op[self._owner] == op)
        total = _summed(self._link[rows], self._nbytes[rows], self._link_count)
        return int(np.argmax(self._seconds(total)))

    def _seconds(self, nbytes: FloatArray) -> FloatArray:
        """How long bytes by link keep each link busy, [links]."""
        usable = self._cluster.link_usable
        return np.divide(nbytes, usable, out=np.zeros(len(usable)), where=usable > 0)

    def transfers(self, link: int) -> tuple[Transfer, ...]:
        """The transfers over one link in order of their start."""
        rows = slice(self._first[link], self._first[link + 1])
        owner = self._owner[rows]
        columns = (self._op[owner], self._group[owner], self._start_s[owner], self._end_s[owner], self._nbytes[rows])
        found = [
            Transfer(op=op, group=group, start_s=start_s, end_s=end_s, nbytes=nbytes)
            for op, group, start_s, end_s, nbytes in zip(*(column.tolist() for column in columns), strict=True)
        ]
        return tuple(sorted(found, key=lambda transfer: (transfer.start_s, transfer.op, transfer.group)))

    def busiest(self) -> tuple[int, ...]:
        """The link of each kind that is busy for longest with its bytes, the longest first."""
        seconds = self._seconds(self.nbytes)
        best = []
        for kind in sorted(get_args(LinkKind)):
            of_kind = np.flatnonzero(self._cluster.is_kind(kind))
            if len(of_kind):
                best.append(int(of_kind[np.argmax(seconds[of_kind])]))
        return tuple(sorted((link for link in best if seconds[link] > 0), key=lambda link: (-seconds[link], link)))

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """The narrowest link on each of the rank's ways out and in, to its node and to other nodes, if used."""
        ways = []
        for peer in self._peers(rank):
            ways.append(self._cluster.path(rank, peer))
            ways.append(self._cluster.path(peer, rank)[::-1])  # of equal ones the nearest to the rank
        usable = self._cluster.link_usable
        found = dict.fromkeys(min(way, key=lambda link: float(usable[link])) for way in ways)
        return tuple(link for link in found if self.nbytes[link] > 0)

    def _peers(self, rank: int) -> Iterable[int]:
        node_of, local = self._cluster.node_of, self._cluster.local_rank
        near = np.flatnonzero((node_of == node_of[rank]) & (local != local[rank]))
        far = np.flatnonzero((node_of != node_of[rank]) & (local == local[rank]))
        return [int(peers[np.searchsorted(peers, rank) % len(peers)]) for peers in (near, far) if len(peers)]


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0)


def _summed(index: IntArray, nbytes: FloatArray, length: int) -> FloatArray:
    """Bytes by index, [length]."""
    return np.asarray(np.bincount(index, weights=nbytes, minlength=length), dtype=np.float64)
