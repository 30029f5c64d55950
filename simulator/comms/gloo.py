"""Collectives of gloo over TCP: rings and pairwise exchanges, step after step, without NCCL's algorithms."""

from __future__ import annotations

from foreshard.simulator.comms.loads import Loads
from foreshard.simulator.comms.lowering import Draft, Phase
from foreshard.simulator.comms.machine_constants import machine_constant
from foreshard.simulator.comms.members import Members
from foreshard.simulator.comms.nccl import ring_share
from foreshard.simulator.job.program import CollectiveKind

__all__ = ["gloo_all_to_all", "gloo_ring"]


def gloo_ring(members: Members, kind: CollectiveKind, nbytes: float, necessary: Loads) -> Draft:
    """Return a collective of `nbytes` as gloo's ring: n-1 steps, all_reduce twice as many."""
    rounds = 2 if kind == "all_reduce" else 1
    loads = members.ring.times(nbytes * ring_share(kind, members.size))
    phase = Phase(_latency_s(members, rounds * (members.size - 1)), loads.links, loads.nbytes, 0.0)
    return Draft("gloo ring", (phase,), necessary.nominal_s, necessary.busiest)


def gloo_all_to_all(members: Members, loads: Loads) -> Draft:
    """Return an all-to-all as gloo runs it: one peer after the other."""
    phase = Phase(_latency_s(members, members.size - 1), loads.links, loads.nbytes, 0.0)
    return Draft("gloo pairwise", (phase,), loads.nominal_s, loads.busiest)


def _latency_s(members: Members, steps: int) -> float:
    step = max(machine_constant(members.cluster, "gloo_step_s"), members.hop_s)
    return machine_constant(members.cluster, "gloo_base_s") + steps * step
