"""NCCL's documented constants, its latencies, and its choice of algorithm and protocol by predicted time."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import log2
from typing import Any, Literal

from foreshard.simulator.members import Members
from foreshard.simulator.program import CollectiveKind

__all__ = ["PROTOCOLS", "Algorithm", "Choice", "Protocol", "Shape", "candidates", "latency_s", "shape_of"]

Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "pat"]
Protocol = Literal["LL", "LL128", "Simple"]
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")


@cache
def constants() -> Mapping[str, Any]:
    """The tables of data/nccl.toml, each with its source; times in us, bandwidths in GB/s."""
    text = resources.files("foreshard.simulator").joinpath("data/nccl.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What NCCL's tuning looks at: ranks, nodes (NVLink domains), GPU generation, links, network latency in seconds.

    `intra` and `inter` are bytes/s of a ring inside a node and of all NICs of a node that the group uses.
    """

    ranks: int
    nodes: int
    architecture: str
    nvlink: bool
    switch: bool
    network_latency_s: float
    intra: float
    inter: float


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm with a protocol and the time NCCL's tuning predicts for it, in seconds."""

    algorithm: Algorithm
    protocol: Protocol
    predicted_s: float


def steps(kind: CollectiveKind, ranks: int, nodes: int) -> tuple[int, int]:
    """Hops of a ring, all and those between nodes (NVIDIA/nccl src/graph/tuning.cc: nsteps and nInterSteps)."""
    match kind:
        case "all_reduce":
            return 2 * (ranks - 1), 2 * (nodes - 1)
        case "reduce_scatter" | "all_gather":
            return ranks - 1, nodes - 1
        case _:
            return ranks, nodes if nodes > 1 else 0


def latency_s(kind: CollectiveKind, algorithm: Algorithm, protocol: Protocol, shape: Shape) -> float:
    """Return the latency in seconds that NCCL's tuning gives an algorithm (src/graph/tuning.cc, ncclTopoTuneModel).

    ring: base + (steps - inter) intra + inter net; tree: base + 2 ((n/N - 1) intra + log2(N) net); a net hop adds
    the network's own latency, twice for Simple (its flush).
    """
    column = PROTOCOLS.index(protocol)
    row = "nvls" if algorithm == "nvls_tree" else algorithm
    table = constants()["latency"]
    base, intra, net = (table[place][row][column] * 1e-6 for place in (
        "base", "nvlink" if shape.nvlink else "pcie", "network"))  # fmt: skip
    net += shape.network_latency_s * (2 if protocol == "Simple" else 1)
    total, between = steps(kind, shape.ranks, shape.nodes)
    depth = log2(shape.nodes)
    match algorithm:
        case "ring":
            return float(base + (total - between) * intra + between * net)
        case "tree":
            return float(base + 2 * ((shape.ranks / shape.nodes - 1) * intra + depth * net))
        case "nvls":
            return float(base + intra)
        case "nvls_tree":
            return float(base + intra + 2 * depth * net)
        case "pat":
            return float(base + log2(shape.ranks) * (intra if shape.nodes == 1 else net))


def candidates(kind: CollectiveKind, shape: Shape, nbytes: float) -> list[Choice]:
    """Return what NCCL could run, with predicted times, the fastest first."""
    found = [
        Choice(algorithm, protocol, latency_s(kind, algorithm, protocol, shape) + nbytes / rate)
        for algorithm in _algorithms(kind, shape)
        for protocol in PROTOCOLS
        if (rate := bandwidth(kind, algorithm, protocol, shape)) > 0
    ]
    return sorted(found, key=lambda choice: choice.predicted_s)


def _algorithms(kind: CollectiveKind, shape: Shape) -> list[Algorithm]:
    if kind != "all_reduce":
        return ["ring"]
    nvls = shape.switch and constants()["nvls"]["efficiency"].get(shape.architecture, 0) > 0 and shape.ranks > 2
    if shape.nodes == 1:
        return ["ring", "tree", "nvls"] if nvls else ["ring", "tree"]
    return ["ring", "tree", "nvls_tree"] if nvls else ["ring", "tree"]


def bandwidth(kind: CollectiveKind, algorithm: Algorithm, protocol: Protocol, shape: Shape) -> float:
    """Return NCCL's predicted bytes/s of buffer for an algorithm and protocol; 0 where it does not exist."""
    column = PROTOCOLS.index(protocol)
    port = shape.intra if shape.nodes == 1 else min(shape.intra, shape.inter)
    if algorithm in ("nvls", "nvls_tree"):
        if protocol != "Simple":
            return 0.0
        efficiency = float(constants()["nvls"]["efficiency"][shape.architecture])
        inside = shape.intra * efficiency
        return inside if shape.nodes == 1 else min(inside, shape.inter / (1 if shape.nodes == 2 else 2))
    busy = port / float(constants()["protocol"]["wire"][column])
    if protocol == "LL":
        row = constants()["ll_bandwidth"].get(shape.architecture, constants()["ll_bandwidth"]["hopper"])
        busy = min(busy, row[min(shape.nodes, 3) - 1] * 1e9)
    if algorithm == "tree":
        return busy * 0.92 * (1.0 if shape.nodes == 2 else 0.5)
    total, _ = steps(kind, shape.ranks, shape.nodes)
    return busy * shape.ranks / total


def shape_of(members: Members) -> Shape:
    """Return what NCCL sees of a group on its cluster."""
    cluster = members.cluster
    loads, _ = members.loads(members.all_nodes_within)
    inside = cluster.link_usable[loads]
    outside = 0.0
    if len(members.nodes) > 1:
        links, nbytes = members.loads(members.between(members.nodes[0], members.nodes[1]))
        outside = float((cluster.link_usable[links] / nbytes).min())
    kinds = cluster.link_kind[loads]
    latency = cluster.constants.get("network_latency_s")
    return Shape(
        ranks=members.size,
        nodes=len(members.nodes),
        architecture=cluster.gpu(int(members.ranks[0])).architecture,
        nvlink=bool((kinds == "nvlink").all()),
        switch=any("nvswitch" in cluster.link_name(int(link)) for link in loads[:2]),
        network_latency_s=latency.value if latency else 0.0,
        intra=float(inside.min(initial=float("inf"))),
        inter=outside or float("inf"),
    )
