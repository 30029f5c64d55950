"""Collectives as phases of link loads: which algorithm, how many bytes on which link, and no faster than which bound.

`lower` turns a collective into what the network can run. Every prediction carries a closed-form lower bound, bytes
that any algorithm must move over nominal bandwidth, without latency; `check_bound` holds a time against it.
"""

from __future__ import annotations

from typing import Literal

from foreshard.simulator.all_to_all import hierarchical, pairwise
from foreshard.simulator.lowering import Draft, Lowered, Phase
from foreshard.simulator.program import Collective
from foreshard.simulator.symmetry import Seat, seat_of
from foreshard.simulator.tuned import tuned
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import BoundViolationError

__all__ = ["AllToAll", "Lowered", "Phase", "check_bound", "lower"]

AllToAll = Literal["pairwise", "hierarchical"]


def lower(cluster: Cluster, collective: Collective, all_to_all: AllToAll = "pairwise") -> tuple[Lowered, ...]:
    """Return what each group of a collective puts on the cluster's links.

    all_to_all is plain grouped send/recv, or, if asked, in two steps: inside the nodes, then between equal local
    ranks. The other kinds run the algorithm and protocol with the smallest predicted time, as NCCL chooses.
    """
    return tuple(
        _named(cluster, _draft(seat_of(cluster, ranks), collective, group, all_to_all))
        for group, ranks in enumerate(collective.groups.members)
    )


def _draft(seat: Seat, collective: Collective, group: int, all_to_all: AllToAll) -> Draft:
    if collective.kind != "all_to_all":
        return tuned(seat, collective.kind, collective.nbytes_of(group))
    return (pairwise if all_to_all == "pairwise" else hierarchical)(seat, collective.traffic_of(group))


def _named(cluster: Cluster, draft: Draft) -> Lowered:
    bottleneck = "" if draft.bottleneck is None else cluster.link_name(draft.bottleneck)
    return Lowered(draft.algorithm, draft.phases, draft.bound_s, bottleneck)


def check_bound(name: str, time_s: float, lowered: Lowered) -> None:
    """Raise BoundViolationError if `time_s` is below the bound of `lowered` by more than rounding."""
    if time_s < lowered.bound_s * (1 - 1e-9):
        raise BoundViolationError(
            f"{name} ({lowered.algorithm}) took {time_s:.9g} s, less than its bound of {lowered.bound_s:.9g} s "
            f"on {lowered.bottleneck}: this is a bug in foreshard, please report it"
        )
