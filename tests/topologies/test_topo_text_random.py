"""Random machines printed as `nvidia-smi topo -m` prints them, and random tables: what is told is kept, or is told."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.explicit import dump_cluster
from foreshard.topologies.importing import Imported, import_topology

NIC_NAMES = ["NIC{}", "mlx5_{}", "mlx5_bond_{}", "roce_{}", "efa{}"]


@dataclass(frozen=True)
class Machine:
    """Where each device is: (socket, switch or a place of its own); how GPUs are linked; how NICs are called."""

    gpus: tuple[tuple[int, int], ...]
    nics: tuple[tuple[int, int], ...]
    nvlinks: tuple[tuple[int, int, int], ...]
    nic_name: str
    with_cpus: bool

    @property
    def devices(self) -> list[str]:
        return [f"GPU{i}" for i in range(len(self.gpus))] + [self.nic_name.format(i) for i in range(len(self.nics))]

    @property
    def places(self) -> dict[str, tuple[int, int]]:
        return dict(zip(self.devices, (*self.gpus, *self.nics), strict=True))

    def distance(self, a: str, b: str) -> str:
        """The PCIe distance of two devices."""
        (socket_a, switch_a), (socket_b, switch_b) = self.places[a], self.places[b]
        if socket_a != socket_b:
            return "SYS"
        return "PIX" if switch_a == switch_b else "NODE"

    def code(self, a: str, b: str) -> str:
        lanes = {frozenset((f"GPU{i}", f"GPU{j}")): count for i, j, count in self.nvlinks}
        count = lanes.get(frozenset((a, b)))
        return f"NV{count}" if count else self.distance(a, b)

    def text(self, gap: str = "\t") -> str:
        tail = ["CPU Affinity", "NUMA Affinity"] if self.with_cpus else []
        lines = [gap.join(["", *self.devices, *tail])]
        for a in self.devices:
            row = [a, *("X" if a == b else self.code(a, b) for b in self.devices)]
            socket = self.places[a][0]
            if self.with_cpus and a.startswith("GPU"):
                row += [f"{socket * 8}-{socket * 8 + 7}", str(socket)]
            lines.append(gap.join(row))
        return "\n".join(lines) + "\n"


@st.composite
def machines(draw) -> Machine:
    sockets, switches = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    place = st.tuples(st.integers(0, sockets - 1), st.integers(0, switches - 1))
    gpus = draw(st.lists(place, min_size=1, max_size=8))
    nics = draw(st.lists(place, max_size=5))
    pairs = list(combinations(range(len(gpus)), 2))
    linked = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=4)) if pairs else []
    lanes = draw(st.lists(st.integers(1, 4), min_size=len(linked), max_size=len(linked)))
    nvlinks = tuple((i, j, count) for (i, j), count in zip(linked, lanes, strict=True))
    # A column alone is told from noise by what follows it only.
    with_cpus = draw(st.booleans()) or len(gpus) + len(nics) == 1
    return Machine(tuple(gpus), tuple(nics), nvlinks, draw(st.sampled_from(NIC_NAMES)), with_cpus)


class Node:
    """The node that was read, asked as the table is: how are two devices of it joined?"""

    def __init__(self, imported: Imported) -> None:
        node = imported.spec.groups[0].node
        self.links = {(link.src, link.dst): link for link in node.links}
        self.messages = "\n".join(imported.messages)
        self.gpus = len(node.gpus)

    def name(self, device: str) -> str | None:
        """The node's name of a device; None if it was left out."""
        if device.startswith("GPU"):
            return f"gpu{device[3:]}"
        found = re.search(rf"(nic\d+) is {re.escape(device)}\b", self.messages)
        return found[1] if found else None

    def _up(self, name: str) -> str:
        return next(dst for src, dst in self.links if src == name and dst.startswith(("pcie", "cpu")))

    def distance(self, a: str, b: str) -> str:
        up_a, up_b = self._up(a), self._up(b)
        if up_a == up_b and up_a.startswith("pcie"):
            return "PIX"
        sockets = {self._up(up) if up.startswith("pcie") else up for up in (up_a, up_b)}
        return "SYS" if len(sockets) > 1 else "NODE"

    def lanes(self, a: str, b: str) -> int:
        link = self.links.get((a, b))
        return round(link.bandwidth / 25e9) if link and link.kind == "nvlink" else 0


