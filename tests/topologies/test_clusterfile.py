"""Cluster files: what they resolve to, and every mistake of a file in one message with its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import load_cluster_file, parse_cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.explicit import dump_cluster
from foreshard.topologies.machine import ClusterSpec
from foreshard.topologies.presets import load_preset, preset_names, preset_text

WHOLE = """
schema = 1
name = "mine"
nodes = 2
gpu = "H100-SXM5-80GB"

[node]
gpus = 2
cpus = 1
nics = 2
host_memory = "1 TiB"
nvlink_topology = "switch"
nvlink = { bandwidth = "450 GB/s", usable = "370 GB/s", latency = "0.3 us", source = "mine" }
pcie = "pcie5-x16"
memory = "ddr5-4800-x8"
nic = "ndr-400g"
source = "my own server"

[fabric]
kind = "rail"

[constants]
all_to_all_peer_s = { value = 5, unit = "us", source = "measured here" }
ring_network_share = { value = 0.9, source = "measured here" }
"""


def read(text: str) -> ClusterSpec:
    return parse_cluster(text, where="file")


def mistakes(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(text)
    return list(caught.value.problems)


def changed(old: str, new: str) -> str:
    assert old in WHOLE
    return WHOLE.replace(old, new)


def test_a_short_description_resolves_to_explicit_links() -> None:
    """Counts and parts become devices with links in both directions."""
    node = read(WHOLE).groups[0].node
    assert {(k.src, k.dst) for k in node.links} >= {("gpu0", "nvswitch"), ("nvswitch", "gpu0"), ("nic1", "^leaf")}
    assert next(k for k in node.links if k.kind == "nvlink").usable == 370e9


def test_constants_come_in_base_units_with_their_source() -> None:
    """5 us is 5e-6 s; a plain number has the unit 1."""
    constants = read(WHOLE).constants
    assert (constants["all_to_all_peer_s"].value, constants["all_to_all_peer_s"].unit) == (pytest.approx(5e-6), "s")
    assert (constants["ring_network_share"].value, constants["ring_network_share"].unit) == (0.9, "1")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('nic = "ndr-400g"', 'nic = "nvlink4-h100"', "node.nic.kind: nvlink cannot serve here: name a network link"),
        ('memory = "ddr5-4800-x8"', 'memory = "ndr-400g"', "node.memory.kind: network cannot serve here"),
        ('pcie = "pcie5-x16"', 'pcie = "ddr5-4800-x8"', "node.pcie.kind: dram cannot serve here"),
        ('source = "mine" }', 'source = "mine", kind = "pcie" }', "node.nvlink.kind: pcie cannot serve here"),
    ],
)
def test_a_part_of_another_kind_is_refused(old: str, new: str, message: str) -> None:
    """A NIC made of NVLink would be no port at all."""
    assert any(found.startswith(message) for found in mistakes(changed(old, new)))


def test_nvlink_c2c_may_take_the_place_of_pcie() -> None:
    """A GB200's GPU hangs on its CPU by it."""
    assert "c2c" in {
        link.kind for link in read(changed('pcie = "pcie5-x16"', 'pcie = "nvlink-c2c"')).groups[0].node.links
    }


def test_a_preset_with_changes_keeps_the_rest() -> None:
    """Tables are laid over the preset's key by key; assumptions are added."""
    spec = read(
        'schema = 1\nname = "t"\npreset = "p5.48xlarge"\nnodes = 3\nassumptions = ["mine"]\n'
        '[node]\nnic = "ndr-400g"\n[fabric]\nlatency = "1 us"\n'
    )
    assert spec.groups[0].nodes == 3
    assert next(k for k in spec.groups[0].node.links if k.kind == "network").usable == 49e9
    assert (spec.fabric.kind, spec.fabric.latency_s) == ("single_switch", 1e-6)
    assert "mine" in spec.assumptions
    assert len(spec.assumptions) > 1


def test_another_kind_of_fabric_replaces_the_presets_whole() -> None:
    """The preset's source does not vouch for a fabric that the file describes."""
    spec = read('schema = 1\nname = "t"\npreset = "dgx-h100"\n[fabric]\nkind = "single_switch"\n')
    assert (spec.fabric.nodes_per_leaf, spec.fabric.source) == (None, "cluster file")


