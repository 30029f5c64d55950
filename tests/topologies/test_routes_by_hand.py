"""Which way traffic goes: order of path types, NICs, spines that are missing, factors on links; by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.importing import import_topology
from foreshard.topologies.machine import LEAF, Gpu, Link, LinkKind, NodeSpec
from foreshard.topologies.presets import load_preset
from foreshard.topologies.routes import NodeRoutes, compute_node_routes
from foreshard.topologies.shipped import parts
from foreshard.topologies.units import BYTES_PER_S, SECONDS, parse_quantity

GPU = Gpu(
    name="g", architecture="hopper", hbm_bytes=1.0, hbm_bytes_per_s=1.0, l2_bytes=0.0, flops={}, source="for tests"
)


def joined(kind: LinkKind, *names: str) -> list[Link]:
    """Links both ways along a chain of devices."""
    return [
        Link(src=a, dst=b, bandwidth=1.0, usable=1.0, latency_s=0.0, kind=kind, source="for tests")
        for one, other in pairwise(names)
        for a, b in ((one, other), (other, one))
    ]


def routes(gpus: int, *links: Iterable[Link]) -> tuple[NodeSpec, NodeRoutes]:
    node = NodeSpec(
        name="n", gpus=(GPU,) * gpus, links=tuple(k for group in links for k in group), host_memory_bytes=1.0
    )
    return node, compute_node_routes(node)


def chain(start: str, end: str, switches: int) -> list[Link]:
    return joined("pcie", start, *(f"pcie{start}{n}" for n in range(switches)), end)


@pytest.mark.parametrize("switches", [1, 3, 9])
def test_a_nic_behind_pcie_switches_is_nearer_than_one_behind_a_cpu(switches: int) -> None:
    """NCCL: PIX and PXB before PHB, over several switches too."""
    _, found = routes(
        1,
        chain("gpu0", "nic0", switches),
        joined("pcie", "gpu0", "cpu0", "nic1"),
        joined("network", "nic0", LEAF),
        joined("network", "nic1", LEAF),
    )
    assert found.nic.tolist() == [[0]]


@pytest.mark.parametrize("switches", [1, 10, 60])
def test_a_nic_of_the_own_socket_is_nearer_than_one_of_the_other(switches: int) -> None:
    """NCCL: PHB before SYS, over many switches below the CPU too."""
    _, found = routes(
        1,
        joined("pcie", "gpu0", "cpu0"),
        chain("cpu0", "nic0", switches),
        joined("smp", "cpu0", "cpu1"),
        joined("pcie", "cpu1", "nic1"),
        joined("network", "nic0", LEAF),
        joined("network", "nic1", LEAF),
    )
    assert found.nic.tolist() == [[0]]


def test_nvlinks_through_a_switch_are_preferred_to_one_pcie_hop() -> None:
    """NCCL: NVL before PIX, also where PCIe joins the GPUs directly."""
    node, found = routes(2, joined("pcie", "gpu0", "gpu1"), joined("nvlink", "gpu0", "nvswitch", "gpu1"))
    route = found.peer[0][1]
    assert route is not None
    assert [node.links[link].kind for link in route] == ["nvlink", "nvlink"]


def test_gpus_nics_and_host_memory_pass_nothing_on() -> None:
    """A GPU that could only be reached through a NIC, host memory or another GPU's PCIe link is not reached."""
    for middle in ("nic0", "mem0", "gpu2"):
        _, found = routes(3, joined("pcie", "gpu0", middle, "gpu1"))
        assert found.peer[0][1] is None
    _, found = routes(3, joined("pcie", "gpu0", "gpu2"), joined("nvlink", "gpu2", "gpu1"))
    assert found.peer[0][1] is None  # nor by NVLink what came over PCIe


def test_three_nics_of_two_gpus_are_dealt_so_that_each_gpu_uses_its_own_evenly() -> None:
    """GPU 0 has NIC 0, GPU 1 has NICs 1 and 2: two slots, in which GPU 0 uses its NIC twice."""
    near = [joined("pcie", "pcie0", end) for end in ("gpu0", "gpu1", "nic0", "nic1", "nic2")]
    _, found = routes(2, *near, *(joined("network", f"nic{n}", LEAF) for n in range(3)))
    assert found.nic.tolist() == [[0, 1], [0, 2]]


