"""What NCCL's topology XML says of single devices: GPU models, PCIe links, ports of NICs, CPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from foreshard.topologies.machine import Gpu
from foreshard.topologies.nccl_tree import NcclTree
from foreshard.topologies.node_parts import PartList, catalogue_cable, catalogue_gpu, part_list
from foreshard.topologies.nodefile import Cable
from foreshard.topologies.xml_tree import XmlElement

__all__ = ["PCIE_CARDS", "gpu_model", "host_parts", "pcie_link", "port_of"]

_SOURCE = "NCCL topology XML"
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
PCIE_CARDS = {"0x20b5", "0x2236", "0x2237"}
_NEAREST = {"0x1db1": "a V100 of 16 GB", "0x20b5": "a PCIe card, A100 of 80 GB", "0x2237": "an A10G"}
_BY_CAPABILITY = {
    "70": "V100-SXM2-32GB",
    "80": "A100-SXM4-80GB",
    "86": "A10-24GB",
    "90": "H100-SXM5-80GB",
    "100": "B200-SXM-180GB",
}
_UNKNOWN = "A10-24GB"
# Share of the transfers left by the line code, and the catalogue's link of that generation.
_GENERATIONS = {"2.5": (0.8, ""), "5": (0.8, ""), "8": (128 / 130, "pcie3-x16"), "16": (128 / 130, "pcie4-x16")}
_GENERATIONS |= {"32": (128 / 130, "pcie5-x16"), "64": (242 / 256, "")}
_WIDTHS = ("1", "2", "4", "8", "16", "32")
_SPEED = re.compile(r"\s*(\d{1,3}(?:\.\d+)?)\s*GT/s(?:\s*PCIe)?\s*", re.ASCII)
_MBIT = re.compile(r"[1-9][0-9]{0,7}")


def gpu_model(tree: NcclTree, element: XmlElement, gpu: XmlElement | None) -> Gpu:
    """The GPU model by option, PCI device number or compute capability; assumed where none tells it."""
    device, capability = element.get("device").strip().lower(), gpu.get("sm").strip() if gpu else ""
    if tree.gpu_name is not None:
        return catalogue_gpu(tree.gpu_name)
    by_device, by_capability = _BY_DEVICE.get(device), _BY_CAPABILITY.get(capability)
    name = by_device or by_capability or _UNKNOWN
    model = catalogue_gpu(name)
    if device in _NEAREST:
        tree.note(element, f"PCI device {device} is {_NEAREST[device]}; {name} is the nearest in the catalogue")
    if by_device is None:
        tree.note(element, _assumed_model(device, capability, name))
    elif by_capability is not None and catalogue_gpu(by_capability).architecture != model.architecture:
        tree.note(element, f"PCI device {device} is {name}, but compute capability {capability} is another's; not used")
    return model


def _assumed_model(device: str, capability: str, name: str) -> str:
    if capability in _BY_CAPABILITY:
        return f"compute capability {capability}: {name} is assumed; name yours with --gpu"
    told = [f"PCI device number {device}"] * bool(device) + [f"compute capability {capability}"] * bool(capability)
    why = f"{' and '.join(told)} not in the catalogue" if told else "the file does not tell the GPU model"
    return f"{why}; {name} is assumed: name yours with --gpu"


def pcie_link(tree: NcclTree, element: XmlElement, model: Gpu | None) -> Cable:
    """The PCIe link that an element states, or the usual one of the GPU model if it states none."""
    speed, width = element.get("link_speed").strip(), element.get("link_width").strip()
    match = _SPEED.fullmatch(speed)
    rate = f"{float(match[1]):g}" if match else ""
    if rate in _GENERATIONS and width in _WIDTHS:
        return _stated_pcie(rate, int(width))
    part = part_list(model or catalogue_gpu(_UNKNOWN)).pcie
    if not speed and width in ("", "0"):
        tree.note(element, f"no link speed and width is stated; {part} is assumed")
    else:
        tree.note(element, f"link_speed {speed!r} x {width!r} is not a PCIe link; {part} is assumed")
    return catalogue_cable(part, "pcie")


def _stated_pcie(rate: str, width: int) -> Cable:
    code, part = _GENERATIONS[rate]
    usual = catalogue_cable(part or "pcie3-x16", "pcie")
    bandwidth = float(rate) * 1e9 * width / 8 * code
    share = usual.usable / usual.bandwidth
    source = f"bandwidth: {rate} GT/s x {width}, {_SOURCE}; usable: the share {share:.2f} of {part or 'pcie3-x16'}"
    return replace(usual, bandwidth=bandwidth, usable=bandwidth * share, source=source)


def port_of(tree: NcclTree, net: XmlElement) -> Cable:
    """The port of a NIC: its speed is in Mbit/s."""
    part = tree.nic_part or "edr-100g"
    usual, speed = catalogue_cable(part, "network"), net.get("speed").strip()
    if tree.nic_part is not None:
        if speed:
            tree.note(net, f"the stated speed of {speed} Mbit/s gives way to {part}, as asked by --nic")
        return usual
    if _MBIT.fullmatch(speed):
        bandwidth, share = int(speed) * 1e6 / 8, usual.usable / usual.bandwidth
        source = f"bandwidth: {speed} Mbit/s, {_SOURCE}; usable: the share {share:.2f} of edr-100g"
        return replace(usual, bandwidth=bandwidth, usable=bandwidth * share, source=source)
    why = (
        f"speed {speed!r} of a NIC is no number of Mbit/s" if speed else "the file does not tell the speed of its NICs"
    )
    tree.note(net, f"{why}; {part} is assumed: name yours with --nic")
    return usual


def host_parts(tree: NcclTree, cpus: Sequence[XmlElement], model: Gpu) -> PartList:
    """Sockets by vendor, family and model where the file tells them, else the usual ones around the GPU."""
    parts, first = part_list(model), _identity(cpus[0])
    for cpu in cpus[1:]:
        if _identity(cpu) != first:
            tree.note(cpu, f"the CPU is {_told(_identity(cpu))}; taken as the first, {_told(first)}")
    known = _known_cpu(*first)
    if known is not None:
        name, memory, smp = known
        tree.note(None, f"CPU family and model are {name}: {memory} and {smp} are taken for every NUMA node")
        return replace(parts, memory=memory, smp=smp)
    tree.note(cpus[0], f"the CPU is not known ({_told(first)}); {parts.memory} and {parts.smp} are assumed")
    return parts


def _identity(cpu: XmlElement) -> tuple[str, str, str]:
    vendor, family, model = (cpu.get(key).strip() for key in ("vendor", "familyid", "modelid"))
    return vendor, family, model


def _told(identity: tuple[str, str, str]) -> str:
    vendor, family, model = (part or "?" for part in identity)
    return f"vendor {vendor}, family {family}, model {model}"


def _known_cpu(vendor: str, family: str, model: str) -> tuple[str, str, str] | None:
    """(Name, memory, link between sockets) of a CPU."""
    match vendor, family, model:
        case "GenuineIntel", "6", "79":
            return "Xeon Broadwell", "ddr4-2400-x4", "qpi-broadwell"
        case "GenuineIntel", "6", "85":
            return "Xeon Skylake or Cascade Lake", "ddr4-2933-x6", "upi-cascade-lake"
        case "GenuineIntel", "6", "143":
            return "Xeon Sapphire Rapids", "ddr5-4800-x8", "upi-sapphire-rapids"
        case "GenuineIntel", "6", "207":
            return "Xeon Emerald Rapids", "ddr5-5600-x8", "upi-emerald-rapids"
        case "AuthenticAMD", "23", "49":
            return "EPYC Rome", "ddr4-3200-x8", "xgmi-rome"
        case "AuthenticAMD", "25" | "175", "1":
            return "EPYC Milan", "ddr4-3200-x8", "xgmi-milan"
    return None
