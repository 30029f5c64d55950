"""Clusters whose routes and loads can be told by hand."""

from __future__ import annotations

import numpy as np
import pytest

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import InputError, NoRouteError
from foreshard.topologies.presets import load_preset


def names(cluster: Cluster, src: int, dst: int) -> list[str]:
    return [cluster.link_name(link) for link in cluster.path(src, dst)]


def loads(cluster: Cluster, *flows: tuple[int, int, float]) -> dict[str, float]:
    src, dst, nbytes = (np.array([flow[i] for flow in flows]) for i in range(3))
    return {cluster.link_name(int(k)): b for k, b in zip(*cluster.loads(src, dst, nbytes), strict=True)}


def on_fabric(preset: str, nodes: int, fabric: str) -> Cluster:
    text = f'schema = 1\nname = "t"\npreset = "{preset}"\nnodes = {nodes}\n[fabric]\n{fabric}'
    return Cluster(parse_cluster(text, where="t"))


def test_ranks_of_a_node_meet_at_the_nvswitch() -> None:
    """Two NVLink hops inside a node, no PCIe and no NIC."""
    assert names(load_preset("p5.48xlarge", 2), 0, 7) == ["node0/gpu0->node0/nvswitch", "node0/nvswitch->node0/gpu7"]


def test_a_rank_is_its_own_path() -> None:
    """No link between a rank and itself, and no bytes on any."""
    cluster = load_preset("p5.48xlarge")
    assert cluster.path(3, 3) == ()
    assert loads(cluster, (3, 3, 5.0)) == {}


def test_two_gpus_of_p4d_share_a_nic() -> None:
    """p4d has one NIC for two GPUs: two flows leave over the same cable, four GPUs need two."""
    cluster = load_preset("p4d.24xlarge", 2)
    sent = loads(cluster, (0, 8, 10.0), (1, 9, 10.0), (2, 10, 10.0))
    assert sent["node0/nic0->leaf0"] == 20.0
    assert sent["node0/nic1->leaf0"] == 10.0


def test_equally_near_nics_are_dealt_evenly() -> None:
    """Two GPUs and two NICs on one PCIe switch: each GPU has its own NIC (DGX A100)."""
    sent = loads(load_preset("dgx-a100", 2), (0, 8, 1.0), (1, 9, 1.0))
    assert sent["node0/nic0->leaf0"] == sent["node0/nic1->leaf1"] == 1.0


def test_a_gpu_with_two_nics_spreads_over_both() -> None:
    """A GPU that drives two NICs sends half over each, the k-th to the k-th of the receiver."""
    cluster = Cluster(
        parse_cluster(
            'schema = 1\nname = "t"\npreset = "dgx-h100"\nnodes = 2\n'
            "[node]\ngpus = 4\nnics = 8\npcie_switches = 4\n"
            '[fabric]\nkind = "rail"\n',
            where="t",
        )
    )
    sent = loads(cluster, (0, 4, 10.0))
    assert sent["node0/nic0->leaf0"] == sent["node0/nic1->leaf1"] == 5.0
    assert sent["leaf0->node1/nic0"] == sent["leaf1->node1/nic1"] == 5.0
    assert not any("spine" in name for name in sent)


def test_rails_keep_equal_positions_off_the_spine() -> None:
    """On rails, GPU i reaches GPU i of any node over leaf i alone; another rail costs the spine."""
    cluster = load_preset("dgx-h100", 4)
    assert not any("spine" in name for name in names(cluster, 3, 11))
    assert [n for n in names(cluster, 3, 12) if "spine" in n] == ["leaf3->spine0", "spine0->leaf4"]


def test_each_block_of_nodes_has_rails_of_its_own() -> None:
    """Two blocks of two nodes with 8 NICs each: 16 leaves, and equal positions of different blocks meet at a spine."""
    cluster = on_fabric("dgx-h100", 4, 'kind = "rail"\nnodes_per_leaf = 2\n')
    assert cluster.leaves == 16
    assert not any("spine" in name for name in names(cluster, 0, 8))
    assert [n for n in names(cluster, 0, 16) if "spine" in n] == ["leaf0->spine0", "spine0->leaf8"]


