"""NCCL's topology XML: what it states is taken, what it leaves out is assumed with a message or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.importing import Imported, import_topology

GPU = 'class="0x030200" vendor="0x10de" device="0x20b0"'
X16 = 'link_speed="16 GT/s" link_width="16"'
SWITCHED = f"""<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="ff:01.0" class="0x060400" {X16}>
      <pci busid="0000:10:1c.0" {GPU} {X16}/>
      <pci busid="0000:10:1d.0" {GPU} {X16}/>
      <pci busid="0000:10:1b.0" class="0x020700" {X16}/>
    </pci>
  </cpu>
  <cpu numaid="1" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="0000:20:1c.0" {GPU} link_speed="8 GT/s" link_width="8"/>
  </cpu>
</system>
"""
LINKED = """<system version="1">
  <cpu numaid="0">
    <pci busid="01" class="0x030200"><gpu dev="0" sm="90"><nvlink target="02" count="6"/></gpu></pci>
    <pci busid="02" class="0x030200"><gpu dev="1" sm="90"><nvlink target="01" count="6"/></gpu></pci>
    <nic><net name="eth0" speed="100000"/></nic>
  </cpu>
</system>
"""


def read(text: str, **parts: str) -> Imported:
    return import_topology(text, "machine", **parts)


def links(text: str, **parts: str) -> dict[tuple[str, str], float]:
    return {(k.src, k.dst): k.bandwidth for k in read(text, **parts).spec.groups[0].node.links}


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        read(text)
    return str(caught.value)


def test_the_tree_becomes_devices_with_the_stated_speeds() -> None:
    """16 GT/s x 16 is 31.5 GB/s, 8 GT/s x 8 is 7.9; GPUs and the NIC hang where the tree has them."""
    found = links(SWITCHED)
    assert found["gpu1", "pcie0"] == pytest.approx(16e9 * 16 / 8 * 128 / 130)
    assert found["gpu2", "cpu1"] == pytest.approx(8e9 * 8 / 8 * 128 / 130)
    assert ("nic0", "pcie0") in found


def test_the_gpu_follows_from_its_pci_device_number() -> None:
    """0x20b0 is A100-SXM4-40GB; --gpu overrides it."""
    assert Cluster(read(SWITCHED).spec).gpu(0).name == "A100-SXM4-40GB"
    assert Cluster(read(SWITCHED, gpu="H100-SXM5-80GB").spec).gpu(0).name == "H100-SXM5-80GB"


def test_the_sockets_follow_from_family_and_model() -> None:
    """Family 23, model 49 is EPYC Rome."""
    assert any("EPYC Rome" in message for message in read(SWITCHED).messages)


def test_nvlinks_and_net_speed_are_taken() -> None:
    """Six NVLink 4 of 25 GB/s between the two GPUs, stated by both and counted once; 100000 Mbit/s is 12.5 GB/s."""
    found = links(LINKED)
    assert found["gpu0", "gpu1"] == 6 * 25e9
    assert found["nic0", "^leaf"] == 12.5e9


@pytest.mark.parametrize(
    ("speed", "gb_per_s"), [("2.5 GT/s", 4.0), ("5 GT/s", 8.0), ("32 GT/s", 63.015), ("64 GT/s", 121.0)]
)
def test_each_generation_of_pcie_has_its_line_code(speed: str, gb_per_s: float) -> None:
    """8b/10b up to the second, 128b/130b from the third, flits of 242 in 256 bytes in the sixth; 16 lanes."""
    found = links(SWITCHED.replace('link_speed="8 GT/s" link_width="8"', f'link_speed="{speed}" link_width="16"'))
    assert found["gpu2", "cpu1"] == pytest.approx(gb_per_s * 1e9, rel=1e-4)


def test_of_two_counts_of_nvlinks_the_larger_is_taken() -> None:
    """GPU 0 says two, GPU 1 says six: six, with a message at the larger one."""
    found = read(LINKED.replace('target="02" count="6"', 'target="02" count="2"'))
    nvlinks = [link for link in found.spec.groups[0].node.links if link.kind == "nvlink"]
    assert {link.bandwidth for link in nvlinks} == {6 * 25e9}
    assert "line 4: gpu1 has 6 NVLinks to gpu0, but gpu0 has 2 back; the larger number is taken" in found.messages


def test_nvlinks_to_a_switch_add_up() -> None:
    """Links to several NVSwitch chips are one switch of the sum."""
    text = LINKED.replace('<nvlink target="02" count="6"/>', '<nvlink target="f1" count="2" tclass="0x068000"/>' * 3)
    text = text.replace('<nvlink target="01" count="6"/>', '<nvlink target="f1" count="6" tclass="0x068000"/>')
    found = links(text)
    assert found["gpu0", "nvswitch"] == found["nvswitch", "gpu1"] == 6 * 25e9


def test_nvlinks_to_oneself_or_to_nobody_are_not_invented() -> None:
    """A VM's file names the GPU itself as the other end: unknown, so no link, and said so."""
    text = LINKED.replace('target="02"', 'target="01"', 1).replace(
        'target="01" count="6"/></gpu></pci>\n    <nic', 'target="99" count="6"/></gpu></pci>\n    <nic'
    )
    found = read(text)
    assert ("gpu0", "gpu1") not in links(text)
    joined = "\n".join(found.messages)
    assert "line 3: NVLinks of gpu0 lead to itself" in joined
    assert "line 4: NVLink target '99' is no GPU of the file" in joined


