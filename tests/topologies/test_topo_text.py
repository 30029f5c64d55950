"""`nvidia-smi topo -m`: every peculiarity that real outputs have, on specimens of our own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.importing import Imported, import_topology
from foreshard.topologies.machine import NodeSpec

LEGEND = "\nLegend:\n\n  X    = Self\n  SYS  = PCIe and the SMP interconnect\n  NV#  = a bonded set of # NVLinks\n"


def table(rows: list[list[str]], tail: list[list[str]] | None = None, gap: str = "\t") -> str:
    """The matrix with its header; `rows` holds the device's name first."""
    devices = [row[0] for row in rows]
    extra = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"] if tail else []
    lines = [gap.join(["", *devices, *extra])]
    for index, row in enumerate(rows):
        lines.append(gap.join([*row, *(tail[index] if tail and index < len(tail) else [])]))
    return "\n".join(lines) + "\n" + LEGEND


def star(gpus: int, code: str) -> list[list[str]]:
    return [[f"GPU{i}", *("X" if i == j else code for j in range(gpus))] for i in range(gpus)]


def read(text: str, **parts: str) -> Imported:
    return import_topology(text, "machine", **parts)


def node(text: str, **parts: str) -> NodeSpec:
    return read(text, **parts).spec.groups[0].node


def neighbours(found: NodeSpec, device: str) -> set[str]:
    return {link.dst for link in found.links if link.src == device}


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        read(text)
    return str(caught.value)


PIECES = ["", "\t", "\n", "X", "NV", "PIX", "GPU9", "NIC3", "0-7", "\x00", "é"]
EIGHT = table(star(8, "NV18"), [["0-55", "0", "", "N/A"]] * 4 + [["56-111", "1", "", "N/A"]] * 4)
TWO_NICS = [
    ["GPU0", "X", "NV12", "NV12", "NV12", "PXB", "SYS", "SYS"],
    ["GPU1", "NV12", "X", "NV12", "NV12", "PXB", "SYS", "SYS"],
    ["GPU2", "NV12", "NV12", "X", "NV12", "SYS", "PXB", "SYS"],
    ["GPU3", "NV12", "NV12", "NV12", "X", "SYS", "PXB", "SYS"],
    ["NIC0", "PXB", "PXB", "SYS", "SYS", "X", "SYS", "SYS"],
    ["NIC1", "SYS", "SYS", "PXB", "PXB", "SYS", "X", "SYS"],
    ["NIC2", "SYS", "SYS", "SYS", "SYS", "SYS", "SYS", "X"],
]


def test_equal_counts_to_all_peers_are_a_switch() -> None:
    """NV18 to each of seven GPUs cannot be links between pairs: one switch with 18 links a GPU."""
    found = node(EIGHT)
    nvlinks = [link for link in found.links if link.kind == "nvlink"]
    assert {link.dst for link in nvlinks if link.src == "gpu3"} == {"nvswitch"}
    assert nvlinks[0].bandwidth == 18 * 25e9


def test_bridged_pairs_are_not_a_switch() -> None:
    """NV12 inside two pairs and SYS between them: direct links, the pairs meet over the CPUs."""
    rows = [
        ["GPU0", "X", "NV12", "SYS", "SYS"],
        ["GPU1", "NV12", "X", "SYS", "SYS"],
        ["GPU2", "SYS", "SYS", "X", "NV12"],
        ["GPU3", "SYS", "SYS", "NV12", "X"],
    ]
    found = node(table(rows, [["0-23", "0"], ["0-23", "0"], ["24-47", "1"], ["24-47", "1"]]))
    assert "gpu1" in neighbours(found, "gpu0")
    assert "nvswitch" not in found.devices
    cluster = Cluster(read(table(rows)).spec)
    assert all(cluster.link_kind[list(cluster.path(0, 2))] != "nvlink")


@pytest.mark.parametrize(
    ("gpus", "code", "model"),
    [
        (8, "NV18", "H100-SXM5-80GB"), (8, "NV12", "A100-SXM4-80GB"), (4, "NV4", "A100-SXM4-80GB"),
        (2, "NV6", "V100-SXM2-32GB"), (2, "NV3", "V100-SXM2-32GB"), (2, "NV2", "A10-24GB"), (2, "PHB", "A10-24GB"),
    ],
)  # fmt: skip
def test_the_nvlinks_of_one_gpu_tell_its_model(gpus: int, code: str, model: str) -> None:
    """18, 12 and 6 are those of H100, A100 and V100; a switch shows a GPU's links once for each peer."""
    assert node(table(star(gpus, code))).gpus[0].name == model


