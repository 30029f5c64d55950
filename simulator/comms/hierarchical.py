"""All-to-all in two steps, both grouped send/recv: inside each node to the member of the destination's local position,
then between the members of equal position, so that a rank has one peer in every other node.

What it takes to put blocks in order between the steps, and to tell sizes again, is left out.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.all_to_all import grouped
from foreshard.simulator.comms.loads import Flows, Loads
from foreshard.simulator.comms.lowering import Draft
from foreshard.simulator.comms.members import Members
from foreshard.simulator.comms.symmetry import Template
from foreshard.simulator.job.traffic import PairBytes
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError

__all__ = ["cannot_take_two_steps", "hierarchical", "takes_two_steps", "way_in_two_steps"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def cannot_take_two_steps(cluster: Cluster, ranks: IntArray) -> str:
    """Return why a group cannot exchange in two steps, empty if it can: nodes hold as many of its members each."""
    if cluster.backend != "nccl":
        return f"{cluster.name!r} communicates with {cluster.backend}, whose all-to-all has one step only"
    _, counts = np.unique(cluster.domain_of[ranks], return_counts=True)
    if len(sizes := sorted(set(counts.tolist()))) > 1:
        return f"it needs as many members of a group in every node, not {sizes[0]} and {sizes[-1]}"
    return ""


def takes_two_steps(members: Members) -> bool:
    """Whether two steps differ from one, as they do not in one node or with one member in each.

    Raises InputError if the group cannot take them.
    """
    problem = cannot_take_two_steps(members.cluster, members.ranks)
    if problem:
        raise InputError(f"a hierarchical all_to_all: {problem}: use pairwise")
    return 1 < len(members.nodes) < members.size


def way_in_two_steps(members: Members, src: int, dst: int) -> tuple[int, ...]:
    """Return the ranks that a block from `src` to `dst` passes, both included."""
    here, there = (next(node for node in members.nodes if rank in node) for rank in (src, dst))
    between = int(here[np.flatnonzero(there == dst)[0]])
    return tuple(dict.fromkeys((src, between, dst)))


def hierarchical(template: Template, traffic: PairBytes) -> Draft:
    """Return the all-to-all in two steps, for a group that `takes_two_steps`."""
    members = template.members
    grid = np.stack(members.nodes)  # [nodes, local]
    sorter = np.argsort(members.ranks)
    place = sorter[np.searchsorted(members.ranks, grid, sorter=sorter)]  # of the grid's ranks among the members
    if traffic.out is not None and traffic.share is not None:
        first, second = _outer_steps(members.cluster, grid, traffic.out[place], traffic.share[place])
    else:
        first, second = _dense_steps(members.cluster, grid, traffic.to_matrix(), place)
    peers = len(grid) - 1
    phases = (grouped(members, first, 0), grouped(members, second, peers))
    return Draft("hierarchical", phases, second.nominal_s, second.busiest, peers)


def _dense_steps(cluster: Cluster, grid: IntArray, matrix: FloatArray, place: IntArray) -> tuple[Loads, Loads]:
    blocks = matrix[place[:, :, None, None], place[None, None]]  # [node, local, node', local']
    inside = _flows(grid[:, :, None], grid[:, None, :], blocks.sum(axis=2))
    across = _flows(grid[:, None, :], grid[None, :, :], blocks.sum(axis=1))
    return Loads.of(cluster, inside), Loads.of(cluster, across)


def _outer_steps(cluster: Cluster, grid: IntArray, out: FloatArray, share: FloatArray) -> tuple[Loads, Loads]:
    """Both steps of bytes out[node, local] * share[node', local'], of which no matrix is formed."""
    inside = _flows(grid[:, :, None], grid[:, None, :], out[:, :, None] * share.sum(axis=0))
    held = out.sum(axis=1)  # by each member of a node after the first step, times the share of whom it is for
    across = (
        Loads(cluster, *cluster.outer_loads(grid[:, local], held, share[:, local])) for local in range(grid.shape[1])
    )
    return Loads.of(cluster, inside), reduce(Loads.plus, across)


def _flows(src: IntArray, dst: IntArray, nbytes: FloatArray) -> Flows:
    src, dst = np.broadcast_to(src, nbytes.shape), np.broadcast_to(dst, nbytes.shape)
    moving = (src != dst) & (nbytes > 0)
    return Flows(src[moving], dst[moving], nbytes[moving])
