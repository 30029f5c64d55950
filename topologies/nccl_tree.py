"""What is collected while NCCL's topology XML is read: devices, links, and every message and problem with its lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from foreshard.topologies.machine import Gpu, Link
from foreshard.topologies.xml_tree import XmlElement

__all__ = ["FoundGpu", "NcclTree", "unread"]

# Attributes that say nothing about links: identities, and what NCCL needs to run (NVIDIA/nccl src/graph/xml.cc).
_WITHOUT_EFFECT: dict[str, frozenset[str]] = {
    "system": frozenset({"version", "name"}),
    "cpu": frozenset({"numaid", "affinity", "arch", "host_hash", "vendor", "familyid", "modelid"}),
    "pci": frozenset({"vendor", "device", "subsystem_vendor", "subsystem_device", "link_speed", "link_width"}),
    "gpu": frozenset({"dev", "rank", "mem"}),
    "nvlink": frozenset({"tclass", "target"}),
    "net": frozenset({"name", "dev", "port", "guid", "maxconn", "coll", "keep", "rail", "plane", "gin", "speed"}),
}


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A GPU of the file: its name in the node, its PCI element, its model, and the CPU it hangs on."""

    name: str
    element: XmlElement
    model: Gpu
    cpu: str


@dataclass(slots=True)
class NcclTree:
    """What is found on the way down the tree; `gpu_name` and `nic_part` are what the user named."""

    gpu_name: str | None
    nic_part: str | None
    gpus: list[FoundGpu] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    bus: dict[str, str] = field(default_factory=dict)
    switches: int = 0
    nics: int = 0
    nameless: list[XmlElement] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _noted: dict[str, list[int]] = field(default_factory=dict)

    def refuse(self, element: XmlElement, why: str) -> None:
        """Note a mistake."""
        self.problems.append(f"line {element.line}: {why}")

    def note(self, element: XmlElement | None, what: str) -> None:
        """Note what had to be assumed, or was left out, at an element; the same for several is told once."""
        self._noted.setdefault(what, []).extend([] if element is None else [element.line])

    def messages(self) -> Iterator[str]:
        """Everything noted, each with its lines."""
        for what, lines in self._noted.items():
            named = sorted(set(lines))
            start = f"line{'s' * (len(named) > 1)} {', '.join(map(str, named))}: " if named else ""
            yield start + what

    def device_at(self, element: XmlElement, name: str) -> None:
        """Remember the device of a PCI address; the same address twice is a mistake."""
        address = element.get("busid").strip().lower()
        if not address:
            self.refuse(element, "a <pci> without busid: NCCL gives every device its address")
        elif address in self.bus:
            self.refuse(element, f"PCI device {element.get('busid')!r} stands twice")
        else:
            self.bus[address] = name


def unread(tree: NcclTree, root: XmlElement) -> None:
    """Note every element, attribute and text that nothing has read; of an unread element, not what is below it."""
    for element in _read(root):
        for child in element.children:
            if not child.seen:
                tree.note(child, f"<{child.tag}> below <{element.tag}> is not read")
        for name in element.attributes:
            if name not in element.used and name not in _WITHOUT_EFFECT.get(element.tag, ()):
                tree.note(element, f"attribute {name!r} of <{element.tag}> is not read")
        if element.text:
            tree.note(element, f"the text {element.text[:40]!r} is not read")


def _read(element: XmlElement) -> Iterator[XmlElement]:
    yield element
    for child in element.children:
        if child.seen:
            yield from _read(child)
