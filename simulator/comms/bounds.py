"""What a collective takes whatever its algorithm: the bytes that must enter and leave parts of its group.

A part is a GPU in a group of one node, else a node, or the nodes below the same leaf switches. What it needs from
outside comes in over its ports, what others need of it leaves over them: bytes over the bandwidth of all of them
together bound the time, however an algorithm deals bytes over them. Ports are those that the group's routes use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.members import Members
from foreshard.simulator.job.program import CollectiveKind
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.machine import LEAF, NodeSpec

__all__ = ["Bound", "Parts", "bound_of", "parts_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_WHOLE = 1 - 1e-9


class Bound(NamedTuple):
    """The least time in seconds and the link on which it is reached, None where nothing moves."""

    seconds: float
    link: int | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Parts:
    """Parts of one sort: the ranks that each holds, [n], and of its ways out and in, [n, 2], the bandwidth in bytes/s
    and the link that stands for it. `root` is the part of the group's first rank; `adds` tells whether a switch between
    them adds up."""

    held: IntArray
    bandwidth: FloatArray
    named: IntArray
    root: int
    adds: bool = False

    @property
    def alike(self) -> bool:
        """Whether all hold as many ranks and have the same bandwidth both ways."""
        return len(np.unique(self.held)) == 1 and len(np.unique(self.bandwidth)) == 1


def bound_of(parts: tuple[Parts, ...], kind: CollectiveKind, nbytes: float) -> Bound:
    """Return the least time of a collective of `nbytes` (nccl-tests' size) over a group of these parts.

    The link is on the way that takes longest, or on the way out where both carry alike.
    """
    best = Bound(0.0, None)
    for some in parts:
        seconds = nbytes * _shares(some, kind) / some.bandwidth
        part, way = np.unravel_index(int(seconds.argmax()), seconds.shape)
        if seconds[part, way] > best.seconds:
            out, into = some.bandwidth[part]
            best = Bound(float(seconds[part, way]), int(some.named[part, 0 if out == into else way]))
    return best


def _shares(parts: Parts, kind: CollectiveKind) -> FloatArray:
    """Share of the size that must leave each part and come into it, [n, 2].

    all_gather: what a part holds leaves it once, what it does not hold comes in; reduce_scatter: the other way round.
    broadcast: the buffer leaves the part of the root and comes into every other. all_reduce: once out and once in,
    since a part and all others must be told each other's sums; 2 (m-1)/m where m parts are alike and add up themselves,
    as that bounds their mean (Patarasuk and Yuan 2009).
    """
    held, n = parts.held / parts.held.sum(), len(parts.held)
    match kind:
        case "all_gather":
            return np.stack([held, 1 - held], axis=1)
        case "reduce_scatter":
            return np.stack([1 - held, held], axis=1)
        case "broadcast":
            root = np.arange(n) == parts.root
            return np.stack([root, ~root], axis=1).astype(np.float64)
        case _:
            return np.full((n, 2), 2 * (n - 1) / n if parts.alike and not parts.adds else 1.0)


def parts_of(members: Members) -> tuple[Parts, ...]:
    """Return the parts of a group of several ranks."""
    return tuple(_nodes(members)) if len(members.nodes) > 1 else (_gpus(members),)


def _gpus(members: Members) -> Parts:
    """The GPUs of a node, with the ports that the ring uses; the widest is named."""
    cluster, sides, links = members.cluster, _sides(members.cluster), members.inside.links
    first_rank = np.searchsorted(cluster.node_of, np.arange(cluster.nodes))
    place = np.full(cluster.size, -1)
    place[members.ranks] = np.arange(members.size)
    found = []
    for way in (0, 1):
        gpu = sides.gpu[way, links]
        part = np.where(gpu >= 0, place[np.where(gpu >= 0, first_rank[sides.node[links]] + gpu, 0)], -1)
        found.append((links[part >= 0], part[part >= 0]))
    held = np.ones(members.size, dtype=np.int64)
    return _summed(cluster, held, found, root=0, adds=members.shape.in_switch, widest=True)


def _nodes(members: Members) -> Iterator[Parts]:
    """The nodes by the cables of their NICs, and by what joins NICs and GPUs if all bytes pass there; then what lies
    below the same leaf switches."""
    cluster, sides, load = members.cluster, _sides(members.cluster), members.across
    own = load.links < len(sides.node)
    links, nbytes = load.links[own], load.nbytes[own]
    part = _part_of_node(members)
    held = np.array([len(node) for node in members.nodes])
    for cut in (sides.cable, sides.card):
        found = [(links[at], part[sides.node[links[at]]]) for at in (cut[way, links] for way in (0, 1))]
        passed = [np.bincount(part[sides.node[some]], nbytes[np.isin(links, some)], len(held)) for some, _ in found]
        if min(some.min() for some in passed) >= _WHOLE:
            yield _summed(cluster, held, found, root=int(part[cluster.node_of[members.ranks[0]]]))
    yield from _below_leaves(members, part, held)


def _part_of_node(members: Members) -> IntArray:
    """The place in `members.nodes` of each node of the cluster, -1 for none, [nodes]."""
    cluster = members.cluster
    domain = cluster.domain_of[np.searchsorted(cluster.node_of, np.arange(cluster.nodes))]
    place = np.full(int(domain.max()) + 1, -1)
    place[cluster.domain_of[[node[0] for node in members.nodes]]] = np.arange(len(members.nodes))
    return place[domain]


def _below_leaves(members: Members, part: IntArray, held: IntArray) -> Iterator[Parts]:
    """What lies below the same leaf switches, by all their uplinks, unless NVLinks lead from one to another."""
    cluster, fabric = members.cluster, members.cluster.spec.fabric
    first = len(_sides(cluster).node)
    uplinks = np.arange(first, len(cluster.link_usable))
    if not len(uplinks):
        return
    below = np.arange(cluster.nodes) // (fabric.nodes_per_leaf or cluster.nodes)
    mine = part >= 0
    if len(np.unique(np.stack([part[mine], below[mine]]), axis=1)[0]) > len(held):
        return
    groups, at = np.unique(below[mine], return_inverse=True)
    if len(groups) == 1:
        return
    ranks = np.bincount(at, np.bincount(cluster.node_of[members.ranks], minlength=cluster.nodes)[mine])
    way, leaf = np.divmod((uplinks - first) // fabric.spines, cluster.leaves)
    found_leaf = leaf // (cluster.leaves // (int(below[-1]) + 1))
    place = np.full(int(below[-1]) + 1, -1)
    place[groups] = np.arange(len(groups))
    group = place[found_leaf]
    found = [(uplinks[chosen], group[chosen]) for chosen in ((way == w) & (group >= 0) for w in (0, 1))]
    root = int(place[below[cluster.node_of[members.ranks[0]]]])
    yield _summed(cluster, ranks.astype(np.int64), found, root=root)


def _summed(
    cluster: Cluster,
    held: IntArray,
    ways: list[tuple[IntArray, IntArray]],
    *,
    root: int,
    adds: bool = False,
    widest: bool = False,
) -> Parts:
    """Parts of these links out and in, each given with the part it serves; the narrowest or the widest is named."""
    n = len(held)
    bandwidth, named = np.empty((n, 2)), np.empty((n, 2), dtype=np.int64)
    for way, (links, part) in enumerate(ways):
        width = cluster.link_bandwidth[links]
        bandwidth[:, way] = np.bincount(part, width, n)
        order = np.lexsort((links, -width if widest else width, part))
        named[:, way] = links[order][np.searchsorted(part[order], np.arange(n))]
    return Parts(held=held, bandwidth=bandwidth, named=named, root=root, adds=adds)


# -- where links lie ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """Of the links of nodes: the node, [links]; and by way (0 out of it, 1 in), [2, links], the number of the GPU that
    it leaves or enters, -1 for none, and whether it is the cable of a NIC, or joins a NIC to its node."""

    node: IntArray
    gpu: IntArray
    cable: NDArray[np.bool_]
    card: NDArray[np.bool_]


@lru_cache(maxsize=8)
def _sides(cluster: Cluster) -> _Sides:
    columns = [np.tile(_columns(group.node), group.nodes) for group in cluster.spec.groups]
    counts = [np.full(group.nodes, len(group.node.links)) for group in cluster.spec.groups]
    gpu, cable, card = np.split(np.concatenate(columns, axis=1), 3)
    node = np.repeat(np.arange(cluster.nodes), np.concatenate(counts))
    return _Sides(node, gpu, cable.astype(bool), card.astype(bool))


def _columns(node: NodeSpec) -> IntArray:
    """Rows of `_Sides` for one node: GPU out and in, cable out and in, card out and in, [6, links]."""
    ends = [np.array([link.src for link in node.links]), np.array([link.dst for link in node.links])]
    gpu = [np.array([int(name[3:]) if name.startswith("gpu") else -1 for name in names]) for names in ends]
    nic = [np.char.startswith(names, "nic") for names in ends]
    leaf = [names == LEAF for names in ends]
    inner = [~nic[way] & nic[1 - way] & ~leaf[way] for way in (0, 1)]
    return np.stack([*gpu, nic[0] & leaf[1], leaf[0] & nic[1], *inner]).astype(np.int64)