def test_a_link_to_a_switch_is_half_a_hop() -> None:
    """From GPU to GPU 0.6 us, over a switch as directly."""
    for text, latency_s in ((EIGHT, 0.3e-6), (table(star(2, "NV4")), 0.6e-6)):
        nvlinks = [link for link in node(text).links if link.kind == "nvlink"]
        assert [link.latency_s for link in nvlinks] == pytest.approx([latency_s] * len(nvlinks))


def test_a_switch_that_lacks_a_pair_is_told() -> None:
    """NV18 to six of seven GPUs: neither a switch nor links between pairs."""
    rows = star(8, "NV18")
    rows[0][2], rows[1][1] = "PHB", "PHB"
    assert any("fit neither a switch nor links between pairs" in message for message in read(table(rows)).messages)


def test_few_links_to_all_peers_are_links_between_pairs() -> None:
    """NV4 to each of three GPUs is 12 in all, as many as an A100 has: no switch."""
    assert "nvswitch" not in node(table(star(4, "NV4"))).devices


@pytest.mark.parametrize("gap", ["\t", "    ", "\t \t"])
def test_tabs_blanks_and_both_are_read_alike(gap: str) -> None:
    """The separator carries no meaning."""
    assert node(table(TWO_NICS, gap=gap)) == node(table(TWO_NICS))


def test_prompt_colours_indentation_and_trailing_tabs_do_not_matter() -> None:
    """A terminal's escape codes, a prompt line and ragged ends are passed over."""
    text = "user@host $ nvidia-smi topo -m\n" + "\n".join(f"  \x1b[4m{line}\x1b[0m\t\t" for line in EIGHT.splitlines())
    assert node(text) == node(EIGHT)


def test_nics_by_legend_or_by_name_in_any_order() -> None:
    """mlx5_1 before mlx5_0: the column counts, not the number in the name."""
    rows = [[c.replace("NIC0", "mlx5_1").replace("NIC1", "mlx5_0") for c in row] for row in TWO_NICS[:6]]
    rows = [row[:7] for row in rows]
    found = read(table(rows))
    assert "NICs by column: nic0 is mlx5_1, nic1 is mlx5_0" in found.messages
    assert neighbours(found.spec.groups[0].node, "nic0") & neighbours(found.spec.groups[0].node, "gpu0")


def test_devices_below_one_switch_share_it() -> None:
    """Two GPUs and a NIC at PXB distance hang on one PCIe switch, the other pair on another."""
    found = node(table(TWO_NICS))
    assert neighbours(found, "gpu0") & neighbours(found, "gpu1") & neighbours(found, "nic0") == {"pcie0"}
    assert neighbours(found, "gpu2") & neighbours(found, "nic1") == {"pcie1"}


def test_a_nic_far_from_every_gpu_is_a_storage_nic() -> None:
    """SYS to all GPUs: left out, and said so."""
    found = read(table(TWO_NICS))
    assert "nic2" not in found.spec.groups[0].node.devices
    assert "NIC2: SYS to every GPU, taken as storage NICs and left out" in found.messages


def test_a_nic_beside_no_gpu_is_spare_where_every_gpu_has_its_own() -> None:
    """NODE to both GPUs, which have a NIC beside each: left out, and said so."""
    rows = [
        ["GPU0", "X", "NV4", "PIX", "NODE", "NODE"],
        ["GPU1", "NV4", "X", "NODE", "PIX", "NODE"],
        ["NIC0", "PIX", "NODE", "X", "NODE", "NODE"],
        ["NIC1", "NODE", "PIX", "NODE", "X", "NODE"],
        ["NIC2", "NODE", "NODE", "NODE", "NODE", "X"],
    ]
    found = read(table(rows))
    assert "nic2" not in found.spec.groups[0].node.devices
    assert "NIC2: beside no GPU while every GPU has a NIC of its own, left out" in found.messages


