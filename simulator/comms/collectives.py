"""Collectives as phases of link loads: which algorithm, how many bytes on which link, and no faster than which bound.

`lower` turns a collective into what the network can run. Every prediction carries a closed-form lower bound, bytes
that any algorithm must move over nominal bandwidth, without latency; `check_bound` holds a time against it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from foreshard.simulator.comms.all_to_all import hierarchical, pairwise
from foreshard.simulator.comms.lowering import Draft, Lowered, Phase
from foreshard.simulator.comms.symmetry import Seat, Template, seat_of
from foreshard.simulator.comms.tuned import tuned
from foreshard.simulator.job.program import Collective
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import BoundViolationError

__all__ = ["ASSUMPTIONS", "AllToAll", "Lowered", "Phase", "check_bound", "lower"]

AllToAll = Literal["pairwise", "hierarchical"]

ASSUMPTIONS = (
    "a NIC sustains the same share of its rate with any number of peers; every further peer only costs its posting, as "
    "much as the one before (measured on p5 for 8 to 56 peers; a fit to the same rows grows as ranks^0.46, so beyond "
    "them this is the dearer of two readings)",
    "flows share links by max-min fairness; no congestion collapse, no retransmission, no noise of other jobs",
    "the algorithm is the one predicted fastest with NCCL's documented constants, as NCCL itself chooses, whatever a "
    "tuner plugin or an environment variable would force",
    "connections are set up; what a rank sends to itself is a copy inside its memory and takes no link",
)
"""What every prediction of a collective assumes, one sentence each."""


def lower(cluster: Cluster, collective: Collective, all_to_all: AllToAll = "pairwise") -> tuple[Lowered, ...]:
    """Return what each group of a collective puts on the cluster's links.

    all_to_all is plain grouped send/recv, or, if asked, in two steps: inside the nodes, then between equal local
    ranks. The other kinds run the algorithm and protocol with the smallest predicted time, as NCCL chooses.
    """
    drafts: dict[tuple[int, int | float], Draft] = {}
    lowered = []
    for group, ranks in enumerate(collective.groups.members):
        seat = seat_of(cluster, ranks)
        size = id(collective.traffic_of(group)) if collective.kind == "all_to_all" else collective.nbytes_of(group)
        key = (id(seat.template), size)
        if key not in drafts:
            drafts[key] = _draft(seat.template, collective, group, all_to_all)
        lowered.append(_placed(cluster, seat, drafts[key]))
    return tuple(lowered)


def _draft(template: Template, collective: Collective, group: int, all_to_all: AllToAll) -> Draft:
    if collective.kind != "all_to_all":
        return tuned(template, collective.kind, collective.nbytes_of(group))
    return (pairwise if all_to_all == "pairwise" else hierarchical)(template, collective.traffic_of(group))


def _placed(cluster: Cluster, seat: Seat, draft: Draft) -> Lowered:
    """What was worked out for the template, on the links of a group."""
    phases = tuple(Phase(p.latency_s, seat.moved(p.links), p.nbytes, p.floor_s, p.stretch) for p in draft.phases)
    if draft.bottleneck is None:
        return Lowered(draft.algorithm, phases, draft.bound_s, "", draft.peers)
    (bottleneck,) = seat.moved(np.array([draft.bottleneck]))
    return Lowered(draft.algorithm, phases, draft.bound_s, cluster.link_name(int(bottleneck)), draft.peers)


def check_bound(name: str, time_s: float, lowered: Lowered) -> None:
    """Raise BoundViolationError if `time_s` is below the bound of `lowered` by more than rounding."""
    if time_s < lowered.bound_s * (1 - 1e-9):
        raise BoundViolationError(
            f"{name} ({lowered.algorithm}) took {time_s:.9g} s, less than its bound of {lowered.bound_s:.9g} s "
            f"on {lowered.bottleneck}: this is a bug in foreshard, please report it"
        )
