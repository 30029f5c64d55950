"""Reading NCCL's topology XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE): PCIe tree, link speeds, NVLinks, NICs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from foreshard.topologies.errors import InputError
from foreshard.topologies.machine import LEAF, Gpu, Link, NodeSpec
from foreshard.topologies.node_parts import PartList, catalogue_cable, catalogue_gpu, part_list
from foreshard.topologies.nodefile import Cable
from foreshard.topologies.xml_tree import XmlElement, parse_xml

__all__ = ["read_nccl_xml"]

_SOURCE = "NCCL topology XML"
_GPU_CLASSES = ("0x0302", "0x0300")
_NIC_CLASSES = ("0x0200", "0x0207")
_BRIDGE_CLASS = "0x0604"
_NVSWITCH_CLASS = "0x0680"
# PCI device numbers of NVIDIA's data centre GPUs (pci-ids.ucw.cz) and compute capabilities, as catalogue names.
_BY_DEVICE = {
    "0x1db1": "V100-SXM2-32GB",
    "0x1db5": "V100-SXM2-32GB",
    "0x20b0": "A100-SXM4-40GB",
    "0x20b2": "A100-SXM4-80GB",
    "0x20b5": "A100-SXM4-80GB",
    "0x2236": "A10-24GB",
    "0x2237": "A10-24GB",
    "0x2330": "H100-SXM5-80GB",
    "0x2335": "H200-SXM5-141GB",
    "0x2901": "B200-SXM-180GB",
    "0x2941": "GB200-186GB",
}
_PCIE_CARDS = {"0x20b5", "0x2236", "0x2237"}
_BY_CAPABILITY = {
    "70": "V100-SXM2-32GB",
    "80": "A100-SXM4-80GB",
    "86": "A10-24GB",
    "90": "H100-SXM5-80GB",
    "100": "B200-SXM-180GB",
}
# Transfers a second of one lane, share left by its line code, and the catalogue's link of that generation.
_GENERATIONS = {"2.5": (0.8, ""), "5": (0.8, ""), "8": (128 / 130, "pcie3-x16"), "16": (128 / 130, "pcie4-x16")}
_GENERATIONS |= {"32": (128 / 130, "pcie5-x16"), "64": (242 / 256, "")}


@dataclass(slots=True)
class _Tree:
    """What is found on the way down the tree."""

    where: str
    nic_part: str | None
    gpu_name: str | None
    gpus: list[tuple[str, XmlElement]] = field(default_factory=list)
    models: list[Gpu] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    bus: dict[str, str] = field(default_factory=dict)
    switches: int = 0
    nics: int = 0
    nameless: list[XmlElement] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def refuse(self, element: XmlElement, why: str) -> None:
        self.problems.append(f"line {element.line}: {why}")


def read_nccl_xml(
    text: str, where: str, gpu: str | None = None, nic: str | None = None
) -> tuple[NodeSpec, tuple[str, ...]]:
    """Return the node that NCCL's topology XML describes, and what had to be assumed.

    `gpu` and `nic` name parts of the catalogue for what the file does not tell. Raises InputError naming the line.
    """
    root = parse_xml(text, where)
    if root.tag != "system":
        kind = "a dump of NCCL's graphs, not of its topology" if root.tag == "graphs" else "not NCCL's topology"
        raise InputError(
            f"line {root.line}: <{root.tag}> is {kind}: give a file that begins with <system>", where=where
        )
    tree = _Tree(where=where, nic_part=nic, gpu_name=gpu)
    cpus = root.all("cpu")
    for index, cpu in enumerate(cpus):
        _walk(tree, cpu, f"cpu{index}")
    if not cpus:
        tree.refuse(root, "has no <cpu>")
    elif tree.nameless:
        _refuse_nameless(tree)
    elif not tree.gpus:
        tree.refuse(root, "has no GPU: no PCI device of class 0x0302.. and no <gpu>")
    if tree.problems:
        raise InputError(tree.problems, where=where)
    parts = _host_parts(tree, cpus)
    tree.links.extend(_nvlinks(tree, part_list(tree.models[0])))
    tree.links.extend(parts.socket_links(len(cpus)))
    if not tree.nics:
        tree.messages.append("there is no NIC, so the machine cannot be joined with others")
    tree.messages.append(f"{parts.host_memory} of host memory is assumed, the file does not tell it")
    node = NodeSpec(
        name="node",
        gpus=tuple(tree.models),
        links=tuple(tree.links),
        host_memory_bytes=parts.host_memory_bytes,
        source=f"{_SOURCE}; numbers it does not state are assumed from the catalogue of parts",
    )
    return node, tuple(dict.fromkeys(tree.messages))


def _refuse_nameless(tree: _Tree) -> None:
    first = tree.nameless[0]
    lines = ", ".join(str(element.line) for element in tree.nameless)
    tree.refuse(
        first,
        f"PCI device {first.get('busid')!r} has neither a class nor a <gpu> or <nic> below it (lines {lines}); NCCL "
        "fills such a file in on the machine: run it there with NCCL_TOPO_DUMP_FILE and give that file",
    )


def _walk(tree: _Tree, element: XmlElement, parent: str) -> None:
    for child in element.children:
        if child.tag == "nic":
            _add_nic(tree, child, child, parent)
        elif child.tag == "pci":
            _add_pci(tree, child, parent)
        elif child.tag not in ("gpu", "net", "nvlink", "c2c", "pcilink"):
            tree.messages.append(f"line {child.line}: <{child.tag}> is not read")


def _add_pci(tree: _Tree, element: XmlElement, parent: str) -> None:
    kind = element.get("class").lower()
    if element.all("gpu") or kind.startswith(_GPU_CLASSES):
        _add_gpu(tree, element, parent)
    elif element.all("nic") or kind.startswith(_NIC_CLASSES):
        _add_nic(tree, element, (element.all("nic") or [element])[0], parent)
    elif element.all("pci") or kind.startswith(_BRIDGE_CLASS):
        name = f"pcie{tree.switches}"
        tree.switches += 1
        tree.links.extend(_pcie(tree, element, None).both(name, parent))
        _walk(tree, element, name)
    elif kind.startswith(_NVSWITCH_CLASS):
        tree.bus[element.get("busid").lower()] = "nvswitch"
    else:
        tree.nameless.append(element)


def _add_gpu(tree: _Tree, element: XmlElement, parent: str) -> None:
    name = f"gpu{len(tree.gpus)}"
    model = _model(tree, element)
    tree.gpus.append((name, element))
    tree.models.append(model)
    tree.bus[element.get("busid").lower()] = name
    tree.links.extend(_pcie(tree, element, model).both(name, parent))


def _model(tree: _Tree, element: XmlElement) -> Gpu:
    """The GPU model by option, PCI device number or compute capability; assumed where none tells it."""
    capability = next((gpu.get("sm") for gpu in element.all("gpu")), "")
    known = _BY_DEVICE.get(element.get("device").lower()) or _BY_CAPABILITY.get(capability)
    name = tree.gpu_name or known
    if name is None:
        name = "A10-24GB"
        tree.messages.append(f"the file does not tell the GPU model; {name} is assumed: name yours with --gpu")
    elif not tree.gpu_name and element.get("device").lower() not in _BY_DEVICE:
        tree.messages.append(f"compute capability {capability}: {name} is assumed; name yours with --gpu")
    elif not tree.gpu_name and element.get("device").lower() in _PCIE_CARDS:
        tree.messages.append(
            f"PCI device {element.get('device')} is a PCIe card; {name} is the nearest in the catalogue"
        )
    return catalogue_gpu(name)


def _pcie(tree: _Tree, element: XmlElement, model: Gpu | None) -> Cable:
    """The PCIe link that an element states, or the usual one of the GPU model if it states none."""
    speed = re.match(r"\s*([\d.]+)\s*GT/s", element.get("link_speed"))
    width = int(element.get("link_width")) if element.get("link_width").isdigit() else 0
    rate = f"{float(speed[1]):g}" if speed and speed[1].count(".") < 2 and speed[1] != "." else ""
    if rate in _GENERATIONS and width in (1, 2, 4, 8, 16, 32):
        return _stated_pcie(rate, width)
    part = part_list(model or catalogue_gpu("A10-24GB")).pcie
    tree.messages.append(
        f"PCI device {element.get('busid')!r} states no link speed and width (line {element.line}); {part} is assumed"
        if not element.get("link_speed").strip()
        else f"line {element.line}: link_speed {element.get('link_speed')!r} x {element.get('link_width')!r} is not a "
        f"PCIe link; {part} is assumed"
    )
    return catalogue_cable(part, "pcie")


def _stated_pcie(rate: str, width: int) -> Cable:
    code, part = _GENERATIONS[rate]
    usual = catalogue_cable(part or "pcie3-x16", "pcie")
    bandwidth = float(rate) * 1e9 * width / 8 * code
    share = usual.usable / usual.bandwidth
    source = f"bandwidth: {rate} GT/s x {width}, {_SOURCE}; usable: the share {share:.2f} of {part or 'pcie3-x16'}"
    return replace(usual, bandwidth=bandwidth, usable=bandwidth * share, source=source)


def _add_nic(tree: _Tree, pci: XmlElement, nic: XmlElement, parent: str) -> None:
    """One NIC for each <net>; a NIC without any has one port of assumed speed."""
    for net in nic.all("net") or [nic]:
        name = f"nic{tree.nics}"
        tree.nics += 1
        slot = _pcie(tree, pci, None) if pci.tag == "pci" else _no_slot(tree, net)
        tree.links.extend(slot.both(name, parent))
        tree.links.extend(_port(tree, net).both(name, LEAF))


def _no_slot(tree: _Tree, net: XmlElement) -> Cable:
    tree.messages.append(f"NIC {net.get('name')!r} hangs on the CPU without a PCI device; pcie4-x16 is assumed")
    return catalogue_cable("pcie4-x16", "pcie")


def _port(tree: _Tree, net: XmlElement) -> Cable:
    """The port of a NIC: its speed is in Mbit/s."""
    usual = catalogue_cable(tree.nic_part or "edr-100g", "network")
    speed = net.get("speed")
    if tree.nic_part is None and re.fullmatch(r"\d{1,8}", speed) and int(speed) > 0:
        bandwidth, share = int(speed) * 1e6 / 8, usual.usable / usual.bandwidth
        source = f"bandwidth: {speed} Mbit/s, {_SOURCE}; usable: the share {share:.2f} of edr-100g"
        return replace(usual, bandwidth=bandwidth, usable=bandwidth * share, source=source)
    if tree.nic_part is None:
        tree.messages.append("the file does not tell the speed of its NICs; edr-100g is assumed: name yours with --nic")
    return usual


def _nvlinks(tree: _Tree, parts: PartList) -> Iterator[Link]:
    counts: dict[tuple[str, str], int] = {}
    for name, element in tree.gpus:
        for nvlink in (below for below in element.below() if below.tag == "nvlink"):
            target = _target(tree, nvlink, name)
            count = nvlink.get("count")
            if target and re.fullmatch(r"[1-9]\d?", count):
                counts[name, target] = counts.get((name, target), 0) + int(count)
    if not counts and _has_switch(tree):
        lanes = 18 if tree.models[0].architecture in ("hopper", "blackwell") else 12
        tree.messages.append(
            f"the file has no <nvlink>; {len(tree.gpus)} {tree.models[0].name} have NVSwitches: assumed"
        )
        counts = {(name, "nvswitch"): lanes for name, _ in tree.gpus}
    for a, b in sorted({(min(pair), max(pair)) for pair in counts}):
        lanes = max(counts.get((a, b), 0), counts.get((b, a), 0))
        yield from parts.nvlink_cable(to_switch="nvswitch" in (a, b)).both(a, b, lanes)


def _target(tree: _Tree, nvlink: XmlElement, name: str) -> str | None:
    """The device an <nvlink> leads to: a GPU by bus number or the NVSwitch by class."""
    if nvlink.get("tclass").lower().startswith(_NVSWITCH_CLASS):
        return "nvswitch"
    target = tree.bus.get(nvlink.get("target").lower())
    if target == name:
        tree.messages.append(
            f"line {nvlink.line}: NVLinks of {name} lead to itself, so their other end is unknown; not read"
        )
        return None
    if target is None:
        tree.messages.append(
            f"line {nvlink.line}: NVLink target {nvlink.get('target')!r} is no GPU of the file; not read"
        )
    return target


def _has_switch(tree: _Tree) -> bool:
    """Eight SXM boards of Ampere or later are only built with NVSwitches."""
    sxm = all("SXM" in model.name and model.architecture != "volta" for model in tree.models)
    cards = any(element.get("device").lower() in _PCIE_CARDS for _, element in tree.gpus)
    return len(tree.gpus) == 8 and sxm and not cards


def _host_parts(tree: _Tree, cpus: list[XmlElement]) -> PartList:
    """Sockets by vendor, family and model where the file tells them, else the usual ones around the GPU."""
    parts = part_list(tree.models[0])
    first = cpus[0]
    family, model = (int(v) if v.isdigit() else -1 for v in (first.get("familyid"), first.get("modelid")))
    known = ""
    match (first.get("vendor"), family, model):
        case ("GenuineIntel", 6, 79):
            known, memory, smp = "Xeon Broadwell", "ddr4-2400-x4", "qpi-broadwell"
        case ("GenuineIntel", 6, 85):
            known, memory, smp = "Xeon Skylake or Cascade Lake", "ddr4-2933-x6", "upi-cascade-lake"
        case ("GenuineIntel", 6, 143):
            known, memory, smp = "Xeon Sapphire Rapids", "ddr5-4800-x8", "upi-sapphire-rapids"
        case ("GenuineIntel", 6, 207):
            known, memory, smp = "Xeon Emerald Rapids", "ddr5-5600-x8", "upi-emerald-rapids"
        case ("AuthenticAMD", 23, 49):
            known, memory, smp = "EPYC Rome", "ddr4-3200-x8", "xgmi-rome"
        case ("AuthenticAMD", 25 | 175, 1):
            known, memory, smp = "EPYC Milan", "ddr4-3200-x8", "xgmi-milan"
    if known:
        tree.messages.append(f"CPU family and model are {known}: {memory} and {smp} are taken for every NUMA node")
        return replace(parts, memory=memory, smp=smp)
    tree.messages.append(f"the CPU is not known; {parts.memory} and {parts.smp} are assumed")
    return parts
