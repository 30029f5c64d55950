"""NCCL's documented latencies, bandwidth limits and choices: data/nccl.toml as functions of a group's shape."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import inf, log2
from typing import Any, Literal

import numpy as np

from foreshard.simulator.job.program import CollectiveKind

__all__ = [
    "PROTOCOLS",
    "Algorithm",
    "Choice",
    "Latency",
    "Protocol",
    "Shape",
    "choices",
    "latency",
    "port_limit",
    "rate_limit",
    "ring_share",
    "tables",
    "tree_correction",
    "wire_factor",
]

Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "pat"]
Protocol = Literal["LL", "LL128", "Simple"]
Choice = tuple[Algorithm, Protocol]
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")


@cache
def tables() -> Mapping[str, Any]:
    """The tables of data/nccl.toml, each with its source; times in us, bandwidths in GB/s."""
    return tomllib.loads(resources.files("foreshard.simulator").joinpath("data/nccl.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What NCCL's tuning looks at in a group: ranks, nodes (NVLink domains), GPU generation and kinds of link.

    The node with most members has `largest`; `lanes` NICs of a node carry its traffic, one channel each; `port` is what
    a ring moves through a GPU inside its node in bytes/s; `in_switch` says that NVSwitches reduce (NVLS); posting a
    network operation takes `post_s`.
    """

    ranks: int
    nodes: int
    largest: int
    lanes: int
    port: float
    architecture: str
    nvlink: bool
    in_switch: bool
    post_s: float

    @property
    def scale(self) -> int:
        """Index of a table with columns for 1, 2 and more nodes."""
        return min(self.nodes, 3) - 1


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency in seconds: `inside` the nodes with the base, and `network_hops` hops of `hop_s` between them."""

    inside_s: float
    hop_s: float
    network_hops: float


def choices(kind: CollectiveKind, shape: Shape) -> list[Choice]:
    """Return the algorithms and protocols NCCL has for a collective on a group of this shape."""
    found: list[Choice] = [("ring", protocol) for protocol in PROTOCOLS]
    if kind == "all_reduce":
        found += [("tree", protocol) for protocol in PROTOCOLS]
        if shape.in_switch:
            found.append(("nvls" if shape.nodes == 1 else "nvls_tree", "Simple"))
    # PAT exists where every node has one rank of the group (ncclPatEnable).
    if kind in ("all_gather", "reduce_scatter") and shape.nodes == shape.ranks > 1:
        found.append(("pat", "Simple"))
    return found if shape.nvlink else [choice for choice in found if choice[1] != "LL128"]


def ring_share(kind: CollectiveKind, ranks: int) -> float:
    """Bytes a ring sends over each hop per byte of size: 2 (n-1)/n for all_reduce, 1 for broadcast, else (n-1)/n."""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0}.get(kind, (ranks - 1) / ranks)


def wire_factor(protocol: Protocol) -> float:
    """Bytes on the wire for each byte of data."""
    return float(tables()["wire"]["bytes_per_byte"][PROTOCOLS.index(protocol)])


def latency(kind: CollectiveKind, algorithm: Algorithm, protocol: Protocol, shape: Shape) -> Latency:
    """Return the latency of an algorithm as NCCL's tuning counts it (src/graph/tuning.cc, ncclTopoTuneModel).

    ring: base + (steps - inter) intra + inter net, with steps 2 (n-1) and inter 2 (N-1) for all_reduce, half of it
    for the others; over several nodes a step inside takes at least the posting of a network operation. tree: base +
    2 ((n/N - 1) intra + log2(N) net). NVLS: base + intra, over nodes 2 log2(N) net more.
    """
    row = "nvls" if algorithm == "nvls_tree" else algorithm
    column = PROTOCOLS.index(protocol)
    places = ("base", "nvlink" if shape.nvlink else "pcie", "network")
    base, intra, hop = (tables()["latency"][place][row][column] * 1e-6 for place in places)
    n, nodes, depth = shape.ranks, shape.nodes, log2(shape.nodes)
    match algorithm:
        case "ring":
            rounds = 2 if kind == "all_reduce" else 1
            if nodes > 1:
                intra = max(intra, shape.post_s * tables()["network_overhead"]["times"][column])
            return Latency(base + rounds * (n - nodes) * intra, hop, rounds * (nodes - 1))
        case "tree":
            return Latency(base + 2 * (n / nodes - 1) * intra, hop, 2 * depth)
        case "nvls" | "nvls_tree":
            return Latency(base + intra, hop, 2 * depth)
        case "pat":
            pat = tables()["pat"]
            return Latency(base + n * pat["per_rank"] * 1e-6, hop, depth / pat["network_divisor"])


def rate_limit(kind: CollectiveKind, choice: Choice, shape: Shape, nbytes: float) -> float:
    """Return the most bytes of size per second that a protocol reaches whatever the links; infinite if unlimited.

    LL is limited by its flags, LL128 and trees by what a channel moves; one channel a NIC. On a single node as many
    channels as needed exist, so that only LL has a limit there. Channels are a collective's own: others have theirs.
    """
    return _channel_limit(*choice, shape) / _busy(kind, choice, shape, nbytes)


def port_limit(kind: CollectiveKind, choice: Choice, shape: Shape, nbytes: float) -> float:
    """Return the most bytes of size per second that an algorithm moves through a GPU's port inside its node.

    Trees reach a share of what a ring does, reductions in the switch (NVLS) a share of the port. Unlike channels, ports
    are shared by collectives at the same time.
    """
    algorithm, protocol = choice
    share = 1.0
    if algorithm == "tree":
        shares = tables()["tree_port_share"]["one_node" if shape.nodes == 1 else "more_nodes"]
        share = float(shares[PROTOCOLS.index(protocol)])
    if algorithm in ("nvls", "nvls_tree"):
        nvls = tables()["nvls"]
        share = float(nvls["efficiency"][shape.architecture] * nvls["channel_share"])
    return shape.port * share / _busy(kind, choice, shape, nbytes)


def _busy(kind: CollectiveKind, choice: Choice, shape: Shape, nbytes: float) -> float:
    """Bytes of bus bandwidth, as NCCL's tuning counts it, for each byte of size."""
    algorithm, protocol = choice
    if algorithm == "tree":
        return 2 / tree_correction(protocol, nbytes)
    if algorithm in ("nvls", "nvls_tree"):
        return 1 + 1 / shape.largest
    return ring_share(kind, shape.ranks)


def _channel_limit(algorithm: Algorithm, protocol: Protocol, shape: Shape) -> float:
    def row(table: str) -> float:
        values = tables()[table]
        return float(values.get(shape.architecture, values["ampere"])[shape.scale]) * 1e9

    if protocol == "LL":
        return row("ll_max_bandwidth")
    if algorithm not in ("ring", "tree") or shape.nodes == 1 or (algorithm == "ring" and protocol == "Simple"):
        return inf
    name = "tree_per_channel" if protocol == "Simple" else f"{algorithm}_ll128_per_channel"
    return row(name) * shape.lanes


def tree_correction(protocol: Protocol, nbytes: float) -> float:
    """Share of its bandwidth that a tree reaches at a size, interpolated in log2 of the size (treeCorrectionFactor)."""
    values = tables()["tree_correction"][protocol]
    return float(np.interp(log2(max(nbytes, 1.0) / 64), np.arange(len(values)), values))
