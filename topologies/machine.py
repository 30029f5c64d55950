"""What a machine is, as frozen data: numbers with sources, GPUs, links, one kind of node, the fabric, a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "LEAF",
    "SWITCH",
    "Architecture",
    "Backend",
    "ClusterSpec",
    "Fabric",
    "FabricKind",
    "Gpu",
    "Link",
    "LinkKind",
    "NodeGroup",
    "NodeSpec",
    "Routing",
    "Sourced",
]

Architecture = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "cpu"]
Backend = Literal["nccl", "gloo"]
LinkKind = Literal["nvlink", "c2c", "pcie", "smp", "dram", "loopback", "network", "uplink"]
FabricKind = Literal["single_switch", "leaf_spine", "rail"]
Routing = Literal["even", "by_destination"]

LEAF = "^leaf"
"""Endpoint of a node's link that leaves the node for the leaf switch its NIC is cabled to."""
SWITCH = "^nvswitch"
"""Endpoint of a node's link that leaves the node for the NVSwitch of an NVLink domain larger than the node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sourced:
    """A number in the base unit named by `unit` ("s", "B/s", "B", "FLOP/s" or "1") and where it is from."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU model: usable memory in bytes, memory bandwidth in B/s, L2 in bytes, dense FLOP/s per data type.

    A rank that is a process on a CPU (architecture "cpu") is described by the same figures: its share of the host's.
    """

    name: str
    architecture: Architecture
    hbm_bytes: float
    hbm_bytes_per_s: float
    l2_bytes: float
    flops: Mapping[str, float]
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One directed link: nominal `bandwidth` and really carried `usable` in B/s, `latency_s`, kind and source."""

    src: str
    dst: str
    bandwidth: float
    usable: float
    latency_s: float
    kind: LinkKind
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSpec:
    """One kind of node: its GPUs by local rank and every directed link between its devices.

    Devices are named by the links' endpoints: gpu0.., nvswitch, pcie0.., cpu0.., mem0.. (host memory), nic0..;
    LEAF and SWITCH stand for the switches outside. `nics` gives, per GPU, the NICs that carry its traffic; None
    lets every GPU use the nearest ones, shared evenly among the GPUs that are as near. With `nvlink_relay` one
    GPU passes on traffic of two others that have no direct NVLink, as NCCL does since 2.11 (NCCL_NVB_DISABLE=0);
    without it such pairs go over PCIe and the CPUs. With `nvls` NVSwitches that can add up do so, as NCCL has it by
    default (NCCL_NVLS_ENABLE=0 forbids it).
    """

    name: str
    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...]
    host_memory_bytes: float
    nics: tuple[tuple[str, ...], ...] | None = None
    nvlink_relay: bool = True
    nvls: bool = True
    source: str = ""

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the node's devices in order of first mention, without the switches outside."""
        named = dict.fromkeys(end for link in self.links for end in (link.src, link.dst))
        return tuple(name for name in named if not name.startswith("^"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """The switches between nodes.

    single_switch: every NIC on one non-blocking switch. leaf_spine: `nodes_per_leaf` nodes on each leaf. rail: NIC i
    of every node (of each block of `nodes_per_leaf` nodes) on leaf i. A leaf's uplinks carry together what its NICs
    carry, divided by `oversubscription`, over `spines` spines; `routing` spreads every flow over all spines or sends
    it over the spine its destination selects (InfiniBand's d-mod-k).
    """

    kind: FabricKind = "single_switch"
    nodes_per_leaf: int | None = None
    spines: int = 1
    oversubscription: float = 1.0
    latency_s: float = 0.0
    routing: Routing = "even"
    source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGroup:
    """`nodes` equal nodes."""

    node: NodeSpec
    nodes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSpec:
    """A whole cluster, fully explicit: what a cluster file resolves to and what `Cluster` compiles.

    `nodes_per_domain` nodes share one NVLink domain. `degrade` maps link-name patterns to a factor on bandwidth, 0
    for a missing link.
    """

    name: str
    groups: tuple[NodeGroup, ...]
    fabric: Fabric = field(default_factory=Fabric)
    nodes_per_domain: int = 1
    constants: Mapping[str, Sourced] = field(default_factory=dict)
    backend: Backend = "nccl"
    assumptions: tuple[str, ...] = ()
    degrade: Mapping[str, float] = field(default_factory=dict)
