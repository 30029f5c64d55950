"""Reading NCCL's topology XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE): PCIe tree, link speeds, NVLinks, NICs.

Whatever the file holds becomes a device, a link, or a message with its line; what is malformed is refused.
"""

from __future__ import annotations

from foreshard.topologies.errors import InputError
from foreshard.topologies.machine import LEAF, NodeSpec
from foreshard.topologies.nccl_nvlinks import add_c2c, read_nvlinks
from foreshard.topologies.nccl_parts import gpu_model, host_parts, pcie_link, port_of
from foreshard.topologies.nccl_tree import FoundGpu, NcclTree, unread
from foreshard.topologies.node_parts import catalogue_cable, catalogue_gpu, part_list
from foreshard.topologies.nodefile import Cable
from foreshard.topologies.xml_tree import XmlElement, parse_xml

__all__ = ["read_nccl_xml"]

_SOURCE = "NCCL topology XML"
# PCI classes by their first digits, as NCCL reads them (NVIDIA/nccl src/graph/topo.cc, kvDictPciClass).
_GPU_CLASS, _NIC_CLASS, _NVSWITCH_CLASS = "0x03", "0x02", "0x068000"
_BRIDGE_CLASSES = ("0x060400", "0x080100")
_NVIDIA, _AMD = "0x10de", "0x1002"
_MOST = 64  # GPUs or NICs of one node, as in a cluster file


def read_nccl_xml(
    text: str, where: str, gpu: str | None = None, nic: str | None = None
) -> tuple[NodeSpec, tuple[str, ...]]:
    """Return the node that NCCL's topology XML describes, and what had to be assumed.

    `gpu` and `nic` name parts of the catalogue for what the file does not tell. Raises InputError naming the line.
    """
    _check_parts(gpu, nic)
    root = parse_xml(text, where)
    if root.tag != "system":
        kind = "a dump of NCCL's graphs, not of its topology" if root.tag == "graphs" else "not NCCL's topology"
        raise InputError(
            f"line {root.line}: <{root.tag}> is {kind}: give a file that begins with <system>", where=where
        )
    tree, cpus = NcclTree(gpu_name=gpu, nic_part=nic), root.all("cpu")
    root.seen = True
    _check_system(tree, root, cpus)
    for index, cpu in enumerate(cpus):
        cpu.seen = True
        _walk(tree, cpu, f"cpu{index}", f"cpu{index}")
    _check_found(tree, root)
    if tree.problems:
        raise InputError(tree.problems, where=where)
    node = _node(tree, cpus)
    unread(tree, root)
    if tree.problems:
        raise InputError(tree.problems, where=where)
    return node, tuple(tree.messages())


def _check_parts(gpu: str | None, nic: str | None) -> None:
    """Refuse parts that are not in the catalogue before the file is read."""
    if gpu is not None:
        catalogue_gpu(gpu)
    if nic is not None:
        catalogue_cable(nic, "network")


def _check_system(tree: NcclTree, root: XmlElement, cpus: list[XmlElement]) -> None:
    if not cpus:
        tree.refuse(root, "has no <cpu>")
    if root.get("version", "1").strip() != "1":
        tree.note(root, f"version {root.get('version')!r} is read as version 1, the only one that NCCL knows")
    hosts = list(dict.fromkeys(cpu.get("host_hash").strip() for cpu in cpus))
    if len(hosts) > 1:
        other = next(cpu for cpu in cpus if cpu.get("host_hash").strip() != hosts[0])
        tree.refuse(other, f"the file describes {len(hosts)} hosts by their host_hash: leave the <cpu> of one host")


def _check_found(tree: NcclTree, root: XmlElement) -> None:
    if tree.nameless:
        first = tree.nameless[0]
        lines = ", ".join(str(element.line) for element in tree.nameless)
        tree.refuse(
            first,
            f"PCI device {first.get('busid')!r} has neither a class nor a <gpu> or <nic> below it (lines {lines}); "
            "NCCL fills such a file in on the machine: run it there with NCCL_TOPO_DUMP_FILE and give that file",
        )
    elif not tree.gpus and not tree.problems:
        tree.refuse(root, "has no GPU: no PCI device of class 0x0302.. and no <gpu>")
    for name, count in (("GPUs", len(tree.gpus)), ("NICs", tree.nics)):
        if count > _MOST:
            tree.refuse(root, f"has {count} {name}; one node has at most {_MOST}")


def _node(tree: NcclTree, cpus: list[XmlElement]) -> NodeSpec:
    models = {gpu.model.name: gpu.model for gpu in tree.gpus}
    model = tree.gpus[0].model
    if len(models) > 1:
        tree.note(None, f"GPUs differ ({', '.join(models)}); NVLinks and what is assumed are those of {model.name}")
    parts = host_parts(tree, cpus, model)
    tree.links.extend(read_nvlinks(tree, part_list(model)))
    add_c2c(tree)
    tree.links.extend(parts.socket_links(len(cpus)))
    if not tree.nics:
        tree.note(None, "there is no NIC, so the machine cannot be joined with others")
    tree.note(None, f"{parts.host_memory} of host memory is assumed, the file does not tell it")
    return NodeSpec(
        name="node",
        gpus=tuple(gpu.model for gpu in tree.gpus),
        links=tuple(tree.links),
        host_memory_bytes=parts.host_memory_bytes,
        source=f"{_SOURCE}; numbers it does not state are assumed from the catalogue of parts",
    )