def test_gpus_with_two_and_three_nics_take_them_in_order_in_six_slots() -> None:
    """As many slots as let each GPU use its NICs equally often, those of a GPU one after the other."""
    node, _ = routes(2, *(joined("network", f"nic{n}", LEAF) for n in range(5)))
    found = compute_node_routes(replace(node, nics=(("nic0", "nic1"), ("nic2", "nic3", "nic4"))))
    assert found.nic.T.tolist() == [[0, 0, 0, 1, 1, 1], [2, 2, 3, 3, 4, 4]]


# -- spines -------------------------------------------------------------------------------------------------------


def with_spines(routing: str, missing: str = "") -> Cluster:
    lost = f'[degrade]\n"{missing}" = 0.0\n' if missing else ""
    text = (
        'schema = 1\nname = "t"\npreset = "p5.48xlarge"\nnodes = 3\n[fabric]\nkind = "leaf_spine"\nnodes_per_leaf = 1\n'
        f'spines = 4\nrouting = "{routing}"\nsource = "for tests"\n{lost}'
    )
    return Cluster(parse_cluster(text, where="t"))


def spines_of(cluster: Cluster, src: int, dst: int) -> dict[str, float]:
    src_array, dst_array = np.array([src]), np.array([dst])
    links, nbytes = cluster.loads(src_array, dst_array, np.array([12.0]))
    return {name: b for k, b in zip(links, nbytes, strict=True) if "spine" in (name := cluster.link_name(int(k)))}


@pytest.mark.parametrize("dst", range(8, 16))
def test_a_destination_selects_its_spine_by_its_port(dst: int) -> None:
    """d-mod-k: the k-th NIC on a leaf is reached over spine k mod 4, from every leaf."""
    for src in (0, 17):
        leaf = src // 8
        found = spines_of(with_spines("by_destination"), src, dst)
        assert found == {f"leaf{leaf}->spine{dst % 4}": 12.0, f"spine{dst % 4}->leaf1": 12.0}


@pytest.mark.parametrize("missing", ["leaf0->spine2", "spine2->leaf1"])
def test_a_destination_whose_spine_is_missing_takes_the_next_one(missing: str) -> None:
    """Only flows that would have used the missing uplink move, to spine 3, and past the last one to spine 0."""
    cluster = with_spines("by_destination", missing)
    assert spines_of(cluster, 0, 10) == {"leaf0->spine3": 12.0, "spine3->leaf1": 12.0}
    assert spines_of(cluster, 0, 9) == {"leaf0->spine1": 12.0, "spine1->leaf1": 12.0}
    last = with_spines("by_destination", missing.replace("spine2", "spine3"))
    assert spines_of(last, 0, 11) == {"leaf0->spine0": 12.0, "spine0->leaf1": 12.0}
    assert [cluster.link_name(k) for path, _ in cluster.paths(0, 10) for k in path if "spine3" in cluster.link_name(k)]


def test_the_other_leaves_keep_the_spine_that_one_leaf_has_lost() -> None:
    """Leaf 0 has lost its uplink to spine 2; leaf 2 still sends over it."""
    cluster = with_spines("by_destination", "leaf0->spine2")
    assert spines_of(cluster, 16, 10) == {"leaf2->spine2": 12.0, "spine2->leaf1": 12.0}


def test_an_even_spread_leaves_out_what_is_missing_on_either_side() -> None:
    """Four spines, one without its link down to leaf 1: a third on each of the others."""
    cluster = with_spines("even", "spine2->leaf1")
    assert [share for _, share in cluster.paths(0, 9)] == [1 / 3] * 3
    found = spines_of(cluster, 0, 9)
    assert found == {f"{a}->{b}": 4.0 for s in (0, 1, 3) for a, b in (("leaf0", f"spine{s}"), (f"spine{s}", "leaf1"))}


# -- factors, and what links carry ----------------------------------------------------------------------------------


def test_the_factors_of_all_patterns_that_name_a_link_multiply() -> None:
    """One cable at 0.5, its whole node at 0.4, both directions of all cables at 0.9."""
    cluster = load_preset("p5.48xlarge", 2, {"node1/nic3->leaf0": 0.5, "node1/*": 0.4, "node*/nic3<->leaf0": 0.9})
    factor = {cluster.link_name(k): f for k, f in enumerate(cluster.link_factor)}
    assert factor["node1/nic3->leaf0"] == pytest.approx(0.5 * 0.4 * 0.9)
    assert factor["node1/nic2->leaf0"] == pytest.approx(0.4)
    assert factor["leaf0->node1/nic3"] == pytest.approx(0.9)
    assert factor["node0/nic3->leaf0"] == pytest.approx(0.9)
    assert factor["node0/nic2->leaf0"] == 1.0


