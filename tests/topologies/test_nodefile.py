"""The short form of a node: where counts put devices, and which links lines of parts become."""

from __future__ import annotations

import pytest

from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.explicit import dump_cluster
from foreshard.topologies.machine import SWITCH, NodeSpec


def text(*lines: str) -> str:
    parts = 'pcie = "pcie5-x16"\nmemory = "ddr5-4800-x8"\nsmp = "upi-sapphire-rapids"\nnic = "ndr-400g"\nsource = "x"\n'
    return 'schema = 1\nname = "t"\ngpu = "H100-SXM5-80GB"\n[node]\nhost_memory = "1 TiB"\n' + parts + "\n".join(lines)


def node(*lines: str) -> NodeSpec:
    return parse_cluster(text(*lines), where="t").groups[0].node


def beside(spec: NodeSpec, *devices: str) -> list[set[str]]:
    return [{link.dst for link in spec.links if link.src == device} for device in devices]


def test_neighbours_hang_on_one_switch_and_neighbouring_switches_on_one_socket() -> None:
    """Eight GPUs, four switches, two sockets: GPUs 0 and 1 on the first, switches 0 and 1 on the first."""
    spec = node("gpus = 8", "cpus = 2", "pcie_switches = 4", "nics = 4")
    assert beside(spec, "gpu0", "gpu1", "gpu2", "gpu7") == [{"pcie0"}, {"pcie0"}, {"pcie1"}, {"pcie3"}]
    sockets = [found & {"cpu0", "cpu1"} for found in beside(spec, "pcie0", "pcie1", "pcie2", "pcie3")]
    assert sockets == [{"cpu0"}, {"cpu0"}, {"cpu1"}, {"cpu1"}]
    assert [found - {"^leaf"} for found in beside(spec, "nic0", "nic3")] == [{"pcie0"}, {"pcie3"}]


def test_nics_at_the_cpu_hang_on_sockets_although_there_are_switches() -> None:
    """Two NICs, one on each socket."""
    spec = node("gpus = 4", "cpus = 2", "pcie_switches = 2", "nics = 2", 'nics_at = "cpu"')
    assert [found - {"^leaf"} for found in beside(spec, "nic0", "nic1")] == [{"cpu0"}, {"cpu1"}]


def test_a_domain_and_a_switch_of_the_node_are_different_ends() -> None:
    """`domain` leads out of the node, `switch` to an NVSwitch inside it."""
    lines = ("gpus = 2", 'nvlink = "nvlink4-h100"')
    assert beside(node(*lines, 'nvlink_topology = "domain"'), "gpu1") == [{SWITCH, "cpu0"}]
    assert beside(node(*lines, 'nvlink_topology = "switch"'), "gpu1") == [{"nvswitch", "cpu0"}]


def test_a_pair_of_a_mesh_has_the_rate_of_all_its_nvlinks() -> None:
    """Three NVLinks of 25 GB/s, of which NCCL uses 20.6 each."""
    spec = node("gpus = 2", 'nvlink = "nvlink4-one"', 'nvlink_topology = "mesh"', "nvlink_pairs = [[0, 1, 3]]")
    (pair,) = [link for link in spec.links if (link.src, link.dst) == ("gpu0", "gpu1")]
    assert (pair.bandwidth, pair.usable) == (pytest.approx(75e9), pytest.approx(61.8e9))


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ("[[0, 1, 0]]", "[0, 1, 0] does not join two of the GPUs 0 .. 1 by 1 to 64 NVLinks"),
        ("[[0, 1, 65]]", "[0, 1, 65] does not join"),
        ("[[0, 2, 1]]", "[0, 2, 1] does not join"),
        ("[[1, 1, 1]]", "[1, 1, 1] does not join"),
        ("[[0, 1]]", "[0, 1] is not [gpu, gpu, number of NVLinks between them]"),
        ("[[0, 1, 1], [1, 0, 1]]", "nvlink_pairs[1]: joins GPUs 1 and 0 a second time"),
    ],
)
def test_a_pair_that_cannot_be_is_told_with_its_place(pairs: str, said: str) -> None:
    """Once for each wrong pair."""
    with pytest.raises(InputError) as caught:
        node("gpus = 2", 'nvlink = "nvlink4-one"', 'nvlink_topology = "mesh"', f"nvlink_pairs = {pairs}")
    (problem,) = caught.value.problems
    assert said in problem


def test_nics_that_a_file_chooses_for_its_gpus_stay_chosen_in_explicit_form() -> None:
    """Both GPUs by NIC 1 alone: not what the distances would choose."""
    spec = parse_cluster(text("gpus = 2", "nics = 2", "gpu_nics = [[1], [1]]"), where="t")
    assert spec.groups[0].node.nics == (("nic1",), ("nic1",))
    assert parse_cluster(dump_cluster(spec), where="t") == spec