@settings(max_examples=300)
@given(machines(), st.sampled_from(["\t", "   ", " \t "]))
def test_a_machine_is_read_back_as_it_was_printed(machine: Machine, gap: str) -> None:
    """Every device is there or named as left out; every pair lies as its code says, or is named in a message."""
    imported = import_topology(machine.text(gap), "random", gpu="A100-SXM4-40GB")
    node = Node(imported)
    assert node.gpus == len(machine.gpus)
    names = {device: node.name(device) for device in machine.devices}
    for device, name in names.items():
        assert name is not None or re.search(rf"\b{re.escape(device)}\b.*left out", node.messages)
    for a, b in combinations(machine.devices, 2):
        mine, yours = names[a], names[b]
        if mine is None or yours is None:
            continue
        code, told = machine.code(a, b), f"{a}-{b}" in node.messages
        if code.startswith("NV"):
            assert node.lanes(mine, yours) == int(code[2:])
        else:
            assert node.lanes(mine, yours) == 0
            assert node.distance(mine, yours) == code or told, (a, b, code)
        if code.startswith("NV") and machine.with_cpus:
            assert (node.distance(mine, yours) == "SYS") == (machine.distance(a, b) == "SYS") or told
    assert Cluster(imported.spec).size == node.gpus
    assert parse_cluster(dump_cluster(imported.spec), where="written") == imported.spec


CODES = ["PIX", "PXB", "PHB", "NODE", "SYS", "NV1", "NV4", "NV18"]
BAD_CODES = ["NV0", "NV77", "X", "??"]


@st.composite
def tables(draw) -> tuple[str, dict[frozenset[str], str], list[str]]:
    """A symmetric table of any codes: text, its codes by pair, its devices."""
    gpus, nics = draw(st.integers(1, 5)), draw(st.integers(0, 3))
    devices = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    usual = [*CODES[: draw(st.sampled_from([5, 8]))], *draw(st.lists(st.sampled_from(BAD_CODES), max_size=1))]
    codes = {frozenset(pair): draw(st.sampled_from(usual)) for pair in combinations(devices, 2)}
    cpus = {d: draw(st.sampled_from(["0-7", "8-15", "N/A", "7-0,,a", "0-7,4-9", "1-", "٣"])) for d in devices[:gpus]}
    lines = ["\t".join(["", *devices, "CPU Affinity", "NUMA Affinity"])]
    for a in devices:
        row = [a, *("X" if a == b else codes[frozenset((a, b))] for b in devices)]
        lines.append("\t".join([*row, *([cpus[a], "0"] if a in cpus else [])]))
    return "\n".join(lines) + "\n", codes, [cpus.get(device, "") for device in devices]


def bad_code(pair: frozenset[str], code: str) -> bool:
    """Whether a code cannot stand between two devices."""
    nvlink = code.startswith("NV")
    return code in BAD_CODES or (nvlink and not all(device.startswith("GPU") for device in pair))


@settings(max_examples=300)
@given(tables())
def test_any_table_keeps_what_it_says_or_says_what_it_does_not_keep(table) -> None:
    text, codes, cpus = table
    if any(bad_code(pair, code) for pair, code in codes.items()):
        with pytest.raises(InputError, match=r"line \d+: "):
            import_topology(text, "random")
        return
    imported = import_topology(text, "random", gpu="A100-SXM4-40GB")
    node = Node(imported)
    for line, cpu in enumerate(cpus, start=2):
        if cpu in ("7-0,,a", "0-7,4-9", "1-", "٣"):
            assert f"line {line}: CPU affinity {cpu!r}" in node.messages
    _check_pairs(node, codes)


def _check_pairs(node: Node, codes: dict[frozenset[str], str]) -> None:
    for pair, code in codes.items():
        a, b = sorted(pair)
        names = [node.name(device) for device in (a, b)]
        if None in names:
            assert all(name or f"{d}" in node.messages for name, d in zip(names, (a, b), strict=True))
        elif code.startswith("NV"):
            through = node.links.get((names[0], "nvswitch"))
            assert node.lanes(*names) == int(code[2:]) or (through and "taken as one switch" in node.messages)
        else:
            same = {"PXB": "PIX", "PHB": "NODE"}.get(code, code)
            assert node.distance(*names) == same or f"{a}-{b}" in node.messages, (a, b, code)


@given(st.data())
def test_a_table_may_be_cut_or_spoilt_anywhere(data: st.DataObject) -> None:
    """Any piece may be lost, doubled or replaced: a cluster that writes and reads back equal, or a sentence."""
    text = data.draw(machines()).text()
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(text)))
        end = min(len(text), begin + data.draw(st.integers(0, 40)))
        piece = data.draw(st.sampled_from(["", "\t", "\n", "X", "NV0", "NV99", "PIX", "GPU9", "0-7", "²", text[:50]]))
        text = text[:begin] + piece + text[end:]
    with suppress(InputError):
        imported = import_topology(text, "random")
        Cluster(imported.spec)
        assert parse_cluster(dump_cluster(imported.spec), where="written") == imported.spec
