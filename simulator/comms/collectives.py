"""Collectives as phases of link loads: which algorithm, how many bytes on which link, and no faster than which bound.

`lower` turns a collective into what the network can run. Every prediction carries a closed-form lower bound, bytes
that any algorithm must move over nominal bandwidth, without latency; `check_bound` holds a time against it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.all_to_all import PairwiseDrafts, has_pairs, pairwise, pairwise_all
from foreshard.simulator.comms.hierarchical import hierarchical, takes_two_steps
from foreshard.simulator.comms.lowering import Bundle, Draft, Lowered, LoweredGroups, LoweredPart, Phase
from foreshard.simulator.comms.symmetry import Seats, seats_of
from foreshard.simulator.comms.tuned import tuned
from foreshard.simulator.job.program import Collective, CollectiveKind
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import BoundViolationError

__all__ = ["Lowered", "LoweredGroups", "Phase", "assumptions", "check_bound", "lower"]

IntArray = NDArray[np.int64]
K = TypeVar("K", bound=Hashable)

_ANY_PEERS = (
    "a NIC sustains the same share of its rate with any number of peers; every further peer only costs its posting, as "
    "much as the one before (measured on p5 for 8 to 56 peers; a fit to the same rows grows as ranks^0.46, so beyond "
    "them this is the dearer of two readings)"
)
_SHARED = "flows share links by max-min fairness; no congestion collapse, no retransmission, no noise of other jobs"
_FASTEST = (
    "the algorithm is the one predicted fastest with NCCL's documented constants, as NCCL itself chooses, whatever a "
    "tuner plugin or an environment variable would force"
)
_GLOO = "gloo's algorithms are those whose bytes were counted with torch 2.13.0; it has no choice of others"
_SET_UP = "connections are set up; what a rank sends to itself is a copy inside its memory and takes no link"


def assumptions(cluster: Cluster, kind: CollectiveKind | Literal["sendrecv"]) -> Iterator[str]:
    """Yield what every prediction of a collective of this kind on this cluster assumes, one sentence each."""
    nccl = cluster.backend == "nccl"
    if nccl and cluster.domain_of[-1] > 0:
        yield _ANY_PEERS
    yield _SHARED
    if not nccl:
        yield _GLOO
    elif kind not in ("all_to_all", "sendrecv"):
        yield _FASTEST
    yield _SET_UP


def lower(cluster: Cluster, collective: Collective) -> LoweredGroups:
    """Return what each group of a collective puts on the cluster's links.

    An all_to_all runs in the steps that it names, the other kinds by the algorithm and protocol with the smallest
    predicted time, as NCCL chooses. Raises InputError for two steps that groups cannot take.
    """
    parts = [part for seats in seats_of(cluster, collective.groups) for part in _parts(seats, collective)]
    return LoweredGroups.join(cluster, parts)


def _parts(seats: Seats, collective: Collective) -> Iterator[LoweredPart]:
    """Groups that lie alike; of an all-to-all with traffic of their own all at once, else those of one size."""
    template, groups = seats.template, seats.groups.tolist()
    if collective.kind != "all_to_all":
        for nbytes, rows in _equal([collective.nbytes_of(group) for group in groups]):
            yield _spread(seats, rows, tuned(template, collective.kind, nbytes))
        return
    traffic = {id(pairs): pairs for pairs in map(collective.traffic_of, groups)}
    same = _equal([id(collective.traffic_of(group)) for group in groups])
    two_steps = collective.steps == "hierarchical" and takes_two_steps(template.members)
    if not two_steps and has_pairs(template):
        yield _each(seats, same, pairwise_all(template, [traffic[key] for key, _ in same]))
        return
    for key, rows in same:
        yield _spread(seats, rows, (hierarchical if two_steps else pairwise)(template, traffic[key]))


def _equal(values: Sequence[K]) -> list[tuple[K, IntArray]]:
    """Different values with the places at which each is found."""
    rows: dict[K, list[int]] = defaultdict(list)
    for row, value in enumerate(values):
        rows[value].append(row)
    return [(value, np.array(found)) for value, found in rows.items()]


def _spread(seats: Seats, rows: IntArray, draft: Draft) -> LoweredPart:
    """What was worked out for the template, on the links of the seats at `rows`."""
    n, seats = len(rows), replace(seats, groups=seats.groups[rows], nodes=seats.nodes[rows])
    bottleneck = np.full(n, -1)
    if draft.bottleneck is not None:
        bottleneck = seats.moved(np.array([draft.bottleneck]))[:, 0]
    return LoweredPart(
        algorithm=draft.algorithm,
        groups=seats.groups,
        phases=tuple(_phases(seats, phase) for phase in draft.phases),
        bound_s=np.full(n, draft.bound_s),
        bottleneck=bottleneck,
        peers=np.full(n, draft.peers),
    )


def _phases(seats: Seats, phase: Phase) -> Bundle:
    """One phase of the template on the links of all seats."""
    n, k = len(seats.groups), len(phase.links)
    stretch = np.broadcast_to(np.asarray(phase.stretch, dtype=np.float64), (k,))
    return Bundle(
        groups=seats.groups,
        latency_s=np.full(n, phase.latency_s),
        floor_s=np.full(n, phase.floor_s),
        first=np.arange(n + 1) * k,
        links=np.broadcast_to(seats.moved(phase.links), (n, k)).ravel(),
        nbytes=np.broadcast_to(phase.nbytes, (n, k)).ravel(),
        stretch=np.broadcast_to(stretch, (n, k)).ravel(),
    )


def _each(seats: Seats, same: Sequence[tuple[object, IntArray]], drafts: PairwiseDrafts) -> LoweredPart:
    """All-to-alls of groups with different traffic: draft i on the links of the seats at the i-th rows of `same`."""
    of = np.empty(len(seats.groups), dtype=np.int64)
    for number, (_, rows) in enumerate(same):
        of[rows] = number
    loaded = drafts.nbytes[of] > 0
    links = np.broadcast_to(seats.moved(drafts.links), loaded.shape)
    bundle = Bundle(
        groups=seats.groups,
        latency_s=drafts.latency_s[of],
        floor_s=np.zeros(len(of)),
        first=np.concatenate([[0], np.cumsum(loaded.sum(axis=1))]),
        links=links[loaded],
        nbytes=drafts.nbytes[of][loaded],
        stretch=np.broadcast_to(drafts.stretch, loaded.shape)[loaded],
    )
    bottleneck = drafts.busiest[of]
    moving = np.flatnonzero(bottleneck >= 0)
    bottleneck[moving] = links[moving, bottleneck[moving]]
    return LoweredPart(
        algorithm="pairwise",
        groups=seats.groups,
        phases=(bundle,),
        bound_s=drafts.bound_s[of],
        bottleneck=bottleneck,
        peers=drafts.peers[of],
    )


def check_bound(name: str, time_s: float, lowered: Lowered) -> None:
    """Raise BoundViolationError if `time_s` is below the bound of `lowered` by more than rounding."""
    if time_s < lowered.bound_s * (1 - 1e-9):
        raise BoundViolationError(
            f"{name} ({lowered.algorithm}) took {time_s:.9g} s, less than its bound of {lowered.bound_s:.9g} s "
            f"on {lowered.bottleneck}: this is a bug in foreshard, please report it"
        )