def test_gpus_whose_socket_is_not_told_fill_the_last_socket_up() -> None:
    """Four GPUs on the first socket, two on the second, two without a CPU list: the second takes them."""
    found = read(table(star(8, "NV18"), [["0-55", "0"]] * 4 + [["56-111", "1"]] * 2))
    assert neighbours(found.spec.groups[0].node, "gpu7") - {"nvswitch"} == {"cpu1"}
    assert "cpu2" not in found.spec.groups[0].node.devices
    assert "the socket of GPU6, GPU7 is not told; filled up in order, 4 GPUs a socket" in found.messages


def test_sockets_follow_the_cpu_lists() -> None:
    """GPUs with one CPU list are on one socket, also where NVLink codes hide their PCIe distance."""
    found = node(EIGHT)
    assert neighbours(found, "gpu3") - {"nvswitch"} == {"cpu0"}
    assert neighbours(found, "gpu4") - {"nvswitch"} == {"cpu1"}


def test_a_named_gpu_and_nic_replace_the_assumed_ones() -> None:
    """--gpu and --nic choose parts; B200 has links of 50 GB/s."""
    found = read(table(TWO_NICS), gpu="B200-SXM-180GB", nic="ndr-400g")
    links = found.spec.groups[0].node.links
    assert next(link for link in links if link.kind == "nvlink").bandwidth == 12 * 50e9
    assert next(link for link in links if link.kind == "network").bandwidth == 50e9
    assert not any("--gpu" in message or "--nic" in message for message in found.messages)


@pytest.mark.parametrize("cpus", ["7-0,,a", "0-7,4-9", "5-", "1,1", "²"])
def test_a_cpu_list_that_is_none_is_told_with_its_line(cpus: str) -> None:
    """It is not used, so that sockets follow from distances or NUMA nodes."""
    text = table(TWO_NICS[:4], [[cpus, "0"], ["0-23", "0"], ["24-47", "1"], ["24-47", "1"]]).replace(
        "GPU3\tCPU", "GPU3\tNIC0\tNIC1\tNIC2\tCPU"
    )
    assert any(m.startswith(f"line 2: CPU affinity {cpus!r} of GPU0 is no list") for m in read(text).messages)


def test_numa_nodes_tell_the_sockets_where_cpu_lists_do_not() -> None:
    """In a container the CPU list may be N/A."""
    found = node(table(star(4, "NV4"), [["N/A", "0"], ["N/A", "0"], ["N/A", "1"], ["N/A", "1"]]))
    assert neighbours(found, "gpu1") & {"cpu0", "cpu1"} == {"cpu0"}
    assert neighbours(found, "gpu2") & {"cpu0", "cpu1"} == {"cpu1"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("GPU0\tX\tNV4\tNV4", "GPU0\tX\tNV0\tNV4"), "line 2: GPU0 to GPU1 is unreadable; row GPU1 says NV4"),
        (("N/A\nGPU3", "N/A\nfan speed 7\nGPU3"), "line 5: 'fan speed 7' in the table is no row of a device"),
        (("0-23\t0\t\tN/A", "0-23\t0\tN/A\tN/A"), "line 2: 'N/A' behind row GPU0 is not read"),
    ],
)
def test_what_a_table_does_not_hold_is_told_with_its_line(row: tuple[str, str], message: str) -> None:
    """Cells that no code explains, lines of something else, cells beyond the columns."""
    text = table(star(4, "NV4"), [["0-23", "0", "", "N/A"]] * 4)
    assert row[0] in text
    assert any(found.startswith(message) for found in read(text.replace(*row, 1)).messages)


def test_a_second_table_of_distances_is_told() -> None:
    """Two machines in one text: only the first is read, and said so."""
    text = table(star(2, "PHB"))
    second = len(text.splitlines()) + 2
    assert any(m.startswith(f"line {second}: row GPU0 of a second table") for m in read(text * 2).messages)


def test_names_of_nics_in_a_legend_are_kept() -> None:
    """The legend tells which device a column is."""
    found = read(table(TWO_NICS) + "NIC Legend:\n\n  NIC0: mlx5_4\n  NIC7: mlx5_9\n")
    assert any("nic0 is NIC0 (mlx5_4)" in message for message in found.messages)
    assert any("NIC7 is mlx5_9, but no column has that name" in message for message in found.messages)


def test_gpus_with_gaps_in_their_numbers_are_numbered_anew_with_a_message() -> None:
    """CUDA_VISIBLE_DEVICES and broken GPUs leave gaps."""
    text = table([["GPU1", "X", "NV4"], ["GPU3", "NV4", "X"]])
    assert "GPUs by number: gpu0 is GPU1, gpu1 is GPU3" in read(text).messages


