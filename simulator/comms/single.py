"""Collectives on their own: one or several, with nothing else running, in simulated time on the cluster's links."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np
import simpy
from numpy.typing import NDArray

from foreshard.simulator.comms.collectives import Lowered, check_bound, lower
from foreshard.simulator.comms.transfers import Done, Transfers
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import AllToAll, Collective, CollectiveKind
from foreshard.simulator.job.traffic import PairBytes
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError

__all__ = [
    "NCCL_TESTS",
    "CollectiveResult",
    "NcclTest",
    "alone_s",
    "bus_factor",
    "ranks_of",
    "run_collectives",
    "run_one",
    "uniform_collective",
]

FloatArray = NDArray[np.float64]
NcclTest = CollectiveKind | Literal["sendrecv"]
"""What nccl-tests measures and we predict: the collectives, and sendrecv, in which every rank sends to the next."""
NCCL_TESTS: tuple[NcclTest, ...] = (*get_args(CollectiveKind), "sendrecv")


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveResult:
    """One collective as nccl-tests reports it: `nbytes` is its size, `time_s` the predicted time.

    `bound_s` is the closed-form bound on `bottleneck`; `nic_bytes` the bytes out of the busiest NIC; `peers` the most
    peers in other nodes that a rank of an all-to-all posts to.
    """

    kind: NcclTest
    ranks: int
    nbytes: float
    time_s: float
    bound_s: float
    bottleneck: str
    algorithm: str
    nic_bytes: float
    peers: int = 0

    @property
    def algbw_bytes_per_s(self) -> float:
        """Size over time."""
        return self.nbytes / self.time_s if self.time_s > 0 else 0.0

    @property
    def busbw_bytes_per_s(self) -> float:
        """algbw times the factor of nccl-tests' PERFORMANCE.md."""
        return self.algbw_bytes_per_s * bus_factor(self.kind, self.ranks)


def bus_factor(kind: NcclTest, ranks: int) -> float:
    """busbw / algbw (NVIDIA/nccl-tests PERFORMANCE.md): 2 (n-1)/n for all_reduce, 1 for broadcast and sendrecv, else
    (n-1)/n."""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0, "sendrecv": 1.0}.get(kind, (ranks - 1) / ranks)


def uniform_collective(kind: NcclTest, ranks: Iterable[int], nbytes: float, steps: AllToAll = "pairwise") -> Collective:
    """One collective of nccl-tests' size `nbytes` over `ranks`.

    An all_to_all sends equal parts to all, in `steps`; sendrecv sends the whole buffer to the next rank, as grouped
    send/recv too (NVIDIA/nccl-tests src/sendrecv.cu).
    """
    groups = Groups([np.fromiter(ranks, dtype=np.int64)])
    members = len(groups.members[0])
    match kind:
        case "all_to_all":
            return Collective(kind=kind, groups=groups, traffic=(PairBytes.uniform(members, nbytes),), steps=steps)
        case "sendrecv":
            following = PairBytes.dense(np.roll(np.eye(members), 1, axis=1) * nbytes)
            return Collective(kind="all_to_all", groups=groups, traffic=(following,))
        case _:
            return Collective(kind=kind, groups=groups, nbytes=(nbytes,))


def ranks_of(cluster: Cluster, ranks_per_node: int | None = None) -> NDArray[np.int64]:
    """The ranks that take part, [ranks]: all, or the first `ranks_per_node` of every node.

    Raises InputError if a node has fewer.
    """
    if ranks_per_node is None:
        return np.arange(cluster.size)
    smallest = int(np.bincount(cluster.node_of).min())
    if not 1 <= ranks_per_node <= smallest:
        raise InputError(f"{ranks_per_node} ranks a node: the nodes of {cluster.name} have {smallest} GPUs")
    return np.flatnonzero(cluster.local_rank < ranks_per_node)


def run_one(
    cluster: Cluster,
    kind: NcclTest,
    nbytes: float,
    all_to_all: AllToAll = "pairwise",
    ranks_per_node: int | None = None,
) -> CollectiveResult:
    """Return one collective of all ranks of a cluster, or of the first `ranks_per_node` of every node.

    Raises BoundViolationError if it beats its own bound, InputError if nodes have fewer ranks.
    """
    ranks = ranks_of(cluster, ranks_per_node)
    collective = uniform_collective(kind, ranks.tolist(), nbytes, all_to_all)
    (lowered,) = lower(cluster, collective)
    (((time_s,),), _) = run_collectives(cluster, [(0.0, collective)])
    return CollectiveResult(
        kind=kind,
        ranks=len(ranks),
        nbytes=nbytes,
        time_s=time_s,
        bound_s=lowered.bound_s,
        bottleneck=lowered.bottleneck,
        algorithm=lowered.algorithm,
        nic_bytes=_busiest_nic(cluster, lowered),
        peers=lowered.peers,
    )


def alone_s(cluster: Cluster, lowered: Lowered) -> float:
    """Seconds a lowered collective takes when nothing else runs: latencies, and bytes over what links carry."""
    return sum(phase.latency_s + phase.transfer_s(cluster.link_usable) for phase in lowered.phases)


def run_collectives(
    cluster: Cluster, starts: Iterable[tuple[float, Collective]]
) -> tuple[list[list[float]], NDArray[np.float64]]:
    """Run collectives that start at given seconds and share the links.

    Returns the seconds each group of each collective takes from its start, and the bytes of every link [links].
    Raises BoundViolationError if one beats its bound.
    """
    env = simpy.Environment()
    begun: list[FloatArray] = []
    ended: list[FloatArray] = []

    def on_done(done: Done) -> None:
        for index, groups in done:
            ended[cast(int, index)][groups] = env.now

    transfers = Transfers(env, cluster.link_usable, on_done)
    every = [(start, lower(cluster, collective)) for start, collective in starts]
    for index, (start, lowered) in enumerate(every):
        begun.append(np.full(len(lowered), start))
        ended.append(begun[-1].copy())
        transfers.begin(index, lowered.phases, np.arange(len(lowered)), begun[-1])
    env.run()
    took = [end - begin for begin, end in zip(begun, ended, strict=True)]
    for index, (_, lowered) in enumerate(every):
        early = int((took[index] - lowered.bound_s * (1 - 1e-9)).argmin())
        check_bound(f"collective {index}, group {early}", float(took[index][early]), lowered[early])
    return [times.tolist() for times in took], transfers.link_bytes


def _busiest_nic(cluster: Cluster, lowered: Lowered) -> float:
    network = [
        (phase.links[at := cluster.link_kind[phase.links] == "network"], phase.nbytes[at]) for phase in lowered.phases
    ]
    total = np.zeros(len(cluster.link_usable))
    for links, nbytes in network:
        np.add.at(total, links, nbytes)
    return float(total.max(initial=0.0))