def test_eight_sxm_boards_without_nvlink_elements_have_a_switch() -> None:
    """NCCL's static files leave NVLink to detection; boards of this form are built with NVSwitches only."""
    gpus = "".join(f'<pci busid="{i:02x}" {GPU} {X16}/>' for i in range(8))
    text = f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>'
    assert links(text)["gpu7", "nvswitch"] == 12 * 25e9
    assert any("have NVSwitches: assumed" in message for message in read(text).messages)
    for other in (4, 16):  # sold with direct NVLinks, or not known as a board
        more = "".join(f'<pci busid="{i:02x}" {GPU} {X16}/>' for i in range(other))
        assert "nvswitch" not in {end for pair in links(text.replace(gpus, more)) for end in pair}


@pytest.mark.parametrize("count", ["many", "-4", "0", "", "1.5", "65", "²"])
def test_a_count_of_nvlinks_that_is_none_is_refused_with_its_line(count: str) -> None:
    """Dropping the link in silence would make it a slower machine."""
    assert f"line 3: count '{count}' of an <nvlink> is not a number of links" in refusal(
        LINKED.replace('count="6"', f'count="{count}"', 1)
    )


def test_a_file_without_nvlinks_says_that_none_is_modelled() -> None:
    """Static files (NCCL_TOPO_FILE) leave NVLinks to NCCL's detection: GPUs of an unknown model, or other numbers."""
    gpus = "".join(f'<pci busid="{i:02x}" class="0x030200" {X16}/>' for i in range(8))
    text = f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>'
    assert any("no NVLink is modelled and GPUs meet over PCIe" in message for message in read(text).messages)
    assert links(text, gpu="A100-SXM4-40GB")["gpu7", "nvswitch"] == 12 * 25e9
    assert any("no NVLink is modelled" in message for message in read(text, gpu="V100-SXM2-32GB").messages)


def test_cards_without_nvlink_need_no_message() -> None:
    """An A10 has none to lose."""
    gpus = "".join(f'<pci busid="{i:02x}" class="0x030200" device="0x2236" {X16}/>' for i in range(2))
    assert not any("NVLink" in m for m in read(f"<system><cpu>{gpus}</cpu></system>").messages)


def test_nvlink_c2c_joins_a_gpu_to_its_cpu() -> None:
    """NCCL writes MB/s a link and their number; a PCIe link to the same CPU gives way to it, and says so."""
    text = LINKED.replace("</gpu></pci>", '<c2c bw="44712" count="10"/></gpu></pci>', 1)
    assert links(text)["gpu0", "cpu0"] == pytest.approx(447.12e9)
    assert any(m.startswith("line 3: the PCIe link of gpu0 to the same CPU") for m in read(text).messages)
    assert "line 3: bw 'fast' MB/s and count '10'" in refusal(text.replace("44712", "fast"))


def test_nvlinks_to_a_cpu_bridge_are_told() -> None:
    """PCI class 0x068001 is POWER's NVLink bridge, not an NVSwitch."""
    text = LINKED.replace('target="02" count="6"', 'target="f0" count="3" tclass="0x068001"')
    assert any(m.startswith("line 3: NVLinks that lead to a CPU") for m in read(text).messages)