@pytest.mark.parametrize("part", ["nvlink4-h100", "pcie5-x16", "c2c-grace"])
def test_a_part_that_is_no_nic_is_refused_as_one(part: str) -> None:
    """A link of another kind would leave the machine without a port."""
    with pytest.raises(InputError, match=rf"'{part}' is of kind .*, not network"):
        read(EIGHT, nic=part)


def test_an_unknown_part_is_refused() -> None:
    """A misspelt part names the ones that are like it."""
    with pytest.raises(InputError, match=r"there is no gpu 'H100' in the catalogue; did you mean 'H100-SXM5-80GB'"):
        read(EIGHT, gpu="H100")


def test_glued_cells_are_taken_apart() -> None:
    """SYSSYS is two cells, NIC1CPU a column and the beginning of another."""
    text = table(TWO_NICS[:4], [["0-23", "0"]] * 4).replace("GPU3\tCPU", "GPU3\tNIC0\tNIC1\tNIC2CPU")
    glued = text.replace("SYS\tSYS", "SYSSYS")
    assert glued != text
    assert node(glued) == node(text)


def test_an_unreadable_cell_is_repaired_by_the_symmetric_one() -> None:
    """A cell that no code explains is told by the other device's row."""
    broken = EIGHT.replace("GPU2\tNV18", "GPU2\tNV1?8", 1)
    assert broken != EIGHT
    found = read(broken)
    assert found.spec.groups[0].node == node(EIGHT)
    assert any("GPU2 to GPU0 is unreadable; row GPU0 says NV18" in message for message in found.messages)


def test_a_lost_cell_is_found_where_only_one_place_fits() -> None:
    """A row that is one code short is completed only where the other rows leave no doubt."""
    whole = table(TWO_NICS, [["0-3", "0"]] * 4)
    short = whole.replace("X\tSYS\tPXB\tSYS\t0-3", "X\tPXB\tSYS\t0-3")
    assert short != whole
    found = read(short)
    assert found.spec.groups[0].node == node(whole)
    assert any("lacks a code" in message for message in found.messages)


def test_a_row_with_lost_cells_in_doubt_is_refused_with_its_line() -> None:
    """Two codes short: the row is reported, nothing is shifted."""
    lines = EIGHT.splitlines()
    lines[4] = lines[4].replace("NV18\tNV18\t", "", 1)
    assert "line 5: row GPU3 lacks 2 of 8 codes" in refusal("\n".join(lines))


def test_one_lost_cell_that_may_have_stood_in_two_places_is_refused() -> None:
    """Of the only row one of two codes is left: it may be that of either column."""
    assert "line 2: row GPU0 lacks 1 of 3 codes" in refusal("\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\tX\tNV4\t0-3\n")


def test_contradicting_rows_are_refused_with_both_lines() -> None:
    """The matrix is symmetric; where it is not, one of two rows is damaged."""
    broken = EIGHT.replace("GPU5\tNV18", "GPU5\tSYS", 1)
    assert "line 7: GPU5 to GPU0 is SYS, but line 2 says NV18" in refusal(broken)


def test_a_cut_text_is_completed_with_a_message_for_each_assumption() -> None:
    """Missing rows follow from the columns, a code cut in its middle is not used."""
    cut = EIGHT[: EIGHT.index("GPU6\tNV18\tNV1") + len("GPU6\tNV18\tNV1")]
    found = read(cut)
    assert len(found.spec.groups[0].node.gpus) == 8
    text = "\n".join(found.messages)
    assert "row GPU6 is cut" in text
    assert "rows of GPU7 are missing" in text
    assert "NV18 is assumed as to their neighbours: GPU6-GPU7" in text


def test_two_gpus_without_rows_are_as_far_as_the_nearest_way_over_a_third() -> None:
    """GPU2 is NODE and GPU3 SYS from both others: over either of them they are SYS apart."""
    rows = [["GPU0", "X", "PIX", "NODE", "SYS"], ["GPU1", "PIX", "X", "NODE", "SYS"]]
    text = table(rows).replace("\tGPU0\tGPU1\n", "\tGPU0\tGPU1\tGPU2\tGPU3\n")
    assert "not stated, SYS is assumed as to their neighbours: GPU2-GPU3" in read(text).messages


