"""What contradicts itself in an explicit cluster: each kind of mistake has one sentence of its own, all at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.machine import LEAF, SWITCH, ClusterSpec, Fabric, Gpu, Link, LinkKind, NodeGroup, NodeSpec
from foreshard.topologies.spec_checks import spec_problems

GPU = Gpu(
    name="g", architecture="hopper", hbm_bytes=1.0, hbm_bytes_per_s=1.0, l2_bytes=0.0, flops={}, source="for tests"
)


def link(src: str, dst: str, kind: LinkKind = "pcie", **changed: Any) -> Link:
    return replace(
        Link(src=src, dst=dst, bandwidth=2.0, usable=1.0, latency_s=0.0, kind=kind, source="for tests"), **changed
    )


LINKS = (
    *(one for end in ("gpu0", "gpu1", "nic0") for one in (link(end, "cpu0"), link("cpu0", end))),
    link("nic0", LEAF, "network"),
    link(LEAF, "nic0", "network"),
)


def node(*more: Link, **changed: Any) -> NodeSpec:
    spec = NodeSpec(name="n", gpus=(GPU, GPU), links=(*LINKS, *more), host_memory_bytes=1.0)
    return replace(spec, **changed)


def cluster(kind: NodeSpec | None = None, nodes: int = 1, **changed: Any) -> ClusterSpec:
    return replace(ClusterSpec(name="c", groups=(NodeGroup(node=kind or node(), nodes=nodes),)), **changed)


def on(**fabric: Any) -> ClusterSpec:
    return cluster(fabric=Fabric(**fabric))


def test_a_cluster_that_does_not_contradict_itself_has_no_problem() -> None:
    """Also where a link carries all of its bandwidth, is missing, or a leaf is oversubscribed."""
    whole, missing = link("cpu0", "mem0", usable=2.0), link("mem0", "cpu0", bandwidth=0.0, usable=0.0)
    assert spec_problems(cluster(node(whole, missing, nics=(("nic0",), ("nic0",))), nodes=2)) == []
    assert spec_problems(on(kind="leaf_spine", nodes_per_leaf=1, oversubscription=0.5)) == []
    assert spec_problems(cluster(node(link("gpu0", SWITCH, "nvlink")), nodes_per_domain=2)) == []


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (ClusterSpec(name="c", groups=()), "groups: there are no nodes"),
        (cluster(nodes=0), r"groups\[0\].nodes: 0 is not a number"),
        (cluster(nodes=(1 << 19) + 1), "1,048,578 ranks are more than the 1,048,576"),
        (cluster(nodes_per_domain=0), "nodes_per_domain: 0 is not"),
        (cluster(nodes_per_domain=2), "2 nodes share an NVLink domain, but no link goes to"),
        (cluster(node(gpus=())), "node 'n': has no GPUs"),
        (cluster(node(host_memory_bytes=-1.0)), "host_memory: -1.0 is not a size"),
        (cluster(node(gpus=(GPU,))), "links name gpu1, but the node has 1 GPUs"),
        (cluster(node(nics=(("nic0",),))), "nics: 1 rows for 2 GPUs"),
        (cluster(node(nics=(("nic0",), ("nic1",)))), r"nics\[1\]: there is no NIC 'nic1'"),
        (cluster(node(nics=(("nic0",), ("cpu0",)))), r"nics\[1\]: there is no NIC 'cpu0'"),
        (cluster(node(link("gpu0", "tpu0"))), "'tpu0' is not a device"),
        (cluster(node(link("cpu0", "cpu0"))), r"links\[8\] cpu0->cpu0: joins a device to itself"),
        (cluster(node(link("gpu0", LEAF))), "only a NIC has a cable to the leaf switch"),
        (cluster(node(link("gpu0", "cpu0"))), "gpu0->cpu0 is given 2 times"),
        (cluster(node(link("cpu0", "mem0", usable=2.5))), "usable 2.5 B/s must be above 0 and not above"),
        (cluster(node(link("cpu0", "mem0", usable=0.0))), "usable 0 B/s must be above 0"),
        (cluster(node(link("cpu0", "mem0", bandwidth=float("inf")))), "must be finite and not negative"),
        (cluster(node(link("cpu0", "mem0", bandwidth=-1.0, usable=-1.0))), "must be finite and not negative"),
        (cluster(node(link("cpu0", "mem0", latency_s=-1.0))), "latency -1.0 must be"),
        (on(kind="rail", oversubscription=0.0), "fabric.oversubscription: 0.0 is not a ratio above 0"),
        (on(spines=0), "fabric.spines: 0 is not"),
        (on(kind="rail", nodes_per_leaf=0), "fabric.nodes_per_leaf: 0 is not"),
        (on(latency_s=float("nan")), "fabric.latency: nan must be finite"),
        (on(kind="leaf_spine"), "fabric.nodes_per_leaf: is missing"),
        (on(oversubscription=2.0), "fabric.kind: a single switch has no leaves and uplinks"),
        (on(nodes_per_leaf=2), "fabric.kind: a single switch has no leaves and uplinks"),
    ],
)
def test_each_contradiction_is_one_sentence(spec: ClusterSpec, said: str) -> None:
    """And the cluster is refused with it."""
    assert len(spec_problems(spec)) == 1
    with pytest.raises(InputError, match=said):
        Cluster(spec)


def test_all_contradictions_are_told_together() -> None:
    """Two of the fabric, one of the cluster, and one of each of three links."""
    wrong = node(link("gpu0", "tpu0"), link("cpu0", "cpu0"), link("cpu0", "mem0", latency_s=-1.0))
    spec = cluster(wrong, nodes_per_domain=0, fabric=Fabric(kind="leaf_spine", spines=0))
    assert len(spec_problems(spec)) == 6
