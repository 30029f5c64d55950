"""Random machines: nodes of any shape, fabrics, clusters of nodes of several kinds, whole and damaged."""

from __future__ import annotations

from hypothesis import strategies as st

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import NoRouteError
from foreshard.topologies.fields import Fields
from foreshard.topologies.machine import ClusterSpec, Fabric, NodeGroup, NodeSpec
from foreshard.topologies.nodefile import read_node

_PARTS = {
    "pcie": "pcie4-x16",
    "memory": "ddr4-3200-x8",
    "smp": "xgmi-milan",
    "nic": "hdr-200g",
    "nvlink": "nvlink3-one",
    "host_memory": "1 TiB",
    "source": "made up for tests",
}


@st.composite
def nodes(draw: st.DrawFn, shapes: tuple[str, ...] = ("none", "switch", "mesh")) -> NodeSpec:
    gpus = draw(st.integers(1, 4))
    table = {
        **_PARTS,
        "gpus": gpus,
        "nics": draw(st.integers(1, 4)),
        "cpus": draw(st.integers(1, 2)),
        "pcie_switches": draw(st.integers(0, 2)),
        "nvlink_topology": draw(st.sampled_from(shapes)),
        "nvlink_relay": draw(st.booleans()),
        "nvls": draw(st.booleans()),
    }
    if table["nvlink_topology"] == "none":
        del table["nvlink"]
    if table["nvlink_topology"] == "mesh":
        pairs = [(a, b) for a in range(gpus) for b in range(a)]
        kept = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
        table["nvlink_pairs"] = [[a, b, draw(st.integers(1, 4))] for a, b in kept]
    fields = Fields(table)
    node = read_node(fields, Fields({"gpu": "A10-24GB"}))
    assert not fields.problems
    return node


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    kind = draw(st.sampled_from(["single_switch", "leaf_spine", "rail"]))
    return Fabric(
        kind=kind,
        nodes_per_leaf=None if kind == "single_switch" else draw(st.integers(1, 3)),
        spines=draw(st.integers(1, 3)),
        oversubscription=1.0 if kind == "single_switch" else draw(st.sampled_from([1.0, 2.0, 3.5])),
        latency_s=draw(st.sampled_from([0.0, 3e-7])),
        routing=draw(st.sampled_from(["even", "by_destination"])),
        source="made up for tests",
    )


@st.composite
def specs(draw: st.DrawFn) -> ClusterSpec:
    domain = draw(st.booleans())
    kinds = draw(st.lists(nodes(("domain",) if domain else ("none", "switch", "mesh")), min_size=1, max_size=2))
    return ClusterSpec(
        name="drawn",
        groups=tuple(NodeGroup(node=kind, nodes=draw(st.integers(1, 3))) for kind in kinds),
        fabric=draw(fabrics()),
        nodes_per_domain=draw(st.integers(1, 3)) if domain else 1,
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """A random cluster, in half of the cases with some of its links damaged."""
    spec = draw(specs())
    cluster = Cluster(spec)
    names = [cluster.link_name(i) for i in range(len(cluster.link_usable))]
    harmed = draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) if draw(st.booleans()) else []
    factors = {name: draw(st.sampled_from([0.0, 0.25, 0.5])) for name in harmed}
    try:
        return Cluster(ClusterSpec(**{f: getattr(spec, f) for f in spec.__slots__} | {"degrade": factors}))
    except NoRouteError:
        return cluster