def test_a_regular_pattern_places_the_nics_of_missing_rows() -> None:
    """GPU i beside NIC i in the rows that are there: assumed so for the one that is missing."""
    rows = [
        [f"GPU{i}", *("X" if i == j else "NV18" for j in range(4)), *("PIX" if i == j else "NODE" for j in range(4))]
        for i in range(3)
    ]
    text = table(rows, [["0-3", "0"]] * 3).replace("GPU2\tCPU", "GPU2\tGPU3\tNIC0\tNIC1\tNIC2\tNIC3\tCPU")
    found = read(text)
    assert "NIC3 is assumed beside GPU3, whose row is missing, as with the others" in found.messages
    assert neighbours(found.spec.groups[0].node, "gpu3") & neighbours(found.spec.groups[0].node, "nic3")


def test_old_soc_means_sys() -> None:
    """Drivers before 2018 wrote SOC."""
    assert node(table(star(2, "SOC"))) == node(table(star(2, "SYS")))


def test_hidden_hardware_is_doubted() -> None:
    """Eight GPUs without NVLink, or all on one NUMA node, may be a VM or numa=off."""
    messages = "\n".join(read(table(star(8, "PHB"))).messages)
    assert "no NVLink is shown" in messages
    assert "all devices are on one NUMA node" in messages
    assert "topo -mp hides NVLink" in "\n".join(read("$ nvidia-smi topo -mp\n" + table(star(4, "PHB"))).messages)


def test_a_second_table_of_p2p_statuses_is_a_message() -> None:
    """PHB does not mean that P2P works: GNS in a second table says it does not."""
    statuses = "\n \tGPU0\tGPU1\n GPU0\tX\tGNS\n GPU1\tGNS\tX\n"
    assert any("cannot copy to peers" in m for m in read(table(star(2, "PHB")) + statuses).messages)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$ nvidia-smi topo -p2p r\n" + table(star(2, "OK")), "line 1: this is nvidia-smi topo -p2p, not -m"),
        (table(star(2, "OK")), "line 2: OK are P2P statuses"),
        (table(star(2, "XGMI")), "line 2: this describes AMD GPUs"),
        ("", "is empty"),
        ("hello\nworld\n", "no line names the columns"),
        ("\tGPU0\tGPU1\n", "line 1: no row GPU0"),
        (table(star(2, "NODE")).replace("GPU1\tNODE\tX", "GPU7\tNODE\tX"), "line 3: row GPU7 has no column"),
        (table(star(2, "NODE")).replace("GPU0\tX", "GPU0\tSYS"), "X stands on the diagonal only"),
        (table(star(2, "NV77")), "line 2: GPU0 to GPU1 is NV77, but no GPU has more than 18 NVLinks"),
        (
            table([["GPU0", "X", "NV4"], ["NIC0", "NV4", "X"]]),
            "line 2: GPU0 to NIC0 is NV4, but NVLinks join GPUs only",
        ),
        ("GPU0\tX\tSYS\n" + table(star(2, "SYS")), "line 1: row GPU0 stands before any header"),
        (table([["GPU0", "X", "SYS"], ["GPU0", "SYS", "X"]]), "line 1: the header names GPU0 twice"),
        (table(star(70, "SYS")), "line 1: 70 GPUs are more than the 64 of one node"),
    ],
)
def test_what_is_not_such_a_table_is_refused_with_its_line(text: str, message: str) -> None:
    """Another command's output, another vendor's, or damage: the line and why."""
    assert message in refusal(text)


@given(st.data())
def test_damaged_text_is_read_or_refused_never_a_crash(data: st.DataObject) -> None:
    """Deleting, doubling and replacing pieces of an output gives a cluster or an InputError."""
    text = data.draw(st.sampled_from([EIGHT, table(TWO_NICS, [["0-23", "0"]] * 4)]))
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(text)))
        end = min(len(text), begin + data.draw(st.integers(0, 40)))
        piece = data.draw(
            st.sampled_from(["", "\t", "\n", "X", "NV", "PIX", "GPU9", "NIC3", "0-7", "\x00", "é", text[:60]])
        )
        text = text[:begin] + piece + text[end:]
    try:
        imported = read(text)
    except InputError:
        return
    Cluster(imported.spec)
