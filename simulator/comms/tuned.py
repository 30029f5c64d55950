"""all_reduce, reduce_scatter, all_gather and broadcast: ring, tree, NVLS or PAT, whichever is predicted fastest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.bounds import bound_of
from foreshard.simulator.comms.gloo import gloo_collective
from foreshard.simulator.comms.loads import Loads
from foreshard.simulator.comms.lowering import Draft, Phase
from foreshard.simulator.comms.machine_constants import machine_constant
from foreshard.simulator.comms.members import Members
from foreshard.simulator.comms.nccl import (
    Choice,
    choices,
    latency,
    port_limit,
    rate_limit,
    ring_share,
    tables,
    wire_factor,
)
from foreshard.simulator.comms.symmetry import Template
from foreshard.simulator.job.program import CollectiveKind

__all__ = ["tuned"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Run:
    """One algorithm at one size: exposed latency, loads and floor; `total_s` when nothing else runs."""

    choice: Choice
    phase: Phase
    total_s: float


def tuned(template: Template, kind: CollectiveKind, nbytes: float) -> Draft:
    """Return a collective of `nbytes` (nccl-tests' size) run as NCCL would, with the bound of any algorithm."""
    draft = template.drafts.get((kind, nbytes))
    if draft is None:
        draft = template.drafts[kind, nbytes] = _draft(template, kind, nbytes)
    return draft


def _draft(template: Template, kind: CollectiveKind, nbytes: float) -> Draft:
    members = template.members
    if members.size == 1 or nbytes <= 0:
        return Draft("none", (), 0.0, None)
    bound = bound_of(template.parts, kind, nbytes)
    if members.cluster.backend == "gloo":
        return gloo_collective(members, kind, nbytes, bound)
    runs = [_run(members, kind, choice, nbytes) for choice in choices(kind, members.shape)]
    run = min(runs, key=lambda run: run.total_s)
    return Draft(" ".join(run.choice), (run.phase,), bound.seconds, bound.link)


def _run(members: Members, kind: CollectiveKind, choice: Choice, nbytes: float) -> _Run:
    algorithm, protocol = choice
    loads = _loads(members, kind, choice).times(nbytes * wire_factor(protocol))
    floor = nbytes / rate_limit(kind, choice, members.shape, nbytes)
    port_s = nbytes / port_limit(kind, choice, members.shape, nbytes)
    moving = Phase(0.0, loads.links, loads.nbytes, floor, _stretch(members, choice, loads, port_s))
    transfer = moving.transfer_s(members.cluster.link_usable)
    known = latency(kind, algorithm, protocol, members.shape)
    # Simple waits for a flush of the network as well, which costs its latency again.
    trips = 2 if protocol == "Simple" and algorithm != "pat" else 1
    hop = known.hop_s + trips * members.network_latency_s(loads.only("network").nominal_s)
    exposed = known.inside_s + _exposed(members, choice, known.network_hops * hop, transfer)
    exposed += machine_constant(members.cluster, "collective_launch_s")
    return _Run(choice, replace(moving, latency_s=exposed), exposed + transfer)


def _exposed(members: Members, choice: Choice, hops_s: float, transfer_s: float) -> float:
    """The part of the network's latency that the transfer does not hide.

    Rings of LL and LL128 forward lines while the rest of a chunk arrives: hops and transfer overlap, together
    (hops^p + transfer^p)^(1/p). Simple and trees hand on whole chunks.
    """
    if choice[0] != "ring" or choice[1] == "Simple" or hops_s == 0:
        return hops_s
    power = machine_constant(members.cluster, "ring_overlap")
    return float((hops_s**power + transfer_s**power) ** (1 / power) - transfer_s)


def _loads(members: Members, kind: CollectiveKind, choice: Choice) -> Loads:
    """What one byte of size puts on links."""
    k = members.largest
    match choice[0]:
        case "nvls":
            return members.inside.times(1 + 1 / k)
        case "nvls_tree":
            return members.tree.plus(members.inside.times(1 + 1 / k))
        case "tree":
            return members.tree.plus(members.inside.times(2 * (1 - 1 / k)))
        case _:
            return members.ring.times(ring_share(kind, members.size))


def _stretch(members: Members, choice: Choice, loads: Loads, port_s: float) -> FloatArray:
    """How many times its bytes a run takes up of each link, [k]: NICs reach a share of what they carry, and the GPUs'
    ports inside the nodes are busy for `port_s`, which is longer than their bytes alone take."""
    share = machine_constant(members.cluster, "ring_network_share")
    if choice[0] == "pat":
        share *= tables()["pat"]["bandwidth_share"]
    stretch = loads.stretch("network", share)
    inside = np.isin(loads.links, members.inside.links)
    if inside.any():
        bytes_s = float((loads.nbytes / members.cluster.link_usable[loads.links])[inside].max())
        stretch[inside] *= max(1.0, port_s / bytes_s)
    return stretch
