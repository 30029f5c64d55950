"""All-to-all as plain grouped send/recv, each pair direct.

Time of one step = base + hops x + peers p + bytes / rate: a send/recv over the network takes `all_to_all_hops`
network latencies x, every remote peer costs p to post, and ports carry their `all_to_all_..._share`. NCCL's LL
protocol, up to 16 KiB for each pair, doubles bytes that are then too few to be seen beside the latency: left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.gloo import gloo_all_to_all
from foreshard.simulator.comms.loads import Loads
from foreshard.simulator.comms.lowering import Draft, Phase
from foreshard.simulator.comms.machine_constants import machine_constant
from foreshard.simulator.comms.members import Members
from foreshard.simulator.comms.symmetry import Template
from foreshard.simulator.job.traffic import PairBytes

__all__ = ["PairwiseDrafts", "grouped", "has_pairs", "pairwise", "pairwise_all"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def pairwise(template: Template, traffic: PairBytes) -> Draft:
    """Return the all-to-all as NCCL's users write it: one grouped send/recv for each pair of ranks."""
    loads = _pair_loads(template, traffic)
    if template.members.cluster.backend == "gloo":
        return gloo_all_to_all(template.members, loads)
    peers = _remote_peers(template, traffic)
    return Draft("pairwise", (grouped(template.members, loads, peers),), loads.nominal_s, loads.busiest, peers)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PairwiseDrafts:
    """All-to-alls of n different traffics among the same members: nbytes [n, k] on `links` [k], which `stretch` [k].

    latency_s, bound_s, `peers` [n]; `busiest` [n] is the place among the links on which the bound is reached, -1 where
    nothing moves.
    """

    links: IntArray
    stretch: FloatArray
    nbytes: FloatArray
    latency_s: FloatArray
    bound_s: FloatArray
    busiest: IntArray
    peers: IntArray


def has_pairs(template: Template) -> bool:
    """Whether `pairwise_all` can be had: for NCCL, and for groups small enough for a table of their pairs."""
    return template.members.cluster.backend == "nccl" and template.pairs is not None


def pairwise_all(template: Template, traffic: Sequence[PairBytes]) -> PairwiseDrafts:
    """Return what `pairwise` does for each of several traffics, all at once."""
    members, pairs = template.members, template.pairs
    assert pairs is not None
    matrices = np.stack([each.to_matrix() for each in traffic])
    nbytes = pairs.loads(matrices)
    loads = Loads(members.cluster, pairs.links, np.ones(len(pairs.links)))
    seconds = nbytes / members.cluster.link_bandwidth[pairs.links]
    remote = (matrices > 0) & template.remote
    peers = np.maximum(remote.sum(axis=1), remote.sum(axis=2)).max(axis=1)
    network = members.cluster.is_kind("network")[pairs.links]
    nic_s = seconds[:, network].max(axis=1, initial=0.0)
    bound_s = seconds.max(axis=1, initial=0.0)
    return PairwiseDrafts(
        links=pairs.links,
        stretch=_stretch(loads),
        nbytes=nbytes,
        latency_s=np.array([_latency_s(members, *each) for each in zip(peers.tolist(), nic_s.tolist(), strict=True)]),
        bound_s=bound_s,
        busiest=np.where(bound_s > 0, seconds.argmax(axis=1) if seconds.size else 0, -1),
        peers=peers,
    )


def grouped(members: Members, loads: Loads, peers: int) -> Phase:
    """Return one grouped send/recv in which every member has up to `peers` peers in other nodes."""
    latency_s = _latency_s(members, peers, loads.only("network").nominal_s)
    return Phase(latency_s, loads.links, loads.nbytes, 0.0, _stretch(loads))


def _latency_s(members: Members, peers: int, nic_s: float) -> float:
    """What is not bytes over bandwidth, in seconds, with NICs that are busy for `nic_s`."""
    latency_s = machine_constant(members.cluster, "all_to_all_base_s")
    if peers:
        latency_s += peers * machine_constant(members.cluster, "all_to_all_peer_s")
        latency_s += machine_constant(members.cluster, "all_to_all_hops") * members.network_latency_s(nic_s)
    return latency_s


def _stretch(loads: Loads) -> FloatArray:
    """How many times its bytes an all-to-all takes up of each link, [k]."""
    nvlink = loads.stretch("nvlink", machine_constant(loads.cluster, "all_to_all_nvlink_share"))
    return nvlink * loads.stretch("network", machine_constant(loads.cluster, "all_to_all_network_share"))


def _pair_loads(template: Template, traffic: PairBytes) -> Loads:
    cluster = template.members.cluster
    pairs = template.pairs
    if pairs is not None:
        (nbytes,) = pairs.loads(traffic.to_matrix()[None])
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
