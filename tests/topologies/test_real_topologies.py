"""Outputs of real machines, written by others: each becomes a cluster or is refused with a line and a reason."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.explicit import dump_cluster
from foreshard.topologies.importing import Imported, import_topology, import_topology_file

# What cannot be read with certainty, and a part of the message that says why.
REFUSED = {
    "notm_p2p_h100x8_OK_matrix.txt": "line 1: this is nvidia-smi topo -p2p, not -m",
    "aws_g5.48xl-topo.xml": "line 14: PCI device '0000:00:16.0' has neither a class",
}


def read(specimens: Path, name: str) -> Imported:
    return import_topology_file(next((specimens / "topo").rglob(name)))


def edges(imported: Imported) -> set[tuple[str, str]]:
    return {(link.src, link.dst) for link in imported.spec.groups[0].node.links}


def test_every_specimen_is_read_or_refused_with_line_and_reason(specimens: Path) -> None:
    """All outputs compile to a cluster that writes and reads back equal, but for those listed as refused."""
    files = [path for path in (specimens / "topo").rglob("*") if path.suffix in (".txt", ".xml")]
    assert len(files) >= 38
    refused = {}
    for path in files:
        try:
            imported = import_topology_file(path)
        except InputError as error:
            refused[path.name] = str(error)
            continue
        assert Cluster(imported.spec).size == len(imported.spec.groups[0].node.gpus)
        assert parse_cluster(dump_cluster(imported.spec), where="written") == imported.spec
        assert imported.messages
    assert set(refused) == set(REFUSED)
    assert all(REFUSED[name] in message for name, message in refused.items())


PIECES = [
    "",
    "\t",
    "\n",
    "X",
    "NV",
    "NV0",
    "PIX",
    "GPU9",
    "0-7",
    '"',
    "<",
    "/>",
    "99",
    "GT/s",
    'count="no"',
    "\x00",
    "²",
]


@given(st.data())
def test_spoilt_specimens_are_read_or_refused(specimens: Path, data: st.DataObject) -> None:
    """Pieces lost, doubled or replaced: a cluster that writes and reads back equal, or a sentence, never a crash."""
    files = sorted(path for path in (specimens / "topo").rglob("*") if path.suffix in (".txt", ".xml"))
    text = data.draw(st.sampled_from(files)).read_text(encoding="utf-8")
    for _ in range(data.draw(st.integers(1, 5))):
        begin = data.draw(st.integers(0, len(text)))
        end = min(len(text), begin + data.draw(st.integers(0, 60)))
        text = text[:begin] + data.draw(st.sampled_from([*PIECES, text[:80]])) + text[end:]
    with suppress(InputError):
        imported = import_topology(text, "spoilt")
        Cluster(imported.spec)
        assert parse_cluster(dump_cluster(imported.spec), where="written") == imported.spec


@pytest.mark.parametrize("name", ["azure_ndv2-topo.xml", "azure_ndv4-topo.xml", "azure_ncv4-topo.xml"])
def test_vms_whose_file_has_no_nvlinks_say_so(specimens: Path, name: str) -> None:
    """Azure's static files leave NVLinks out, or name the GPU itself as their other end."""
    imported = read(specimens, name)
    assert any("no NVLink is modelled and GPUs meet over PCIe" in message for message in imported.messages)


def test_a_dgx1_has_its_hybrid_cube_mesh(specimens: Path) -> None:
    """Six NVLinks a GPU between pairs, one or two; NIC columns out of order keep their places."""
    imported = read(specimens, "dgx1_v100_4mlx_out_of_order.txt")
    cluster = Cluster(imported.spec)
    assert {("gpu0", "gpu1"), ("gpu0", "gpu4")} <= edges(imported)
    assert ("gpu0", "gpu5") not in edges(imported)
    mesh = cluster.link_bandwidth[cluster.link_kind == "nvlink"]
    assert mesh.sum() == 8 * 6 * 25e9
    assert imported.spec.groups[0].node.gpus[0].name == "V100-SXM2-32GB"


def test_reversed_nics_are_still_beside_their_gpus(specimens: Path) -> None:
    """The NIC nearest to GPU i is NIC 8 - i; the storage NIC is left out."""
    imported = read(specimens, "nccl1453_h100x8_9nic_reversed_order.txt")
    beside = {src: dst for src, dst in edges(imported) if dst.startswith("pcie") and not src.startswith("cpu")}
    assert [beside[f"gpu{i}"] for i in range(8)] == [beside[f"nic{7 - i}"] for i in range(8)]
    assert any(message.startswith("NIC0: SYS to every GPU") for message in imported.messages)


def test_far_gpus_share_the_nics_of_the_other_socket(specimens: Path) -> None:
    """All NICs on socket 0: GPU 4-7 cross the sockets and load the same four NICs."""
    spec = read(specimens, "a100x8_4nic_only_near_socket0.txt").spec
    node = spec.groups[0].node
    cluster = Cluster(type(spec)(name="two", groups=(type(spec.groups[0])(node=node, nodes=2),), fabric=spec.fabric))
    kinds = [str(cluster.link_kind[link]) for link in cluster.path(4, 8)]
    assert "smp" in kinds


def test_bridged_pcie_cards_are_no_switch(specimens: Path) -> None:
    """NV12 inside two pairs: the pairs meet over the CPUs."""
    imported = read(specimens, "a100pcie_4gpu_nv12_pairs.txt")
    assert {("gpu0", "gpu1"), ("gpu2", "gpu3")} <= edges(imported)
    assert not any("nvswitch" in pair for pair in edges(imported))


def test_four_numa_nodes_are_four_sockets(specimens: Path) -> None:
    """A cut B200 output with ragged columns still has its four NUMA nodes."""
    imported = read(specimens, "vllm18725_b200x8_4numa_ragged_cut.txt")
    assert ("cpu3", "mem3") in edges(imported)
    assert len(imported.spec.groups[0].node.gpus) == 8


@pytest.mark.parametrize("name", ["aws_p4d-24xl-topo.xml", "azure_ndv4-topo.xml"])
def test_nccls_files_give_pcie_speeds(specimens: Path, name: str) -> None:
    """p4d's file states 8 GT/s, ndv4's 16 GT/s, both x16; two GPUs share a switch."""
    node = read(specimens, name).spec.groups[0].node
    uplink = next(link for link in node.links if link.src == "pcie0" and link.dst == "cpu0")
    assert uplink.bandwidth == pytest.approx({"aws": 15.75e9, "azu": 31.5e9}[name[:3]], rel=1e-3)
    assert {"gpu0", "gpu1"} <= {link.src for link in node.links if link.dst == "pcie0"}