@pytest.mark.parametrize(
    ("rate", "gb_per_s"), [("2.5", 4.0), ("5", 8.0), ("8", 15.75), ("16", 31.5), ("32", 63.0), ("64.0", 121.0)]
)
def test_pcie_carries_what_its_line_code_leaves(rate: str, gb_per_s: float) -> None:
    """8b/10b up to gen2, 128b/130b up to gen5, 242 of 256 bytes of a flit in gen6; 16 lanes, GB/s."""
    text = (
        '<system version="1"><cpu numaid="0"><pci busid="01" class="0x030200" '
        f'link_speed="{rate} GT/s PCIe" link_width="16"><gpu dev="0" sm="90"/></pci></cpu></system>'
    )
    node = import_topology(text, "machine").spec.groups[0].node
    (found,) = {k.bandwidth for k in node.links if k.kind == "pcie"}
    assert found / 1e9 == pytest.approx(gb_per_s, rel=1e-3)


@pytest.mark.parametrize(
    ("part", "links", "each", "nominal"),
    [
        ("nvlink2-one", 1, 20.0, 25.0), ("nvlink3-one", 1, 20.0, 25.0), ("nvlink4-one", 1, 20.6, 25.0),
        ("nvlink5-one", 1, 40.1, 50.0), ("nvlink3-a100", 12, 20.0, 25.0), ("nvlink4-h100", 18, 20.6, 25.0),
        ("nvlink5-b200", 18, 40.1, 50.0),
    ],
)  # fmt: skip
def test_nvlinks_carry_what_nccl_counts_on(part: str, links: int, each: float, nominal: float) -> None:
    """NVIDIA/nccl src/graph/topo.h: SM70 and SM80 20 GB/s a link, SM90 20.6, SM100 40.1; a hop takes 0.6 us."""
    row = parts("link")[part]
    assert parse_quantity(row["usable"], BYTES_PER_S) == pytest.approx(links * each * 1e9)
    assert parse_quantity(row["bandwidth"], BYTES_PER_S) == pytest.approx(links * nominal * 1e9)
    hops = 1 if links == 1 else 2
    assert hops * parse_quantity(row["latency"], SECONDS) == pytest.approx(0.6e-6)


@pytest.mark.parametrize(
    ("part", "usable"),
    [
        ("qpi-broadwell", 6), ("upi-cascade-lake", 10), ("upi-sapphire-rapids", 22), ("upi-emerald-rapids", 40),
        ("xgmi-rome", 16), ("xgmi-milan", 24), ("pcie3-x16", 12), ("edr-100g", 12),
    ],
)  # fmt: skip
def test_sockets_pcie3_and_100_gbit_ports_carry_what_nccl_counts_on(part: str, usable: float) -> None:
    """NVIDIA/nccl src/graph/topo.h, GB/s."""
    assert parse_quantity(parts("link")[part]["usable"], BYTES_PER_S) == usable * 1e9


@pytest.mark.parametrize(
    ("part", "bandwidth", "usable"),
    [
        ("hdr-200g", 25, 191 / 8), ("ndr-400g", 50, 392 / 8), ("efa-100g", 12.5, 12.1), ("efa-4x100g", 50, 48.5),
        ("efa-2x200g", 50, 48.5), ("efa-400g", 50, 48.5), ("pcie4-x16", 31.5, 25), ("pcie5-x16", 63, 55),
    ],
)  # fmt: skip
def test_ports_and_slots_carry_what_was_measured_on_them(part: str, bandwidth: float, usable: float) -> None:
    """NIC counters, perftest and EFA writes in Gbit/s; host copies of nvbandwidth in GB/s."""
    row = parts("link")[part]
    assert parse_quantity(row["bandwidth"], BYTES_PER_S) == pytest.approx(bandwidth * 1e9)
    assert parse_quantity(row["usable"], BYTES_PER_S) == pytest.approx(usable * 1e9, rel=0.002)
