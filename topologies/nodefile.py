"""Reading one kind of node from its short form: counts and one line per kind of link become devices and links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from foreshard.topologies.fields import Fields
from foreshard.topologies.machine import LEAF, SWITCH, Architecture, Gpu, Link, LinkKind, NodeSpec
from foreshard.topologies.units import BYTES, BYTES_PER_S, FLOPS, SECONDS

__all__ = ["read_gpu", "read_node"]


def read_gpu(fields: Fields) -> Gpu:
    """Return a GPU model from its table."""
    flops = fields.table("flops")
    rates = {name: flops.quantity(name, FLOPS) for name in flops.keys()} if flops else {}
    gpu = Gpu(
        name=fields.text("name"),
        architecture=fields.text("architecture", choices=get_args(Architecture)),  # type: ignore[arg-type]
        hbm_bytes=fields.quantity("hbm", BYTES),
        hbm_bytes_per_s=fields.quantity("hbm_bandwidth", BYTES_PER_S),
        l2_bytes=fields.quantity("l2", BYTES),
        flops=rates,
        source=fields.text("source"),
    )
    fields.finish()
    return gpu


class _Cable:
    """Bandwidth, usable bandwidth, latency and source of one kind of link."""

    def __init__(self, fields: Fields | None, kind: LinkKind) -> None:
        self.kind: LinkKind = kind
        self.bandwidth = self.usable = self.latency_s = 0.0
        self.source = ""
        if fields is None:
            return
        self.bandwidth = fields.quantity("bandwidth", BYTES_PER_S)
        self.usable = fields.quantity("usable", BYTES_PER_S)
        self.latency_s = fields.quantity("latency", SECONDS, "0 s")
        self.source = fields.text("source")
        if self.usable > self.bandwidth:
            fields.note("usable", "is above bandwidth: a link cannot carry more than it has")
        fields.finish()

    def both(self, a: str, b: str, lanes: int = 1) -> Iterator[Link]:
        """The two links between a and b."""
        for src, dst in ((a, b), (b, a)):
            yield Link(
                src=src,
                dst=dst,
                bandwidth=self.bandwidth * lanes,
                usable=self.usable * lanes,
                latency_s=self.latency_s,
                kind=self.kind,
                source=self.source,
            )


def read_node(fields: Fields, gpu: Gpu) -> NodeSpec:
    """Return a kind of node from its short form."""
    name = fields.text("name", "node")
    gpus, nics = fields.integer("gpus", maximum=64), fields.integer("nics", 0, minimum=0, maximum=64)
    memory = fields.quantity("host_memory", BYTES)
    nvlink = list(_nvlinks(fields, gpus))
    pcie = list(_pcie_links(fields, gpus, nics))
    fields.finish()
    gpus_ = (gpu,) * gpus
    return NodeSpec(name=name, gpus=gpus_, links=tuple(nvlink + pcie), host_memory_bytes=memory)


def _nvlinks(fields: Fields, gpus: int) -> Iterator[Link]:
    table = fields.table("nvlink", required=False)
    if table is None:
        return
    topology = table.text("topology", choices=("switch", "domain", "mesh"))
    pairs = table.values("pairs", []) if topology == "mesh" else []
    table.has("topology")
    cable = _Cable(table, "nvlink")
    for a, b, lanes in pairs:
        yield from cable.both(f"gpu{a}", f"gpu{b}", lanes)
    if topology != "mesh":
        for g in range(gpus):
            yield from cable.both(f"gpu{g}", SWITCH if topology == "domain" else "nvswitch")


def _pcie_links(fields: Fields, gpus: int, nics: int) -> Iterator[Link]:
    cpus = fields.integer("cpus", 1, maximum=16)
    switches = fields.integer("pcie_switches", 0, minimum=0, maximum=64)
    slot = _Cable(fields.table("pcie"), "pcie")
    uplink = _Cable(fields.table("pcie_uplink", required=False) if switches else None, "pcie") if switches else slot
    memory = _Cable(fields.table("memory"), "dram")
    smp = _Cable(fields.table("smp") if cpus > 1 else None, "smp")
    port = _Cable(fields.table("nic") if nics else None, "network")
    for c in range(cpus):
        yield from memory.both(f"cpu{c}", f"mem{c}")
        for other in range(c + 1, cpus):
            yield from smp.both(f"cpu{c}", f"cpu{other}")
    parents = [f"pcie{i}" for i in range(switches)] or [f"cpu{i}" for i in range(cpus)]
    for i in range(switches):
        yield from (uplink if uplink.bandwidth else slot).both(f"pcie{i}", f"cpu{i * cpus // switches}")
    for g in range(gpus):
        yield from slot.both(f"gpu{g}", parents[g * len(parents) // gpus])
    for n in range(nics):
        yield from slot.both(f"nic{n}", parents[n * len(parents) // nics])
        yield from port.both(f"nic{n}", LEAF)
