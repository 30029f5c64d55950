"""Routes inside one kind of node, found once with networkx and kept as link numbers and share matrices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.machine import LEAF, SWITCH, NodeSpec

__all__ = ["NodeRoutes", "Route", "compute_node_routes"]

Route = tuple[int, ...]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Cost of a hop: an NVLink is preferred to any PCIe path, a PCIe path to one through a CPU, that to one between
# sockets: the order of NCCL's path types NVL < PIX < PXB < PHB < SYS.
_HOP_COST = {
    "nvlink": 1.0,
    "c2c": 100.0,
    "pcie": 100.0,
    "dram": 100.0,
    "loopback": 100.0,
    "smp": 10_000.0,
    "network": 100.0,
}
_CPU_COST = 1_000.0
# Of equally many NVLink hops the wider ones, as in NCCL: this for a hop over the node's narrowest NVLink.
_NARROW_COST = 0.01


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NodeRoutes:
    """Routes of a node as link numbers; None where there is no route.

    peer[s][d]: between its GPUs. up, down: between a GPU and the domain's NVSwitch. egress, ingress [slot][gpu]:
    between a GPU and the leaf; a GPU spreads its traffic evenly over all slots, slot k to slot k of the other side.
    nic [slots, gpus]: the NIC of each slot. to_device, from_device: between a GPU and its nearest host memory.
    """

    links: int
    peer: tuple[tuple[Route | None, ...], ...]
    up: tuple[Route | None, ...]
    down: tuple[Route | None, ...]
    egress: tuple[tuple[Route | None, ...], ...]
    ingress: tuple[tuple[Route | None, ...], ...]
    nic: IntArray
    to_device: tuple[Route | None, ...]
    from_device: tuple[Route | None, ...]

    def shares(self, routes: Iterable[Route | None]) -> FloatArray:
        """Share of the bytes of each route that crosses each link, [routes, links] of 0 and 1."""
        rows = list(routes)
        matrix = np.zeros((len(rows), self.links))
        for row, route in enumerate(rows):
            if route:
                matrix[row, list(route)] = 1.0
        return matrix


class _Finder:
    """Cheapest routes between devices of one node over its links."""

    def __init__(self, spec: NodeSpec) -> None:
        self.graph = nx.DiGraph()
        self.number: dict[tuple[str, str], int] = {}
        narrowest = min((k.bandwidth for k in spec.links if k.kind == "nvlink" and k.bandwidth > 0), default=0.0)
        for index, link in enumerate(spec.links):
            if link.bandwidth > 0:
                self.number[link.src, link.dst] = index
                cost = _HOP_COST[link.kind] + (_CPU_COST if link.dst.startswith("cpu") else 0.0)
                cost += _NARROW_COST * narrowest / link.bandwidth if link.kind == "nvlink" else 0.0
                self.graph.add_edge(link.src, link.dst, cost=cost, kind=link.kind)
        self.relay = spec.nvlink_relay
        self._cache: dict[str, tuple[dict[str, float], dict[str, list[str]]]] = {}

    def _reachable(self, src: str) -> tuple[dict[str, float], dict[str, list[str]]]:
        """Distances and paths from `src`; GPUs, NICs and host memory end a path, they do not forward."""
        if src not in self._cache:
            found: tuple[dict[str, float], dict[str, list[str]]] = ({}, {})
            if src in self.graph:
                found = nx.single_source_dijkstra(self.graph, src, weight=self._cost_from(src))
            self._cache[src] = found
        return self._cache[src]

    def _cost_from(self, src: str) -> Callable[[str, str, dict[str, Any]], float | None]:
        def cost(a: str, b: str, edge: dict[str, Any]) -> float | None:
            ends_here = a.startswith(("gpu", "nic", "mem", LEAF)) and a != src
            leaves = a.startswith("nic") and b == LEAF
            relayed = self._relays(src, a) and edge["kind"] == "nvlink"
            return None if ends_here and not leaves and not relayed else float(edge["cost"])

        return cost

    def _relays(self, src: str, gpu: str) -> bool:
        """Whether a GPU passes on what `src` sends it: over one GPU and NVLinks only, as NCCL's PATH_NVB."""
        direct = self.graph.edges.get((src, gpu), {})
        return self.relay and gpu.startswith("gpu") and direct.get("kind") == "nvlink"

    def distance(self, src: str, dst: str) -> float:
        """Cost of the cheapest route, infinite where there is none."""
        return self._reachable(src)[0].get(dst, float("inf"))

    def route(self, src: str, dst: str) -> Route | None:
        """Link numbers of the cheapest route."""
        path = self._reachable(src)[1].get(dst)
        return None if path is None else tuple(self.number[pair] for pair in pairwise(path))

    def direct(self, src: str, dst: str) -> Route | None:
        """The link from `src` to `dst` alone."""
        number = self.number.get((src, dst))
        return None if number is None else (number,)

    def to_leaf(self, gpu: str, nic: str | None) -> Route | None:
        """Link numbers from a GPU through a NIC to the leaf switch."""
        return _join(self.route(gpu, nic), self.direct(nic, LEAF)) if nic else None

    def from_leaf(self, nic: str | None, gpu: str) -> Route | None:
        """Link numbers from the leaf switch through a NIC to a GPU."""
        return _join(self.direct(LEAF, nic), self.route(nic, gpu)) if nic else None


