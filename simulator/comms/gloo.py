"""Collectives of gloo over TCP as torch.distributed runs them, without NCCL's algorithms.

What runs was found by counting bytes on the loopback of 2, 3 and 4 ranks (torch 2.13, 12 MiB): all_reduce moves
2 (n-1) times the size in all and so does reduce_scatter_tensor, which is an all_reduce and a copy; all_gather,
all_to_all and broadcast move n-1 times the size.
"""

from __future__ import annotations

import numpy as np

from foreshard.simulator.comms.bounds import Bound
from foreshard.simulator.comms.loads import Flows, Loads
from foreshard.simulator.comms.lowering import Draft, Phase
from foreshard.simulator.comms.machine_constants import machine_constant
from foreshard.simulator.comms.members import Members
from foreshard.simulator.comms.nccl import ring_share
from foreshard.simulator.job.program import CollectiveKind

__all__ = ["gloo_all_to_all", "gloo_collective"]


def gloo_collective(members: Members, kind: CollectiveKind, nbytes: float, bound: Bound) -> Draft:
    """Return a collective of `nbytes` (nccl-tests' size) as gloo runs it, with the bound of any algorithm."""
    match kind:
        case "broadcast":
            return _tree(members, nbytes, bound)
        case "all_reduce" | "reduce_scatter":
            name = "gloo ring" if kind == "all_reduce" else "gloo all_reduce"
            return _ring(members, name, nbytes * ring_share("all_reduce", members.size), 2, bound)
        case _:
            return _ring(members, "gloo ring", nbytes * ring_share(kind, members.size), 1, bound)


def gloo_all_to_all(members: Members, loads: Loads) -> Draft:
    """Return an all-to-all as gloo runs it: each rank posts to every other one, itself first, then waits for all."""
    phase = Phase(_latency_s(members, members.size - 1), loads.links, loads.nbytes, 0.0)
    return Draft("gloo pairwise", (phase,), loads.nominal_s, loads.busiest)


def _ring(members: Members, name: str, nbytes: float, rounds: int, bound: Bound) -> Draft:
    """n-1 steps a round, in which each rank passes what it has to the next one, `nbytes` in all steps together."""
    loads = members.ring.times(nbytes)
    phase = Phase(_latency_s(members, rounds * (members.size - 1)), loads.links, loads.nbytes, 0.0)
    return Draft(name, (phase,), bound.seconds, bound.link)


def _tree(members: Members, nbytes: float, bound: Bound) -> Draft:
    """A binomial tree: in every step whoever has the buffer sends it to one who has not."""
    ranks, edges, reached = members.ranks, [], 1
    while reached < members.size:
        edges += [(source, source + reached) for source in range(min(reached, members.size - reached))]
        reached *= 2
    src, dst = (ranks[np.array(ends)] for ends in zip(*edges, strict=True))
    loads = Loads.of(members.cluster, Flows(src, dst, np.full(len(edges), nbytes)))
    phase = Phase(_latency_s(members, (members.size - 1).bit_length()), loads.links, loads.nbytes, 0.0)
    return Draft("gloo tree", (phase,), bound.seconds, bound.link)


def _latency_s(members: Members, steps: int) -> float:
    step = max(machine_constant(members.cluster, "gloo_step_s"), members.hop_s)
    return machine_constant(members.cluster, "gloo_base_s") + steps * step