def test_gpus_with_two_and_three_nics_use_each_of_their_own_evenly_and_in_order() -> None:
    """Six parts: the first two go from NIC 0 to NIC 0, the third to NIC 1, the fourth from NIC 1 to NIC 1, ..."""
    group = '[[groups]]\npreset = "dgx-h100"\nnodes = 1\nnode = {{ gpus = 1, pcie_switches = 1, nics = {} }}\n'
    text = 'schema = 1\nname = "t"\n[fabric]\nkind = "single_switch"\n' + group.format(2) + group.format(3)
    cluster = Cluster(parse_cluster(text, where="t"))
    sent = loads(cluster, (0, 1, 12.0))
    assert [sent[f"node0/nic{n}->leaf0"] for n in range(2)] == [6.0, 6.0]
    assert [sent[f"leaf0->node1/nic{n}"] for n in range(3)] == [4.0, 4.0, 4.0]
    parts: dict[tuple[str, ...], float] = {}
    for path, share in cluster.paths(0, 1):
        nics = tuple(cluster.link_name(link) for link in path if "leaf" in cluster.link_name(link))
        parts[nics] = parts.get(nics, 0.0) + share
    assert parts == {
        (f"node0/nic{a}->leaf0", f"leaf0->node1/nic{b}"): pytest.approx(share / 6)
        for a, b, share in ((0, 0, 2), (0, 1, 1), (1, 1, 1), (1, 2, 2))
    }


def test_the_latency_between_ranks_is_that_of_their_longest_way() -> None:
    """Of two rails one stays on a leaf; the other climbs to a spine and comes down, two links of 1 us more."""
    group = '[[groups]]\npreset = "dgx-h100"\nnodes = 1\nnode = {{ gpus = 1, pcie_switches = 1, nics = {} }}\n'
    fabric = '[fabric]\nkind = "rail"\nnodes_per_leaf = 2\nlatency = "1 us"\n'
    cluster = Cluster(parse_cluster(f'schema = 1\nname = "t"\n{fabric}{group.format(2)}{group.format(1)}', where="t"))
    on_a_leaf = 4 * 0.5e-6 + 2 * 0.3e-6  # two PCIe links and the cable on either side
    latency = cluster.path_latency(np.array([0, 1]), np.array([1, 0]))
    np.testing.assert_allclose(latency, on_a_leaf + 2e-6)


def test_oversubscription_divides_the_uplinks() -> None:
    """Two nodes of 8 NICs of 50 GB/s on a leaf, oversubscribed 2:1 over 4 spines: 16 x 50 / 2 / 4 = 100 GB/s each."""
    fabric = 'kind = "leaf_spine"\nnodes_per_leaf = 2\noversubscription = 2.0\nspines = 4\n'
    cluster = on_fabric("p5.48xlarge", 4, fabric)
    uplinks = cluster.link_bandwidth[cluster.link_kind == "uplink"]
    assert uplinks.tolist() == [100e9] * 16


def test_even_routing_spreads_and_routing_by_destination_does_not() -> None:
    """One flow between leaves: a third on each of three spines, or all of it on the one its receiver selects."""
    fabric = 'kind = "leaf_spine"\nnodes_per_leaf = 1\nspines = 3\n'
    spread = loads(on_fabric("p5.48xlarge", 2, fabric), (0, 9, 9.0))
    assert [spread[f"leaf0->spine{s}"] for s in range(3)] == [3.0, 3.0, 3.0]
    chosen = loads(on_fabric("p5.48xlarge", 2, fabric + 'routing = "by_destination"\n'), (0, 9, 9.0))
    assert {name: b for name, b in chosen.items() if "spine" in name} == {"leaf0->spine1": 9.0, "spine1->leaf1": 9.0}


@pytest.mark.parametrize("routing", ["even", "by_destination"])
def test_what_nodes_of_one_leaf_exchange_stays_below_the_spines(routing: str) -> None:
    """Two nodes on the first leaf of two, each rank of them to each: no byte on an uplink."""
    cluster = on_fabric("p5.48xlarge", 3, f'kind = "leaf_spine"\nnodes_per_leaf = 2\nspines = 3\nrouting = "{routing}"')
    links, nbytes = cluster.outer_loads(np.arange(16), np.ones(16), np.ones(16))
    assert nbytes[cluster.is_kind("network")[links]].sum() > 0
    assert not cluster.is_kind("uplink")[links].any()


def test_an_nvlink_domain_may_span_nodes() -> None:
    """72 GPUs of 18 nodes share one NVSwitch; the 19th node is reached by NICs."""
    cluster = load_preset("gb200-nvl72", 19)
    assert (cluster.size, cluster.domain_of[71], cluster.domain_of[72]) == (76, 0, 1)
    assert names(cluster, 0, 71) == ["node0/gpu0->domain0/nvswitch", "domain0/nvswitch->node17/gpu3"]
    assert "leaf0->node18/nic0" in names(cluster, 0, 72)


def dgx1(relay: bool) -> Cluster:
    text = f'schema = 1\nname = "t"\npreset = "dgx1-v100"\n[node]\nnvlink_relay = {str(relay).lower()}\n'
    return Cluster(parse_cluster(text, where="t"))


