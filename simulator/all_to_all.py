"""All-to-all: plain grouped send/recv, each pair direct, or in two steps over the ranks of equal local position.

Time of one step = base + hops x + peers p + bytes / rate: a send/recv over the network takes `all_to_all_hops`
network latencies x, every remote peer costs p to post, and ports carry their `all_to_all_..._share`.
"""

from __future__ import annotations

import numpy as np

from foreshard.simulator.lowering import Lowered, Phase
from foreshard.simulator.machine_constants import machine_constant
from foreshard.simulator.members import Flows, Loads, Members
from foreshard.simulator.traffic import PairBytes
from foreshard.topologies.errors import InputError

__all__ = ["hierarchical", "pairwise"]


def pairwise(members: Members, traffic: PairBytes) -> Lowered:
    """Return the all-to-all as NCCL's users write it: one grouped send/recv for each pair of ranks."""
    loads = _pair_loads(members, traffic)
    return Lowered("pairwise", (_step(members, loads, _remote_peers(members, traffic)),), *loads.bound)


def hierarchical(members: Members, traffic: PairBytes) -> Lowered:
    """Return the all-to-all in two steps: inside each node to the member of the destination's local position, then
    between the members of equal position. Raises InputError if nodes have different numbers of members."""
    sizes = {len(node) for node in members.nodes}
    if len(sizes) > 1:
        raise InputError(
            f"a hierarchical all_to_all needs as many members in every node, not {sorted(sizes)}: use pairwise"
        )
    grid = np.stack(members.nodes)  # [nodes, local]
    place = {rank: index for index, rank in enumerate(members.ranks.tolist())}
    order = np.vectorize(place.__getitem__)(grid)
    blocks = traffic.to_matrix()[order[:, :, None, None], order[None, None]]  # [node, local, node, local]
    inside, between = blocks.sum(axis=2), blocks.sum(axis=1)  # [node, local, local'], [node, node', local']
    first = Loads.of(members.cluster, _flows(grid[:, :, None], grid[:, None, :], inside))
    second = Loads.of(members.cluster, _flows(grid[:, None, :], grid[None, :, :], between))
    necessary = _across_only(members, _pair_loads(members, traffic))
    peers = int((between.sum(axis=2) > 0).sum(axis=1).max(initial=0))
    phases = (_step(members, first, 0), _step(members, second, min(peers, len(members.nodes) - 1)))
    return Lowered("hierarchical", phases, *necessary.bound)


def _flows(src: np.ndarray, dst: np.ndarray, nbytes: np.ndarray) -> Flows:
    src, dst = np.broadcast_to(src, nbytes.shape), np.broadcast_to(dst, nbytes.shape)
    moving = (src != dst) & (nbytes > 0)
    return Flows(src[moving], dst[moving], nbytes[moving])


def _across_only(members: Members, loads: Loads) -> Loads:
    """The loads between nodes: those both forms must move; empty on a single node, where the bound is pairwise's."""
    if len(members.nodes) == 1:
        return loads
    network = members.cluster.link_kind[loads.links] == "uplink"
    return Loads(members.cluster, loads.links[network], loads.nbytes[network])


def _step(members: Members, loads: Loads, peers: int) -> Phase:
    def constant(name: str) -> float:
        return machine_constant(members.cluster, name)

    nic_s = loads.nominal_s("network")
    latency = constant("all_to_all_base_s")
    if peers:
        latency += constant("all_to_all_hops") * members.network_latency_s(nic_s) + peers * constant(
            "all_to_all_peer_s"
        )
    nvlink_s = loads.nominal_s("nvlink") / constant("all_to_all_nvlink_share")
    return Phase(latency, loads.links, loads.nbytes, max(nvlink_s, nic_s / constant("all_to_all_network_share")))


def _pair_loads(members: Members, traffic: PairBytes) -> Loads:
    cluster = members.cluster
    if traffic.out is not None and traffic.share is not None:
        return Loads(cluster, *cluster.outer_loads(members.ranks, traffic.out, traffic.share))
    matrix = traffic.to_matrix()
    src, dst = np.nonzero(matrix)
    return Loads(cluster, *cluster.loads(members.ranks[src], members.ranks[dst], matrix[src, dst]))


def _remote_peers(members: Members, traffic: PairBytes) -> int:
    """Most members in other nodes that a member sends to or receives from."""
    if len(members.nodes) == 1:
        return 0
    domain = members.cluster.domain_of[members.ranks]
    if traffic.out is not None and traffic.share is not None:
        _, domain = np.unique(domain, return_inverse=True)
        sends, receives = traffic.out > 0, traffic.share > 0
        remote_receivers = receives.sum() - np.bincount(domain, receives)[domain]
        remote_senders = sends.sum() - np.bincount(domain, sends)[domain]
        return int(max((remote_receivers * sends).max(), (remote_senders * receives).max()))
    remote = (traffic.to_matrix() > 0) & (domain[:, None] != domain[None, :])
    return int(max(remote.sum(axis=0).max(initial=0), remote.sum(axis=1).max(initial=0)))