def _walk(tree: NcclTree, element: XmlElement, parent: str, cpu: str) -> None:
    for child in element.children:
        if child.tag == "nic":
            child.seen = True
            _add_nic(tree, child, child, parent)
        elif child.tag == "pci":
            child.seen = True
            _add_pci(tree, child, parent, cpu)


def _add_pci(tree: NcclTree, element: XmlElement, parent: str, cpu: str) -> None:
    kind, vendor = element.get("class").strip().lower(), element.get("vendor").strip().lower()
    if element.all("gpu") or kind.startswith(_GPU_CLASS):
        if vendor == _AMD or any(child.tag == "xgmi" for child in element.below()):
            tree.refuse(element, "this describes AMD GPUs, only NVIDIA's can be read")
        elif vendor not in ("", _NVIDIA) and not element.all("gpu"):
            tree.note(element, f"a display device of vendor {vendor}, not NVIDIA's, is left out")
        else:
            _add_gpu(tree, element, parent, cpu)
    elif element.all("nic") or kind.startswith(_NIC_CLASS):
        nic = (element.all("nic") or [element])[0]
        nic.seen = True
        tree.device_at(element, f"nic{tree.nics}")
        _add_nic(tree, element, nic, parent)
    elif element.all("pci") or kind.startswith(_BRIDGE_CLASSES):
        _add_switch(tree, element, parent, cpu)
    elif kind.startswith(_NVSWITCH_CLASS):
        tree.device_at(element, "nvswitch")
        tree.note(
            element, "the NVSwitch is part of one switch for all NVLinks that lead to switches; its PCIe is left out"
        )
    elif kind:
        tree.note(element, f"PCI device of class {kind} is neither GPU, NIC, bridge nor NVSwitch; it is left out")
    else:
        tree.nameless.append(element)


def _add_switch(tree: NcclTree, element: XmlElement, parent: str, cpu: str) -> None:
    name = f"pcie{tree.switches}"
    tree.switches += 1
    tree.device_at(element, name)
    tree.links.extend(pcie_link(tree, element, None).both(name, parent))
    _walk(tree, element, name, cpu)


def _add_gpu(tree: NcclTree, element: XmlElement, parent: str, cpu: str) -> None:
    inner = next(iter(element.all("gpu")), None)
    if inner is not None:
        inner.seen = True
        if inner.get("gdr", "1").strip() == "0":
            tree.note(inner, "without GPUDirect RDMA (gdr 0) NCCL stages in host memory; not modelled")
    name, model = f"gpu{len(tree.gpus)}", gpu_model(tree, element, inner)
    tree.device_at(element, name)
    tree.gpus.append(FoundGpu(name, element, model, cpu))
    tree.links.extend(pcie_link(tree, element, model).both(name, parent))


def _add_nic(tree: NcclTree, pci: XmlElement, nic: XmlElement, parent: str) -> None:
    """One NIC for each <net>; a NIC without any has one port of assumed speed."""
    nets = [net for net in nic.all("net") if not _fused(tree, net)]
    if len(nets) > 1:
        tree.note(nic, f"the {len(nets)} ports of a card are modelled with a PCIe slot each; in truth they share one")
    for net in nets or ([] if nic.all("net") else [nic]):
        name = f"nic{tree.nics}"
        tree.nics += 1
        slot = pcie_link(tree, pci, None) if pci.tag == "pci" else _no_slot(tree, net)
        tree.links.extend(slot.both(name, parent))
        tree.links.extend(port_of(tree, net).both(name, LEAF))
        if net.get("gdr", "1").strip() == "0":
            tree.note(net, "without GPUDirect RDMA (gdr 0) NCCL stages in host memory; not modelled")
        if net.get("latency", "0").strip().strip("0.") != "":
            tree.note(net, f"latency {net.get('latency')!r} of the NIC is not read; NCCL's own for a network is used")


def _fused(tree: NcclTree, net: XmlElement) -> bool:
    """Whether a port is part of a fused one, which stands beside it (net 0)."""
    net.seen = True
    if net.get("net", "1").strip() != "0":
        return False
    tree.note(net, "the port is part of a fused one (net 0); it is left out")
    return True


def _no_slot(tree: NcclTree, net: XmlElement) -> Cable:
    tree.note(net, f"NIC {net.get('name')!r} hangs on the CPU without a PCI device; pcie4-x16 is assumed")
    return catalogue_cable("pcie4-x16", "pcie")