def test_a_mesh_without_a_link_goes_over_the_cpus() -> None:
    """DGX-1: GPU 0 and 4 have a direct NVLink, GPU 0 and 5 do not and go over PCIe and both CPUs without a relay."""
    cluster = dgx1(relay=False)
    assert names(cluster, 0, 4) == ["node0/gpu0->node0/gpu4"]
    assert names(cluster, 0, 5) == [
        "node0/gpu0->node0/pcie0",
        "node0/pcie0->node0/cpu0",
        "node0/cpu0->node0/cpu1",
        "node0/cpu1->node0/pcie2",
        "node0/pcie2->node0/gpu5",
    ]


def test_a_third_gpu_relays_in_a_mesh_and_the_wider_links_are_preferred() -> None:
    """NCCL since 2.11: GPU 0 reaches 7 over 4 (two double links), not over 3 (a double and a single one)."""
    for cluster in (load_preset("dgx1-v100"), dgx1(relay=True)):
        assert [str(cluster.link_kind[link]) for link in cluster.path(0, 5)] == ["nvlink", "nvlink"]
        assert names(cluster, 0, 7) == ["node0/gpu0->node0/gpu4", "node0/gpu4->node0/gpu7"]


def test_only_one_gpu_relays() -> None:
    """Of a chain of four GPUs the ends are three NVLinks apart: NCCL goes over PCIe instead."""
    text = (
        'schema = 1\nname = "t"\npreset = "dgx1-v100"\n'
        "[node]\ngpus = 4\nnvlink_pairs = [[0, 1, 1], [1, 2, 1], [2, 3, 1]]\n"
    )
    cluster = Cluster(parse_cluster(text, where="t"))
    assert [str(cluster.link_kind[link]) for link in cluster.path(0, 2)] == ["nvlink", "nvlink"]
    assert "nvlink" not in [str(cluster.link_kind[link]) for link in cluster.path(0, 3)]


def test_host_copies_share_the_uplink_of_a_pcie_switch() -> None:
    """p5: two GPUs share a gen4 uplink of 25 GB/s usable, so all ranks at once get 12.5 each; p5en gives each 55."""
    assert load_preset("p5.48xlarge").host_to_device_bytes_per_s.tolist() == [12.5e9] * 8
    assert load_preset("p5en.48xlarge").host_to_device_bytes_per_s.tolist() == [55e9] * 8


def test_host_copies_and_nics_load_the_same_pcie_link() -> None:
    """On the PCIe box the link of a GPU carries copies to it and messages for it."""
    cluster = load_preset("pcie-4x", 2)
    copied = cluster.host_loads(np.arange(8), np.full(8, 7.0), "to_device")
    assert copied.nodes.tolist() == [0, 1]
    assert all(cluster.link_name(int(k)).startswith("node1/") for k in copied.links[copied.first[1] :])
    copies = {cluster.link_name(int(k)): b for k, b in zip(copied.links, copied.nbytes, strict=True)}
    assert copies["node0/cpu0->node0/gpu0"] == copies["node1/cpu0->node1/gpu0"] == 7.0
    assert copies["node0/mem0->node0/cpu0"] == 14.0
    nodes, first, links, nbytes = cluster.host_loads(np.array([6, 4]), np.array([2.0, 5.0]), "from_device")
    back = {cluster.link_name(int(k)): b for k, b in zip(links, nbytes, strict=True)}
    assert (nodes.tolist(), first.tolist()) == ([1], [0, len(links)])
    assert (back["node1/gpu2->node1/cpu1"], back["node1/gpu0->node1/cpu0"]) == (2.0, 5.0)
    assert loads(cluster, (4, 0, 3.0))["node0/cpu0->node0/gpu0"] == 3.0


def test_nodes_of_different_kinds_form_one_cluster() -> None:
    """Groups follow each other: 2 nodes of 8 H100 and one box of 4 A10; ranks keep their own GPU."""
    cluster = Cluster(
        parse_cluster(
            'schema = 1\nname = "mixed"\n[fabric]\nkind = "single_switch"\n'
            '[[groups]]\npreset = "p5.48xlarge"\nnodes = 2\n[[groups]]\npreset = "pcie-4x"\nnodes = 1\n',
            where="t",
        )
    )
    assert (cluster.nodes, cluster.size, cluster.local_world_size) == (3, 20, 8)
    assert cluster.gpu(15).name == "H100-SXM5-80GB"
    assert cluster.gpu(16).name == "A10-24GB"
    assert names(cluster, 0, 19)[-1] == "node2/cpu1->node2/gpu3"


def test_a_degraded_nic_carries_half() -> None:
    """Both directions of a cable at half its bandwidth, named by one pattern."""
    cluster = load_preset("p5.48xlarge", 2, {"node1/nic3<->leaf0": 0.5})
    changed = {cluster.link_name(int(i)): cluster.link_usable[i] for i in np.flatnonzero(cluster.link_factor != 1.0)}
    assert changed == {"node1/nic3->leaf0": 24.25e9, "leaf0->node1/nic3": 24.25e9}