def test_two_hosts_in_one_file_are_refused_with_the_line_of_the_second() -> None:
    """NCCL fuses the hosts of an NVLink domain into one dump."""
    text = SWITCHED.replace('numaid="0"', 'numaid="0" host_hash="0x1"').replace(
        'numaid="1"', 'numaid="1" host_hash="0x2"'
    )
    assert "line 9: the file describes 2 hosts by their host_hash" in refusal(text)


def test_an_address_that_stands_twice_is_refused() -> None:
    """NVLinks name their ends by it."""
    assert "line 5: PCI device '0000:10:1c.0' stands twice" in refusal(SWITCHED.replace("10:1d.0", "10:1c.0"))


def test_other_vendors_are_refused_or_told() -> None:
    """RCCL writes the same form for AMD's GPUs; a server's display chip is no GPU of the job."""
    assert "line 4: this describes AMD GPUs" in refusal(SWITCHED.replace("0x10de", "0x1002"))
    vga = SWITCHED.replace("  </cpu>\n</system>", '<pci busid="9" class="0x030000" vendor="0x1a03"/></cpu></system>')
    assert any("display device of vendor 0x1a03" in message for message in read(vga).messages)


def test_cpus_that_differ_are_told_with_their_line() -> None:
    """The first stands for all."""
    text = SWITCHED.replace('numaid="1" vendor="AuthenticAMD"', 'numaid="1" vendor="GenuineIntel"')
    assert any(m.startswith("line 9: the CPU is vendor GenuineIntel") for m in read(text).messages)


def test_a_named_nic_replaces_a_stated_speed_and_says_so() -> None:
    """--nic wins over the file."""
    assert links(LINKED, nic="ndr-400g")["nic0", "^leaf"] == 50e9
    assert any("100000 Mbit/s gives way to ndr-400g" in m for m in read(LINKED, nic="ndr-400g").messages)


@pytest.mark.parametrize("part", ["nvlink4-h100", "pcie5-x16", "ddr5-4800-x8", "upi-sapphire-rapids", "tcp-loopback"])
def test_a_part_that_is_no_nic_is_refused_as_one(part: str) -> None:
    """A link of another kind would leave the machine without a port."""
    with pytest.raises(InputError, match=rf"'{part}' is of kind .*, not network: name a network link"):
        read(LINKED, nic=part)


def test_everything_that_is_not_stated_is_a_message() -> None:
    """Speed of the PCIe link, of the NIC, GPU model, CPU, host memory: each assumption is told."""
    text = (
        '<system version="1"><cpu numaid="0"><pci busid="1" class="0x030200" link_speed="" link_width="0"/>'
        '<pci busid="2" class="0x020000"/></cpu></system>'
    )
    joined = "\n".join(read(text).messages)
    for expected in ("GPU model", "speed of its NICs", "no link speed and width", "CPU is not known", "host memory"):
        assert expected in joined


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<system>", "line 1: is not XML"),
        ("<graphs/>", "line 1: <graphs> is a dump of NCCL's graphs"),
        ("<html/>", "line 1: <html> is not NCCL's topology"),
        ('<system version="1"/>', "line 1: has no <cpu>"),
        ("<system><cpu/></system>", "line 1: has no GPU"),
        (
            '<system>\n<cpu><pci busid="a"/>\n<pci busid="b"/></cpu></system>',
            "line 2: PCI device 'a' has neither a class",
        ),
        ('<!DOCTYPE a [<!ENTITY x "y">]><system/>', "line 1: document types and entities are refused"),
        ("<a>" * 60 + "</a>" * 60, "are not a topology of one node"),
    ],
)
def test_what_is_no_topology_is_refused_with_its_line(text: str, message: str) -> None:
    """Broken XML, other files and entity bombs: the line and why."""
    assert message in refusal(text)


@given(st.data())
def test_damaged_xml_is_read_or_refused_never_a_crash(data: st.DataObject) -> None:
    """Deleting and replacing pieces gives a cluster or an InputError."""
    text = data.draw(st.sampled_from([SWITCHED, LINKED]))
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(text)))
        end = min(len(text), begin + data.draw(st.integers(0, 30)))
        piece = data.draw(
            st.sampled_from(["", '"', "<", "/>", "99", "GT/s", "0x030200", 'count="0"', "&amp;", "\x00", "é"])
        )
        text = text[:begin] + piece + text[end:]
    try:
        imported = read(text)
    except InputError:
        return
    Cluster(imported.spec)
