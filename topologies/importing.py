"""Importing what a real machine says about itself: the format is told by its content, the result is a ClusterSpec."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from foreshard.topologies.errors import InputError
from foreshard.topologies.machine import ClusterSpec, Fabric, NodeGroup
from foreshard.topologies.nccl_xml import read_nccl_xml
from foreshard.topologies.topo_node import read_topo_text

__all__ = ["Imported", "import_topology", "import_topology_file"]

_LARGEST = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A cluster of one node as imported, the format it had, and one message for everything that was assumed."""

    spec: ClusterSpec
    format: str
    messages: tuple[str, ...]


def import_topology(
    text: str, name: str = "imported", *, where: str | None = None, gpu: str | None = None, nic: str | None = None
) -> Imported:
    """Return the machine that the text of `nvidia-smi topo -m` or NCCL's topology XML describes.

    `gpu` and `nic` name parts of the catalogue for what the text does not tell. Raises InputError naming the line
    and why.
    """
    where = where or name
    if len(text) > _LARGEST:
        raise InputError(f"{len(text):,} characters are not the topology of one machine", where=where)
    if not text.strip():
        raise InputError("is empty: give the output of nvidia-smi topo -m or NCCL's topology XML", where=where)
    xml = text.lstrip("\ufeff \t\r\n").startswith("<")
    read = read_nccl_xml if xml else read_topo_text
    node, messages = read(text.lstrip("\ufeff"), where, gpu, nic)
    spec = ClusterSpec(
        name=name,
        groups=(NodeGroup(node=node, nodes=1),),
        fabric=Fabric(source="not part of the imported description: one non-blocking switch assumed"),
        assumptions=(*messages, "the fabric is not part of the description: one non-blocking switch is assumed"),
    )
    return Imported(spec=spec, format="NCCL topology XML" if xml else "nvidia-smi topo -m", messages=spec.assumptions)


def import_topology_file(path: str | Path, *, gpu: str | None = None, nic: str | None = None) -> Imported:
    """Return the machine that a file describes; see `import_topology`. Raises InputError."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text: {error}", where=str(path)) from error
    return import_topology(text, path.stem, where=str(path), gpu=gpu, nic=nic)