def test_a_gpu_without_its_nvlink_falls_back_to_pcie() -> None:
    """A missing NVLink changes the routes of that GPU only."""
    cluster = load_preset("p5.48xlarge", 2, {"node0/gpu0<->node0/nvswitch": 0.0})
    assert "node0/pcie0->node0/gpu1" in names(cluster, 0, 1)
    assert names(cluster, 8, 9) == ["node1/gpu0->node1/nvswitch", "node1/nvswitch->node1/gpu1"]


def test_a_gpu_without_its_nic_takes_the_nearest_other_one() -> None:
    """With its NIC gone a GPU shares its neighbour's on the same PCIe switch."""
    for lost in ("node0/nic0->leaf0", "leaf0->node0/nic0"):  # one direction is enough: a NIC answers what it gets
        cluster = load_preset("p5.48xlarge", 2, {lost: 0.0})
        assert "node0/nic1->leaf0" in names(cluster, 0, 8)
        assert "leaf0->node0/nic1" in names(cluster, 8, 0)


def test_traffic_avoids_a_spine_that_a_leaf_has_lost() -> None:
    """One missing uplink of three: the flow goes half and half over the two spines that are left."""
    fabric = 'kind = "leaf_spine"\nnodes_per_leaf = 1\nspines = 3\n[degrade]\n"leaf0->spine1" = 0.0\n'
    sent = loads(on_fabric("p5.48xlarge", 2, fabric), (0, 8, 10.0))
    assert {n: b for n, b in sent.items() if n.startswith("leaf0->spine")} == {
        "leaf0->spine0": 5.0,
        "leaf0->spine2": 5.0,
    }


def test_ranks_that_are_cut_off_are_named() -> None:
    """Without any cable of node 1 there is no cluster, and the message says whose routes are missing."""
    with pytest.raises(NoRouteError, match=r"ranks 8-15: no route to a NIC with a cable"):
        load_preset("p5.48xlarge", 3, {"node1/nic*->leaf0": 0.0})


def test_leaves_without_a_common_spine_are_named() -> None:
    """A leaf whose uplinks are all missing cannot reach the others."""
    fabric = 'kind = "leaf_spine"\nnodes_per_leaf = 1\n[degrade]\n"leaf1->spine0" = 0.0\n'
    with pytest.raises(NoRouteError, match=r"ranks 8-15 on leaf1: no spine switch reaches leaf0 with ranks 0-7"):
        on_fabric("p5.48xlarge", 2, fabric)


def test_a_leaf_that_no_gpu_uses_may_be_cut_off() -> None:
    """Of eight rails only the first carries GPUs' traffic here, so another one without uplinks separates nobody."""
    fabric = 'kind = "rail"\nnodes_per_leaf = 1\n[node]\ngpu_nics = [[0], [0], [0], [0], [0], [0], [0], [0]]\n'
    cluster = on_fabric("dgx-h100", 2, fabric + '[degrade]\n"leaf3<->spine0" = 0.0\n')
    assert "spine0->leaf8" in names(cluster, 7, 8)


def test_a_pattern_that_matches_nothing_names_the_nearest_links() -> None:
    """A what-if about a link that does not exist must not pass unnoticed."""
    with pytest.raises(InputError, match=r"no link has this name; did you mean 'node0/nic0->leaf0'"):
        load_preset("p5.48xlarge", 2, {"nod0/nic0->leaf0": 0.5})


def test_all_degrade_mistakes_are_reported_together() -> None:
    """A factor above 1 and an unknown link give two messages at once."""
    with pytest.raises(InputError) as caught:
        load_preset("p5.48xlarge", 2, {"node0/nic0->leaf0": 1.5, "nonsense": 0.5})
    assert len(caught.value.problems) == 2


def test_links_and_routes_of_sixteen_thousand_ranks_are_as_many_as_their_devices() -> None:
    """Nothing is kept for pairs of ranks: links grow with nodes, and four million flows load each of them once."""
    small, large = load_preset("p5.48xlarge", 2), load_preset("p5.48xlarge", 2048)
    assert len(large.link_usable) * 2 == len(small.link_usable) * 2048
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, large.size, (2, 4_000_000))
    links, nbytes = large.loads(src, dst, np.ones(len(src)))
    assert len(links) <= len(large.link_usable)
    assert nbytes.sum() > 0
    ones = np.ones(large.size)
    links, nbytes = large.outer_loads(np.arange(large.size), ones, ones)
    leaving = [n for link, n in zip(links, nbytes, strict=True) if large.link_name(int(link)) == "node0/nic0->leaf0"]
    assert leaving == [large.size - large.local_world_size]
