"""Reading a node whose ranks are processes on its CPUs: cores they share, the loopback between them, and the NIC.

    backend = "gloo"
    cpu = "x86-avx2-core"            # one core of the catalogue, or a table in its place
    [node]
    ranks = 4
    cores = 2                        # shared by all ranks of the node; half of one core is 0.5
    memory = "ddr4-3200-x2"
    host_memory = "16 GiB"
    loopback = "tcp-loopback"
    nic = { bandwidth = "500 Mbit/s", usable = "478 Mbit/s", latency = "50 us", source = "tc tbf" }
    source = "..."

A rank is what a GPU is elsewhere: it has its share of the cores' FLOP/s, of memory and of memory bandwidth, as all
ranks work at the same time. It talks to others through sockets, into `cpu0` and out of `cpu1`: over the loopback
between the two, or over the NIC. `loopback` is what one core carries, sending and receiving as fast: no rank goes past
one core, and all together not beyond the cores, so that inside a node all bytes count, not only those of the busiest
rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from foreshard.topologies.fields import Fields
from foreshard.topologies.machine import LEAF, Gpu, Link, NodeSpec
from foreshard.topologies.nodefile import Cable, read_cable, read_part
from foreshard.topologies.units import BYTES, BYTES_PER_S, FLOPS

__all__ = ["read_cpu_node"]

_MAX_CORES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class _Core:
    """One core: what it computes and reads alone; `cache` in bytes is its own."""

    name: str
    flops: dict[str, float]
    memory_bytes_per_s: float
    cache_bytes: float
    source: str


def read_cpu_node(fields: Fields, parent: Fields) -> NodeSpec:
    """Return a kind of node of CPU ranks from its short form; `parent` holds the `cpu` table or name beside it."""
    core_fields = read_part(parent, "cpu", "cpu")
    core = _read_core(core_fields) if core_fields else None
    name = fields.text("name", "node")
    ranks = fields.integer("ranks", maximum=64)
    cores = min(float(ranks), fields.number("cores", minimum=1 / 64, maximum=_MAX_CORES))
    memory = read_cable(read_part(fields, "memory", "link"), "dram")
    loopback = read_cable(read_part(fields, "loopback", "link"), "loopback")
    nic = read_cable(read_part(fields, "nic", "link"), "network") if fields.has("nic") else None
    host_memory = fields.quantity("host_memory", BYTES)
    source = fields.source("ranks", "cores", "host_memory")
    fields.finish()
    return NodeSpec(
        name=name,
        gpus=(_rank(core, ranks, cores / ranks, memory, host_memory),) * ranks if core else (),
        links=tuple(_links(ranks, cores, memory, loopback, nic)),
        host_memory_bytes=host_memory,
        source=source,
    )


def _read_core(fields: Fields) -> _Core:
    flops = fields.table("flops")
    core = _Core(
        name=fields.text("name"),
        flops={name: flops.quantity(name, FLOPS) for name in flops} if flops else {},
        memory_bytes_per_s=fields.quantity("memory_bandwidth", BYTES_PER_S),
        cache_bytes=fields.quantity("cache", BYTES),
        source=fields.source("flops", "memory_bandwidth", "cache"),
    )
    fields.finish()
    return core


def _rank(core: _Core, ranks: int, share: float, memory: Cable, host_memory: float) -> Gpu:
    """What one rank has while all of the node's ranks work."""
    return Gpu(
        name=core.name if share == 1.0 else f"{core.name} x {share:.3g}",
        architecture="cpu",
        hbm_bytes=host_memory / ranks,
        hbm_bytes_per_s=min(core.memory_bytes_per_s * share, memory.usable / ranks),
        l2_bytes=core.cache_bytes,
        flops={name: rate * share for name, rate in core.flops.items()},
        source=f"{share:.3g} of a core and 1/{ranks} of the node's memory for each of {ranks} ranks; {core.source}",
    )


def _links(ranks: int, cores: float, memory: Cable, loopback: Cable, nic: Cable | None) -> Iterator[Link]:
    of_rank = replace(memory, bandwidth=memory.bandwidth / ranks, usable=memory.usable / ranks)
    socket, inside = replace(loopback, latency_s=0.0), replace(memory, latency_s=0.0)
    for rank in range(ranks):
        yield from of_rank.both(f"gpu{rank}", "mem0")
        yield socket.one(f"gpu{rank}", "cpu0")
        yield socket.one("cpu1", f"gpu{rank}")
    of_all = replace(loopback, bandwidth=loopback.bandwidth * cores, usable=loopback.usable * cores)
    yield of_all.one("cpu0", "cpu1")
    if nic is not None:
        yield inside.one("cpu0", "nic0")
        yield inside.one("nic0", "cpu1")
        yield from nic.both("nic0", LEAF)
