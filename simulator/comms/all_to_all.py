"""All-to-all: plain grouped send/recv, each pair direct, or in two steps over the ranks of equal local position.

Time of one step = base + hops x + peers p + bytes / rate: a send/recv over the network takes `all_to_all_hops`
network latencies x, every remote peer costs p to post, and ports carry their `all_to_all_..._share`. NCCL's LL
protocol, up to 16 KiB for each pair, doubles bytes that are then too few to be seen beside the latency: left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.gloo import gloo_all_to_all
from foreshard.simulator.comms.loads import Flows, Loads
from foreshard.simulator.comms.lowering import Draft, Phase
from foreshard.simulator.comms.machine_constants import machine_constant
from foreshard.simulator.comms.members import Members
from foreshard.simulator.comms.symmetry import Template
from foreshard.simulator.job.traffic import PairBytes
from foreshard.topologies.errors import InputError

__all__ = ["hierarchical", "pairwise"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def pairwise(template: Template, traffic: PairBytes) -> Draft:
    """Return the all-to-all as NCCL's users write it: one grouped send/recv for each pair of ranks."""
    loads = _pair_loads(template, traffic)
    if template.members.cluster.backend == "gloo":
        return gloo_all_to_all(template.members, loads)
    peers = _remote_peers(template, traffic)
    return Draft("pairwise", (_step(template.members, loads, peers),), loads.nominal_s, loads.busiest, peers)


def hierarchical(template: Template, traffic: PairBytes) -> Draft:
    """Return the all-to-all in two steps: inside each node to the member of the destination's local position, then
    between the members of equal position. Raises InputError if nodes have different numbers of members."""
    members = template.members
    sizes = {len(node) for node in members.nodes}
    if len(sizes) > 1:
        raise InputError(
            f"a hierarchical all_to_all needs as many members in every node, not {sorted(sizes)}: use pairwise"
        )
    grid = np.stack(members.nodes)  # [nodes, local]
    sorter = np.argsort(members.ranks)
    order = sorter[np.searchsorted(members.ranks, grid, sorter=sorter)]
    blocks = traffic.to_matrix()[order[:, :, None, None], order[None, None]]  # [node, local, node', local']
    first = _flows(grid[:, :, None], grid[:, None, :], blocks.sum(axis=2))  # to the member of that local position
    second = _flows(grid[:, None, :], grid[None, :, :], blocks.sum(axis=1))  # then to that node
    loads = [Loads.of(members.cluster, flows) for flows in (first, second)]
    necessary = loads[1] if len(members.nodes) > 1 else loads[0]
    peers = len(members.nodes) - 1
    phases = (_step(members, loads[0], 0), _step(members, loads[1], peers))
    return Draft("hierarchical", phases, necessary.nominal_s, necessary.busiest, peers)


def _flows(src: IntArray, dst: IntArray, nbytes: FloatArray) -> Flows:
    src, dst = np.broadcast_to(src, nbytes.shape), np.broadcast_to(dst, nbytes.shape)
    moving = (src != dst) & (nbytes > 0)
    return Flows(src[moving], dst[moving], nbytes[moving])


def _step(members: Members, loads: Loads, peers: int) -> Phase:
    """One grouped send/recv in which every member has up to `peers` peers in other nodes."""

    def constant(name: str) -> float:
        return machine_constant(members.cluster, name)

    nic_s = loads.only("network").nominal_s
    latency = constant("all_to_all_base_s")
    if peers:
        latency += peers * constant("all_to_all_peer_s")
        latency += constant("all_to_all_hops") * members.network_latency_s(nic_s)
    nvlink = loads.stretch("nvlink", constant("all_to_all_nvlink_share"))
    network = loads.stretch("network", constant("all_to_all_network_share"))
    return Phase(latency, loads.links, loads.nbytes, 0.0, nvlink * network)


def _pair_loads(template: Template, traffic: PairBytes) -> Loads:
    cluster = template.members.cluster
    pairs = template.pairs
    if pairs is not None:
        nbytes = pairs.loads(traffic.to_matrix())
        return Loads(cluster, pairs.links[nbytes > 0], nbytes[nbytes > 0])
    if traffic.out is not None and traffic.share is not None:
        return Loads(cluster, *cluster.outer_loads(template.members.ranks, traffic.out, traffic.share))
    matrix, ranks = traffic.to_matrix(), template.members.ranks
    if 2 * np.count_nonzero(matrix) < matrix.size:
        src, dst = np.nonzero(matrix)
        return Loads(cluster, *cluster.loads(ranks[src], ranks[dst], matrix[src, dst]))
    return Loads(cluster, *cluster.loads(np.repeat(ranks, len(ranks)), np.tile(ranks, len(ranks)), matrix.ravel()))


def _remote_peers(template: Template, traffic: PairBytes) -> int:
    """Most members in other nodes that a member sends to or receives from."""
    if len(template.members.nodes) == 1:
        return 0
    if traffic.out is not None and traffic.share is not None:
        return _outer_peers(template, traffic.out > 0, traffic.share > 0)
    remote = (traffic.to_matrix() > 0) & template.remote
    return int(max(remote.sum(axis=0).max(), remote.sum(axis=1).max()))


def _outer_peers(template: Template, sends: NDArray[np.bool_], receives: NDArray[np.bool_]) -> int:
    _, domain = np.unique(template.members.cluster.domain_of[template.members.ranks], return_inverse=True)
    receivers = receives.sum() - np.bincount(domain, receives)[domain]
    senders = sends.sum() - np.bincount(domain, sends)[domain]
    return int(max((receivers * sends).max(), (senders * receives).max()))
