"""Random topology files of NCCL: what stands in one is in the node, or its line is in a message, or it is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.explicit import dump_cluster
from foreshard.topologies.importing import import_topology
from foreshard.topologies.nccl_xml import read_nccl_xml
from foreshard.topologies.xml_tree import parse_xml

H100 = 'class="0x030200" vendor="0x10de" device="0x2330"'
RATES = {"2.5 GT/s": 2.0, "5.0 GT/s PCIe": 4.0, "8 GT/s": 8e0 * 128 / 130, "16.0 GT/s PCIe": 16e0 * 128 / 130}
RATES |= {"32 GT/s": 32e0 * 128 / 130, "64.0 GT/s PCIe": 64e0 * 242 / 256}
BAD_SPEEDS = ["", "fast", "16", "-8 GT/s", "8.. GT/s", "7 GT/s", "١٦ GT/s"]
WIDTHS = ["1", "2", "4", "8", "16", "32"]
BAD_WIDTHS = ["", "0", "3", "-16", "x16", "²"]
BAD_COUNTS = ["many", "-4", "0", "", "1.5", "4 links", "999", "²", "1e1"]
BAD_NET_SPEEDS = ["", "-1", "0", "fast", "1e5", "100 Gb/s", "٣"]


@dataclass
class Written:
    """A file as it grows, and what must be found of it: links with their bandwidth, lines to refuse or to mention."""

    lines: list[str] = field(default_factory=list)
    links: dict[tuple[str, str], float] = field(default_factory=dict)
    mention: set[int] = field(default_factory=set)
    refuse: set[int] = field(default_factory=set)
    gpus: list[str] = field(default_factory=list)
    nics: int = 0
    switches: int = 0
    nvlinks: list[tuple[int, str, str, int]] = field(default_factory=list)

    def add(self, text: str) -> int:
        self.lines.append(text)
        return len(self.lines)

    def bus(self) -> str:
        return f"{len(self.lines):04x}:00:00.0"


def slot(draw, out: Written, line: int, a: str, b: str) -> str:
    """Attributes of a PCIe link on the line to come, and what must be found for it."""
    speed = draw(st.sampled_from([*RATES, *BAD_SPEEDS]))
    width = draw(st.sampled_from([*WIDTHS, *BAD_WIDTHS]))
    if speed in RATES and width in WIDTHS:
        out.links[a, b] = out.links[b, a] = RATES[speed] * 1e9 * int(width) / 8
    else:
        out.mention.add(line)
    return f'link_speed="{speed}" link_width="{width}"'


def odd(draw, out: Written, line: int) -> str:
    """Sometimes an attribute that NCCL does not have."""
    if draw(st.integers(0, 9)):
        return ""
    out.mention.add(line)
    return 'colour="green"'


def add_gpu(draw, out: Written, parent: str) -> None:
    line, bus = len(out.lines) + 1, out.bus()
    name = f"gpu{len(out.gpus)}"
    out.gpus.append(bus)
    out.add(f'<pci busid="{bus}" {H100} {slot(draw, out, line, name, parent)} {odd(draw, out, line)}>')
    out.add('<gpu dev="0" sm="90" rank="0" gdr="1">')
    for _ in range(draw(st.integers(0, 3))):
        count = draw(st.sampled_from(["1", "4", "18", *BAD_COUNTS[: draw(st.sampled_from([0, 0, len(BAD_COUNTS)]))]]))
        target = draw(st.sampled_from(["self", "first", "nobody", "switch"]))
        bus_of = {"self": bus, "first": out.gpus[0], "nobody": "ffff:ff:ff.f", "switch": "aaaa:00:00.0"}[target]
        kind = "0x068000" if target == "switch" else "0x030200"
        at = out.add(f'<nvlink target="{bus_of}" count="{count}" tclass="{kind}"/>')
        if count in BAD_COUNTS:
            out.refuse.add(at)
        elif target in ("self", "nobody") or (target == "first" and name == "gpu0"):
            out.mention.add(at)
        else:
            out.nvlinks.append((at, name, "nvswitch" if target == "switch" else "gpu0", int(count)))
    out.add("</gpu></pci>")


def add_nic(draw, out: Written, parent: str) -> None:
    line = len(out.lines) + 1
    nets = draw(st.integers(1, 2))
    out.add(f'<pci busid="{out.bus()}" class="0x020700" link_speed="16 GT/s" link_width="16" {odd(draw, out, line)}>')
    out.add("<nic>")
    if nets > 1:
        out.mention.add(len(out.lines))
    for _ in range(nets):
        speed = draw(st.sampled_from(["100000", "400000", *BAD_NET_SPEEDS]))
        line, name = len(out.lines) + 1, f"nic{out.nics}"
        out.nics += 1
        out.add(f'<net name="mlx5_0" dev="0" speed="{speed}" port="1" {odd(draw, out, line)}/>')
        out.links[name, parent] = out.links[parent, name] = 16e9 * 16 / 8 * 128 / 130
        if speed in BAD_NET_SPEEDS:
            out.mention.add(line)
        else:
            out.links[name, "^leaf"] = int(speed) * 1e6 / 8
    out.add("</nic></pci>")


def add_other(draw, out: Written, _parent: str) -> None:
    """Devices that are no part of a node, elements that NCCL does not have, text between elements."""
    text = draw(
        st.sampled_from(
            [
                f'<pci busid="{out.bus()}" class="0x010802"/>',
                f'<pci busid="{out.bus()}" class="0x068000" vendor="0x10de"/>',
                f'<pci busid="{out.bus()}" class="0x030000" vendor="0x1a03"/>',
                '<pcilink target="0000:00:00.0"/>',
                "<fan speed='7'/>",
            ]
        )
    )
    out.mention.add(out.add(text))


def add_switch(draw, out: Written, parent: str, depth: int) -> None:
    line, name = len(out.lines) + 1, f"pcie{out.switches}"
    out.switches += 1
    out.add(f'<pci busid="{out.bus()}" class="0x060400" {slot(draw, out, line, name, parent)}>')
    add_children(draw, out, name, depth + 1)
    out.add("</pci>")


def add_children(draw, out: Written, parent: str, depth: int) -> None:
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["gpu", "gpu", "nic", "other", "switch"]))
        if kind == "switch" and depth < 2:
            add_switch(draw, out, parent, depth)
        elif kind != "switch":
            {"gpu": add_gpu, "nic": add_nic, "other": add_other}[kind](draw, out, parent)


@st.composite
def files(draw) -> Written:
    out = Written()
    out.add('<system version="1">')
    for index in range(draw(st.integers(1, 3))):
        out.add(f'<cpu numaid="{index}" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">')
        add_children(draw, out, f"cpu{index}", 0)
        if index == 0:
            add_gpu(draw, out, "cpu0")
        out.add("</cpu>")
    out.add("</system>")
    return out


def lines_in(text: str) -> set[int]:
    """Every line that a text names, as "line 3" or "lines 3, 4"."""
    found = re.findall(r"\blines? ((?:\d+(?:, )?)+)", text)
    return {int(number) for numbers in found for number in re.findall(r"\d+", numbers)}


@settings(max_examples=300)
@given(files())
def test_what_stands_in_a_file_is_in_the_node_or_in_a_message(out: Written) -> None:
    text = "\n".join(out.lines)
    if out.refuse:
        with pytest.raises(InputError) as caught:
            import_topology(text, "random")
        assert out.refuse <= lines_in(str(caught.value))
        return
    imported = import_topology(text, "random")
    node, told = imported.spec.groups[0].node, lines_in("\n".join(imported.messages))
    assert out.mention <= told
    assert len(node.gpus) == len(out.gpus)
    found = {(link.src, link.dst): link.bandwidth for link in node.links}
    for pair, bandwidth in out.links.items():
        assert abs(found[pair] - bandwidth) < 1, pair
    assert sum(name.startswith("nic") and end == "^leaf" for name, end in found) == out.nics
    _check_nvlinks(out, found, told)
    # It can be used, and the file that is written of it reads back to the same.
    assert Cluster(imported.spec).size == len(out.gpus)
    assert parse_cluster(dump_cluster(imported.spec), where="written") == imported.spec


def _check_nvlinks(out: Written, found: dict[tuple[str, str], float], told: set[int]) -> None:
    """Counts of one GPU to one end add up; where the two ends of a pair differ, the larger holds and is told."""
    totals: dict[tuple[str, str], int] = {}
    for _, name, target, count in out.nvlinks:
        totals[name, target] = totals.get((name, target), 0) + count
    for line, name, target, _ in out.nvlinks:
        back = totals.get((target, name), 0)
        largest = max(totals[name, target], back)
        assert found[name, target] == found[target, name] == largest * 25e9
        first = min(at for at, a, b, _ in out.nvlinks if (a, b) == (name, target))
        if target != "nvswitch" and totals[name, target] > back and line == first:
            assert line in told


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_any_text_after_a_system_is_read_or_refused(tail: str) -> None:
    text = f'<system version="1"><cpu numaid="0"><pci busid="1" {H100}>' + tail
    with suppress(InputError):
        read_nccl_xml(text, "random")


def test_a_file_may_say_it_is_in_another_encoding() -> None:
    head = '<?xml version="1.0" encoding="utf-16"?>'
    assert parse_xml(head + "<system/>", "x").tag == "system"
