"""NVLinks and NVLink-C2C of NCCL's topology XML: between GPUs, to the NVSwitch, to the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from foreshard.topologies.machine import Link
from foreshard.topologies.nccl_parts import PCIE_CARDS
from foreshard.topologies.nccl_tree import FoundGpu, NcclTree
from foreshard.topologies.node_parts import PartList, catalogue_cable
from foreshard.topologies.xml_tree import XmlElement

__all__ = ["add_c2c", "read_nvlinks"]

_MOST_LINKS = 64
_COUNT = re.compile(r"[1-9][0-9]?")
_MBYTES = re.compile(r"[1-9][0-9]{0,6}")
_NVSWITCH, _CPU_BRIDGE = "0x068000", "0x068001"  # PCI classes, NVIDIA/nccl src/graph/topo.cc kvDictPciClass

Counts = dict[tuple[str, str], int]


def read_nvlinks(tree: NcclTree, parts: PartList) -> Iterator[Link]:
    """The NVLinks of all GPUs; assumed, or said to be missing, where the file has none."""
    counts: Counts = {}
    first: dict[tuple[str, str], XmlElement] = {}
    for gpu in tree.gpus:
        for nvlink in (link for inner in gpu.element.all("gpu")[:1] for link in inner.all("nvlink")):
            nvlink.seen = True
            target, count = _target(tree, nvlink, gpu.name), _count(tree, nvlink)
            if target and count:
                counts[gpu.name, target] = counts.get((gpu.name, target), 0) + count
                first.setdefault((gpu.name, target), nvlink)
    _note_one_sided(tree, counts, first)
    if not counts:
        counts = _assumed(tree)
    yield from _links(parts, counts)


def _links(parts: PartList, counts: Mapping[tuple[str, str], int]) -> Iterator[Link]:
    for a, b in sorted({(min(pair), max(pair)) for pair in counts}):
        lanes = max(counts.get((a, b), 0), counts.get((b, a), 0))
        yield from parts.nvlink_cable(to_switch="nvswitch" in (a, b)).both(a, b, lanes)


def _count(tree: NcclTree, nvlink: XmlElement) -> int:
    text = nvlink.get("count").strip()
    if _COUNT.fullmatch(text) and int(text) <= _MOST_LINKS:
        return int(text)
    tree.refuse(nvlink, f"count {text!r} of an <nvlink> is not a number of links from 1 to {_MOST_LINKS}")
    return 0


def _target(tree: NcclTree, nvlink: XmlElement, name: str) -> str | None:
    """The device an <nvlink> leads to: a GPU by bus number or the NVSwitch by class."""
    kind = nvlink.get("tclass").strip().lower()
    if kind.startswith(_NVSWITCH):
        return "nvswitch"
    target = tree.bus.get(nvlink.get("target").strip().lower())
    if kind.startswith(_CPU_BRIDGE):
        tree.note(nvlink, "NVLinks that lead to a CPU are not modelled; not read")
        return None
    if target == name:
        tree.note(nvlink, f"NVLinks of {name} lead to itself, so their other end is unknown; not read")
        return None
    if target is None or not target.startswith(("gpu", "nvswitch")):
        tree.note(nvlink, f"NVLink target {nvlink.get('target')!r} is no GPU of the file; not read")
        return None
    return target


def _note_one_sided(tree: NcclTree, counts: Counts, first: Mapping[tuple[str, str], XmlElement]) -> None:
    """Say where two ends of a pair state different counts, and which GPUs have no NVLinks while others do."""
    for (a, b), nvlink in first.items():
        if b != "nvswitch" and counts[a, b] > counts.get((b, a), 0):
            back = counts.get((b, a), 0)
            tree.note(
                nvlink, f"{a} has {counts[a, b]} NVLinks to {b}, but {b} has {back} back; the larger number is taken"
            )
    ends = {end for pair in counts for end in pair}
    for gpu in tree.gpus:
        if counts and gpu.name not in ends:
            tree.note(gpu.element, f"{gpu.name} has no NVLink, others have; it meets them over PCIe")


def _assumed(tree: NcclTree) -> Counts:
    """NVLinks of a file that has none: NCCL finds them on the machine, so static files leave them out."""
    gpus, model = tree.gpus, tree.gpus[0].model
    if len(gpus) < 2 or all(_without_nvlink(gpu) for gpu in gpus):
        return {}
    stated = any(below.tag == "nvlink" for gpu in gpus for below in gpu.element.below())
    why = "no <nvlink> of the file leads to a device of it" if stated else "the file has no <nvlink>"
    if _has_switch(gpus):
        lanes = 18 if model.architecture in ("hopper", "blackwell") else 12
        tree.note(None, f"{why}; {len(gpus)} {model.name} have NVSwitches: assumed, {lanes} links a GPU")
        return {(gpu.name, "nvswitch"): lanes for gpu in gpus}
    tree.note(
        None,
        f"{why}, so no NVLink is modelled and GPUs meet over PCIe; NCCL finds NVLinks on the machine: give the file "
        "that NCCL_TOPO_DUMP_FILE writes there, or name the GPU with --gpu if eight of it have NVSwitches",
    )
    return {}


def _without_nvlink(gpu: FoundGpu) -> bool:
    """Whether a model is known to have no NVLink (A10)."""
    return gpu.element.get("device").strip().lower() in PCIE_CARDS - {"0x20b5"}


def _has_switch(gpus: list[FoundGpu]) -> bool:
    """Eight SXM boards of Ampere or later are only built with NVSwitches."""
    sxm = all("SXM" in gpu.model.name and gpu.model.architecture != "volta" for gpu in gpus)
    cards = any(gpu.element.get("device").strip().lower() in PCIE_CARDS for gpu in gpus)
    return len(gpus) == 8 and sxm and not cards


def add_c2c(tree: NcclTree) -> None:
    """NVLink-C2C between GPUs and their CPU: `bw` MB/s a link (NVIDIA/nccl src/graph/topo.cc), `count` links.

    A PCIe link between the same two gives way to it: NCCL takes the faster path as well.
    """
    for gpu in tree.gpus:
        for c2c in (link for inner in gpu.element.all("gpu")[:1] for link in inner.all("c2c")):
            c2c.seen = True
            speed, count = c2c.get("bw").strip(), c2c.get("count").strip()
            if not (_MBYTES.fullmatch(speed) and _COUNT.fullmatch(count) and int(count) <= _MOST_LINKS):
                tree.refuse(c2c, f"bw {speed!r} MB/s and count {count!r} of a <c2c> are not two numbers from 1")
                continue
            usual = catalogue_cable("nvlink-c2c", "c2c")
            bandwidth, share = int(speed) * int(count) * 1e6, usual.usable / usual.bandwidth
            source = (
                f"bandwidth: {count} x {speed} MB/s, NCCL topology XML; usable: the share {share:.2f} of nvlink-c2c"
            )
            cable = replace(usual, bandwidth=bandwidth, usable=bandwidth * share, source=source)
            ends = {(gpu.name, gpu.cpu), (gpu.cpu, gpu.name)}
            if any((link.src, link.dst) in ends for link in tree.links):
                tree.note(c2c, f"the PCIe link of {gpu.name} to the same CPU is left out beside NVLink-C2C")
                tree.links = [link for link in tree.links if (link.src, link.dst) not in ends]
            tree.links.extend(cable.both(gpu.name, gpu.cpu))
