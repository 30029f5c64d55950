"""Which collective or host copy loads which link when: the transfers of a step, seen from the links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.collectives import Lowered, lower
from foreshard.simulator.job.program import Compute, StepProgram
from foreshard.simulator.job.trace import StepTrace
from foreshard.topologies.cluster import Cluster

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


class LinkLoads:
    """All transfers of a step by link.

    A collective's bytes spread over the time from its last member's joining to its end, a host copy's over the time
    that it took; only totals and means over that time are known, not how the rate varied while others shared the link.
    """

    def __init__(self, trace: StepTrace, program: StepProgram, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ops: list[tuple[int, int]] = []  # (operation, group) of each transfer
        self._times: list[tuple[float, float]] = []
        links: list[IntArray] = []
        sizes: list[FloatArray] = []
        owner: list[IntArray] = []
        for found, nbytes in self._collect(trace, program):
            owner.append(np.full(len(found), len(links), dtype=np.int64))
            links.append(found)
            sizes.append(nbytes)
        link = np.concatenate([np.zeros(0, dtype=np.int64), *links])
        self._link_count = len(cluster.link_usable)
        order = np.argsort(link, kind="stable")
        self._link = link[order]
        self._nbytes = np.concatenate([np.zeros(0), *sizes])[order]
        self._owner = np.concatenate([np.zeros(0, dtype=np.int64), *owner])[order]
        self._first = np.searchsorted(self._link, np.arange(self._link_count + 1))

    def _collect(self, trace: StepTrace, program: StepProgram) -> Iterator[tuple[IntArray, FloatArray]]:
        """Links and bytes of each group of each collective and copy, its place in the step noted beside."""
        position = {op.name: index for index, op in enumerate(trace.ops)}
        for op in program.ops:
            if op.name not in position:
                continue
            index = position[op.name]
            if isinstance(op.work, Compute):
                yield from self._copies(trace, index, op.work)
                continue
            for group, lowered in enumerate(lower(self._cluster, op.work)):
                members = op.work.groups.members[group]
                begun = trace.start_s[index, members] + trace.wait_s[index, members]
                self._ops.append((index, group))
                self._times.append((float(begun.max()), float(trace.end_s[index, members].max())))
                yield _loads(lowered)

    def _copies(self, trace: StepTrace, index: int, work: Compute) -> Iterator[tuple[IntArray, FloatArray]]:
        """Links and bytes of each machine's copies from and to host memory."""
        for copy in work.copies:
            ranks = np.flatnonzero(copy.nbytes)
            nodes = self._cluster.node_of[ranks]
            loads = self._cluster.host_loads(ranks, copy.nbytes[ranks], copy.direction)
            for number, node in enumerate(loads.nodes.tolist()):
                members, at = ranks[nodes == node], slice(*loads.first[number : number + 2].tolist())
                begun = trace.start_s[index, members]
                self._ops.append((index, node))
                self._times.append((float(begun.min()), float((begun + trace.copied_s[index, members]).max())))
                yield loads.links[at], loads.nbytes[at]

    @cached_property
    def nbytes(self) -> FloatArray:
        """Bytes each link carries in the step, [links]."""
        return _summed(self._link, self._nbytes, self._link_count)

    def transfers(self, link: int) -> tuple[Transfer, ...]:
        """The transfers over one link in order of their start."""
        rows = slice(self._first[link], self._first[link + 1])
        found = []
        for owner, nbytes in zip(self._owner[rows].tolist(), self._nbytes[rows].tolist(), strict=True):
            (op, group), (start, end) = self._ops[owner], self._times[owner]
            found.append(Transfer(op=op, group=group, start_s=start, end_s=end, nbytes=nbytes))
        return tuple(sorted(found, key=lambda transfer: (transfer.start_s, transfer.op, transfer.group)))

    def busiest(self) -> tuple[int, ...]:
        """The link of each kind that is busy for longest with its bytes, the longest first."""
        usable = self._cluster.link_usable
        seconds = np.divide(self.nbytes, usable, out=np.zeros(len(usable)), where=usable > 0)
        best = []
        for kind in np.unique(self._cluster.link_kind):
            of_kind = np.flatnonzero(self._cluster.link_kind == kind)
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


def _loads(lowered: Lowered) -> tuple[IntArray, FloatArray]:
    """Links of all phases of one group, each once, and the bytes over them."""
    links = np.concatenate([np.zeros(0, dtype=np.int64), *(phase.links for phase in lowered.phases)])
    nbytes = np.concatenate([np.zeros(0), *(phase.nbytes for phase in lowered.phases)])
    unique, inverse = np.unique(links, return_inverse=True)
    return unique, _summed(inverse, nbytes, len(unique))


def _summed(index: IntArray, nbytes: FloatArray, length: int) -> FloatArray:
    """Bytes by index, [length]."""
    return np.asarray(np.bincount(index, weights=nbytes, minlength=length), dtype=np.float64)