def test_a_missing_fabric_is_an_assumption() -> None:
    """Several nodes without a fabric are joined by one switch, and the report says so."""
    spec = read(changed('[fabric]\nkind = "rail"\n', ""))
    assert any("no fabric is given" in sentence for sentence in spec.assumptions)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_in_explicit_form_reads_back_equal(name: str) -> None:
    """Device by device and link by link, to the last digit."""
    spec = parse_cluster(preset_text(name), where=name, nodes=3)
    assert parse_cluster(dump_cluster(spec), where="written") == spec


def test_a_damaged_cluster_keeps_its_damage_in_explicit_form() -> None:
    """degrade is part of what is written."""
    spec = load_preset("p5.48xlarge", 2, {"node0/nic0->leaf0": 0.5}).spec
    assert parse_cluster(dump_cluster(spec), where="written").degrade == {"node0/nic0->leaf0": 0.5}


def test_all_mistakes_of_a_file_are_reported_at_once() -> None:
    """One reading, every mistake with its path."""
    text = (
        changed('host_memory = "1 TiB"', "host_memory = 1024")
        .replace('pcie = "pcie5-x16"', 'pcie = "pcie6-x16"')
        .replace("gpus = 2", "gpus = 0")
        .replace("[fabric]", "[fabrik]")
        .replace('usable = "370 GB/s"', 'usable = "370 Gb/s"')
    )
    found = "\n".join(mistakes(text))
    for expected in (
        "node.host_memory: 1024 has no unit",
        "node.pcie: there is no link 'pcie6-x16' in the catalogue; did you mean 'pcie",
        "node.gpus: 0 is out of range",
        "fabrik: unknown key; did you mean 'fabric'?",
        "node.nvlink.usable: '370 Gb/s' is ambiguous",
    ):
        assert expected in found


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 2", "schema: 2 is out of range"),
        ("schema = 1\n", "", "schema: is missing"),
        ("nodes = 2", "nodes = 0", "nodes: 0 is out of range"),
        ("nodes = 2", "nodes = true", "nodes: True is not a whole number"),
        ("nodes = 2", "nodes = 2.5", "nodes: 2.5 is not a whole number"),
        ('gpu = "H100-SXM5-80GB"', 'gpu = "H100"', "gpu: there is no gpu 'H100' in the catalogue; did you mean"),
        ('gpu = "H100-SXM5-80GB"\n', "", "gpu: is missing"),
        ("nics = 2", "nics = -1", "node.nics: -1 is out of range"),
        ('source = "my own server"\n', "", "node.source: is missing"),
        ('source = "my own server"', 'source = ""', "node.source: is empty"),
        (', source = "mine" }', " }", "node.nvlink.source: is missing"),
        ('usable = "370 GB/s"', 'usable = "470 GB/s"', "node.nvlink.usable: '470 GB/s' is above the bandwidth"),
        ('latency = "0.3 us"', 'latency = "0.3"', "node.nvlink.latency: '0.3' has no unit"),
        ('latency = "0.3 us"', 'latency = "-1 us"', "must be a finite value, not negative"),
        ('nvlink_topology = "switch"', 'nvlink_topology = "ring"', "'ring' is not one of none, switch, domain, mesh"),
        ('nvlink_topology = "switch"\n', "", "node.nvlink_topology: is missing: give switch, domain or mesh"),
        ('kind = "rail"', 'kind = "fat_tree"', "fabric.kind: 'fat_tree' is not one of"),
        ('kind = "rail"', 'kind = "leaf_spine"', "fabric.nodes_per_leaf: is missing"),
        ('kind = "rail"', 'kind = "single_switch"\noversubscription = 2.0', "a single switch has no leaves"),
        ('kind = "rail"', 'kind = "rail"\noversubscription = nan', "fabric.oversubscription: nan is out of range"),
        ('unit = "us"', 'unit = "min"', "constants.all_to_all_peer_s.unit: 'min' is not the unit of this constant"),
        ('unit = "us"', 'unit = "GB/s"', "constants.all_to_all_peer_s.unit: 'GB/s' is not the unit of this constant"),
        ('unit = "us", ', "", "constants.all_to_all_peer_s.unit: no unit is given, which is not the unit"),
        ('unit = "us"', 'unit = "s"', "constants.all_to_all_peer_s.value: 5 s is out of range"),
        ("value = 5", "value = -5", "constants.all_to_all_peer_s.value: -5e-06 s is out of range"),
        ("value = 0.9", 'value = 0.9, unit = "s"', "constants.ring_network_share.unit: 's' is not the unit"),
        ("value = 0.9", "value = 1.1", "constants.ring_network_share.value: 1.1 is out of range"),
        ("value = 0.9", "value = 0", "constants.ring_network_share.value: 0 is out of range: expected a value above 0"),
        ("value = 0.9", "value = nan", "constants.ring_network_share.value: nan is out of range"),
        (
            "ring_network_share",
            "ring_netwrk_share",
            "constants.ring_netwrk_share: there is no constant of that name; did",
        ),
        (', source = "measured here" }\nring', " }\nring", "constants.all_to_all_peer_s.source: is missing"),
        ("[constants]", '[degrade]\n"*" = 2.0\n[constants]', "degrade.*: 2.0 is out of range"),
        ("[constants]", "constants = 3\n[other]", "unknown key"),
        ("nics = 2", "nics = 2\ngpu_nics = [[0]]", "node.gpu_nics: has 1 entries for 2 GPUs"),
        ("nics = 2", "nics = 2\ngpu_nics = [[0], [7]]", "node.gpu_nics[1]: [7] is not a list of NIC numbers"),
    ],
)
def test_a_mistake_is_told_with_its_path(old: str, new: str, message: str) -> None:
    """Each says where it is, what was given and what is expected."""
    assert message in "\n".join(mistakes(changed(old, new)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "schema: is missing"),
        ("schema = 1", "node: is missing"),
        ("schema = [", "is not TOML"),
        ('schema = 1\nname = "t"\npreset = "p6"', "there is no machine 'p6'; did you mean"),
        ('schema = 1\nname = "t"\ngroups = []', "groups: is empty"),
        ('schema = 1\nname = "t"\ngroups = 3', "groups: 3 is not a list of tables"),
        ('schema = 1\nname = "t"\ngroups = [3]', "groups[0]: 3 is not a table"),
        ('schema = 1\nname = "t"\n[[groups]]\npreset = "p6"\nnodes = 1', "groups[0].preset: there is no machine 'p6'"),
        ('schema = 1\nname = "t"\n[[groups]]\npreset = "pcie-4x"', "groups[0].nodes: is missing"),
        ('schema = 1\nname = "t"\n[[kinds]]\nname = "a"\n[[groups]]\nkind = "b"\nnodes = 1', "no kind of node 'b'"),
    ],
)
def test_a_file_that_is_no_cluster_is_refused(text: str, message: str) -> None:
    """Empty, broken and half files get a clear message."""
    assert message in "\n".join(mistakes(text))


