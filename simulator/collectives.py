"""Collectives as phases of link loads: which algorithm, how many bytes on which link, and no faster than which bound.

`lower` turns a collective into what the network can run. Every prediction carries a closed-form lower bound, bytes
that any algorithm must move over nominal bandwidth, without latency; `check_bound` holds a time against it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.members import Flows, Members
from foreshard.simulator.nccl import PROTOCOLS, Algorithm, Choice, Shape, candidates, constants, latency_s, shape_of
from foreshard.simulator.program import Collective
from foreshard.simulator.traffic import PairBytes
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import BoundViolationError

__all__ = ["Lowered", "Phase", "check_bound", "lower"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """Wait `latency_s`, then move nbytes[k] over links[k] together, in no less than `floor_s`."""

    latency_s: float
    links: IntArray
    nbytes: FloatArray
    floor_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """One group's collective: its algorithm, phases one after the other, and the bound with the link that sets it."""

    algorithm: str
    phases: tuple[Phase, ...]
    bound_s: float
    bottleneck: str


def lower(cluster: Cluster, collective: Collective) -> tuple[Lowered, ...]:
    """Return what each group of a collective puts on the cluster's links."""
    return tuple(_lower_group(cluster, collective, group) for group in range(len(collective.groups)))


def check_bound(name: str, time_s: float, lowered: Lowered) -> None:
    """Raise BoundViolationError if `time_s` is below the bound of `lowered` by more than rounding."""
    if time_s < lowered.bound_s * (1 - 1e-9):
        raise BoundViolationError(
            f"{name} ({lowered.algorithm}) took {time_s:.9g} s, less than its bound of {lowered.bound_s:.9g} s "
            f"on {lowered.bottleneck}: this is a bug in foreshard, please report it"
        )


def _lower_group(cluster: Cluster, collective: Collective, group: int) -> Lowered:
    members = Members(cluster, collective.groups.members[group])
    if collective.kind == "all_to_all":
        return _all_to_all(members, collective.traffic_of(group))
    nbytes = collective.nbytes_of(group)
    if members.size == 1 or nbytes <= 0:
        return Lowered("none", (), 0.0, "")
    shape = shape_of(members)
    choice = candidates(collective.kind, shape, nbytes)[0]
    return _with_choice(members, collective, shape, choice, nbytes)


def _with_choice(members: Members, collective: Collective, shape: Shape, choice: Choice, nbytes: float) -> Lowered:
    wire = constants()["protocol"]["wire"][PROTOCOLS.index(choice.protocol)]
    links, load = members.loads(_flows(members, collective, choice.algorithm).times(nbytes * wire))
    latency = latency_s(collective.kind, choice.algorithm, choice.protocol, shape)
    bound, bottleneck = _bound(members, _necessary(members, collective).times(nbytes))
    phase = Phase(latency, links, load, 0.0)
    return Lowered(f"{choice.algorithm} {choice.protocol}", (phase,), bound, bottleneck)


def _flows(members: Members, collective: Collective, algorithm: Algorithm) -> Flows:
    """What one byte of size sends with an algorithm."""
    n, k = members.size, members.largest
    match algorithm:
        case "nvls":
            return members.all_nodes_within.times(1 + 1 / k)
        case "nvls_tree":
            return Flows.join(members.tree, members.all_nodes_within.times(1 + 1 / k))
        case "tree":
            return Flows.join(members.tree, members.all_nodes_within.times(2 * (1 - 1 / k)))
        case _:
            hops = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0}.get(collective.kind, (n - 1) / n)
            return members.ring.times(hops)


def _necessary(members: Members, collective: Collective) -> Flows:
    """What one byte of size must send whatever the algorithm: through every node's NICs and every GPU's port."""
    n, k = members.size, members.largest
    match collective.kind:
        case "all_reduce":
            across, inside = 1.0, 1.0
        case "broadcast":
            across, inside = 0.0, 0.0
        case _:
            across, inside = (n - k) / n, 0.0
    if len(members.nodes) == 1:
        return members.all_nodes_within.times(inside or ((n - 1) / n if collective.kind != "broadcast" else 0.0))
    following = members.nodes[1:] + members.nodes[:1]
    return Flows.join(*(members.between(a, b).times(across) for a, b in zip(members.nodes, following, strict=True)))


def _bound(members: Members, flows: Flows) -> tuple[float, str]:
    return _bound_of_loads(members.cluster, *members.loads(flows))


def _bound_of_loads(cluster: Cluster, links: IntArray, nbytes: FloatArray) -> tuple[float, str]:
    """Bytes over nominal bandwidth of the busiest link, in seconds, and the link's name."""
    if not len(links):
        return 0.0, ""
    times = nbytes / cluster.link_bandwidth[links]
    worst = int(times.argmax())
    return float(times[worst]), cluster.link_name(int(links[worst]))


def _all_to_all(members: Members, traffic: PairBytes) -> Lowered:
    links, load = _pair_loads(members, traffic)
    bound, bottleneck = _bound_of_loads(members.cluster, links, load)
    latency = members.cluster.constants.get("network_latency_s") if len(members.nodes) > 1 else None
    phase = Phase(10.5e-6 + (latency.value if latency else 0.0), links, load, 0.0)
    return Lowered("pairwise", (phase,), bound, bottleneck)


def _pair_loads(members: Members, traffic: PairBytes) -> tuple[IntArray, FloatArray]:
    if traffic.out is not None and traffic.share is not None:
        return members.cluster.outer_loads(members.ranks, traffic.out, traffic.share)
    matrix = traffic.to_matrix()
    src, dst = np.nonzero(matrix)
    return members.cluster.loads(members.ranks[src], members.ranks[dst], matrix[src, dst])