def _join(first: Route | None, second: Route | None) -> Route | None:
    return None if first is None or second is None else first + second


def _nearest_nics(finder: _Finder, gpus: Sequence[str], nics: Sequence[str]) -> list[tuple[str, ...]]:
    """NICs of each GPU: the nearest working ones, divided among the GPUs that are equally near to the same NICs."""
    alive = [nic for nic in nics if finder.direct(nic, LEAF) and finder.direct(LEAF, nic)]
    near: list[tuple[str, ...]] = []
    for gpu in gpus:
        distances = {nic: finder.distance(gpu, nic) for nic in alive}
        best = min(distances.values(), default=float("inf"))
        near.append(tuple(nic for nic, d in distances.items() if d == best < float("inf")))
    sharers: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, key in enumerate(near):
        sharers[key].append(index)
    chosen: list[tuple[str, ...]] = [()] * len(gpus)
    for key, members in sharers.items():
        for position, index in enumerate(members):
            first = position * len(key) // len(members)
            last = max(first + 1, (position + 1) * len(key) // len(members))
            chosen[index] = key[first:last]
    return chosen


def _spread_over_slots(chosen: Sequence[tuple[str, ...]]) -> list[list[str | None]]:
    """The NIC of each GPU in each slot: as many slots as let every GPU use each of its NICs equally often."""
    slots = lcm(*(len(nics) for nics in chosen if nics)) if any(chosen) else 1
    return [[nics[k * len(nics) // slots] if nics else None for nics in chosen] for k in range(slots)]


def compute_node_routes(spec: NodeSpec) -> NodeRoutes:
    """Return the routes of one kind of node over its links with bandwidth above 0."""
    finder = _Finder(spec)
    gpus = [f"gpu{i}" for i in range(len(spec.gpus))]
    nics = sorted((d for d in spec.devices if d.startswith("nic")), key=lambda name: int(name[3:]))
    memories = sorted(d for d in spec.devices if d.startswith("mem"))
    chosen = list(spec.nics) if spec.nics is not None else _nearest_nics(finder, gpus, nics)
    slot_nic = _spread_over_slots(chosen)
    near = [min(memories, key=lambda m: finder.distance(m, g), default="") for g in gpus]
    return NodeRoutes(
        links=len(spec.links),
        peer=tuple(tuple(() if s == d else finder.route(s, d) for d in gpus) for s in gpus),
        up=tuple(finder.direct(g, SWITCH) for g in gpus),
        down=tuple(finder.direct(SWITCH, g) for g in gpus),
        egress=tuple(tuple(finder.to_leaf(g, n) for g, n in zip(gpus, row, strict=True)) for row in slot_nic),
        ingress=tuple(tuple(finder.from_leaf(n, g) for g, n in zip(gpus, row, strict=True)) for row in slot_nic),
        nic=np.array([[int(n[3:]) if n else -1 for n in row] for row in slot_nic], dtype=np.int64),
        to_device=tuple(finder.route(m, g) for m, g in zip(near, gpus, strict=True)),
        from_device=tuple(finder.route(g, m) for m, g in zip(near, gpus, strict=True)),
    )