def test_an_explicit_link_that_contradicts_itself_is_named() -> None:
    """Mistakes in the explicit form name the link by number and ends."""
    text = dump_cluster(read(WHOLE))
    broken = text.replace('src = "gpu0"\ndst = "nvswitch"', 'src = "gpu9"\ndst = "knot"', 1)
    assert broken != text
    with pytest.raises(InputError) as caught:
        Cluster(read(broken))
    found = "\n".join(caught.value.problems)
    assert "links name gpu9, but the node has 2 GPUs" in found
    assert "gpu9->knot: 'knot' is not a device" in found


def test_a_number_of_nodes_from_outside_needs_a_single_kind_of_node() -> None:
    """One group takes it; with two kinds of node nobody could say which is meant."""
    head = 'schema = 1\nname = "t"\n[fabric]\nkind = "single_switch"\n'
    group = '[[groups]]\npreset = "pcie-4x"\nnodes = 1\n'
    assert parse_cluster(head + group, where="t", nodes=4).groups[0].nodes == 4
    with pytest.raises(InputError, match=r"several, so a number of nodes \(4\) cannot be set"):
        parse_cluster(head + 2 * group, where="t", nodes=4)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, a folder and bytes that are no text are mistakes of the user, not crashes."""
    with pytest.raises(InputError, match="cannot be read"):
        load_cluster_file(tmp_path / "absent.toml")
    with pytest.raises(InputError, match="cannot be read"):
        load_cluster_file(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8"):
        load_cluster_file(tmp_path / "binary.toml")
