"""Reading one kind of node from its short form: counts and one line per kind of link become devices and links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from foreshard.topologies.fields import Fields, near
from foreshard.topologies.machine import LEAF, SWITCH, Architecture, Gpu, Link, LinkKind, NodeSpec
from foreshard.topologies.shipped import parts
from foreshard.topologies.units import BYTES, BYTES_PER_S, FLOPS, SECONDS

__all__ = [
    "Cable",
    "kind_advice",
    "read_cable",
    "read_gpu",
    "read_link",
    "read_node",
    "read_part",
    "serving_kinds",
]


def read_gpu(fields: Fields) -> Gpu:
    """Return a GPU model from its table."""
    flops = fields.table("flops")
    rates = {name: flops.quantity(name, FLOPS) for name in flops} if flops else {}
    gpu = Gpu(
        name=fields.text("name"),
        architecture=fields.choice("architecture", get_args(Architecture)),
        hbm_bytes=fields.quantity("hbm", BYTES),
        hbm_bytes_per_s=fields.quantity("hbm_bandwidth", BYTES_PER_S),
        l2_bytes=fields.quantity("l2", BYTES),
        flops=rates,
        source=fields.source("hbm", "hbm_bandwidth", "l2", "flops"),
    )
    fields.finish()
    return gpu


def read_part(fields: Fields, key: str, kind: str) -> Fields | None:
    """Return the table of a part: given in place, or the name of one in the catalogue; None if it is absent.

    `kind` is that of the catalogue: "gpu", "cpu" or "link".
    """
    value = fields.raw(key)
    if not isinstance(value, str):
        return fields.table(key)
    catalogue = parts(kind)
    if value not in catalogue:
        fields.note(key, f"there is no {kind} {value!r} in the catalogue; {near(value, catalogue)}")
        return None
    named: dict[str, Any] = {"name": value} if kind in ("gpu", "cpu") else {}
    return Fields({**named, **catalogue[value]}, f"{fields.path}.{key}".lstrip("."), fields.problems)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cable:
    """What one kind of link carries, and where the numbers are from."""

    bandwidth: float
    usable: float
    latency_s: float
    kind: LinkKind
    source: str

    def both(self, a: str, b: str, lanes: int = 1) -> Iterator[Link]:
        """The two links between a and b, each of `lanes` such cables."""
        yield self.one(a, b, lanes)
        yield self.one(b, a, lanes)

    def one(self, src: str, dst: str, lanes: int = 1) -> Link:
        """The link from one end to the other, of `lanes` such cables."""
        return Link(
            src=src,
            dst=dst,
            bandwidth=self.bandwidth * lanes,
            usable=self.usable * lanes,
            latency_s=self.latency_s,
            kind=self.kind,
            source=self.source,
        )


_NO_CABLE = Cable(bandwidth=1.0, usable=1.0, latency_s=0.0, kind="pcie", source="")


def serving_kinds(kind: LinkKind) -> tuple[LinkKind, ...]:
    """Kinds of link that can stand in the place of one: NVLink-C2C joins a GPU to its CPU as PCIe does."""
    return ("pcie", "c2c") if kind == "pcie" else (kind,)


def kind_advice(kinds: Sequence[LinkKind]) -> str:
    """What to name in the place of a link of another kind."""
    names = [name for name, part in parts("link").items() if part["kind"] in kinds]
    return f"name a {' or '.join(kinds)} link, such as {', '.join(names[:4])}"


def read_cable(fields: Fields | None, kind: LinkKind) -> Cable:
    """Return what a link in the place of `kind` carries from its table, or a stand-in if there is no table (the caller
    has noted why)."""
    return _read_cable(fields, kind, serving_kinds(kind))


def _read_cable(fields: Fields | None, kind: LinkKind, kinds: Sequence[LinkKind] | None) -> Cable:
    if fields is None:
        return _NO_CABLE
    stated: LinkKind = fields.choice("kind", get_args(LinkKind), kind)
    if kinds is not None and stated not in kinds:
        fields.note("kind", f"{stated} cannot serve here: {kind_advice(kinds)}")
    bandwidth, usable = fields.quantity("bandwidth", BYTES_PER_S), fields.quantity("usable", BYTES_PER_S)
    if usable > bandwidth and not fields.wrong("bandwidth", "usable"):
        fields.note("usable", f"{fields.raw('usable')!r} is above the bandwidth {fields.raw('bandwidth')!r}")
    latency = fields.quantity("latency", SECONDS)
    source = fields.source("bandwidth", "usable", "latency")
    fields.finish()
    return Cable(bandwidth=bandwidth, usable=usable, latency_s=latency, kind=stated, source=source)


def read_link(fields: Fields) -> Link:
    """Return one directed link of the explicit form."""
    src, dst = fields.text("src"), fields.text("dst")
    cable = _read_cable(_without(fields, "src", "dst"), "pcie", None)
    return next(cable.both(src, dst))


def _without(fields: Fields, *keys: str) -> Fields:
    """The same table without some keys."""
    if fields.wrong():
        return fields
    return Fields({key: fields.raw(key) for key in fields if key not in keys}, fields.path, fields.problems)


def read_node(fields: Fields, parent: Fields) -> NodeSpec:
    """Return a kind of node from its short form; `parent` holds the `gpu` table or name beside it."""
    gpu_fields = read_part(parent, "gpu", "gpu")
    gpu = read_gpu(gpu_fields) if gpu_fields else None
    name = fields.text("name", "node")
    gpus, nics = fields.integer("gpus", maximum=64), fields.integer("nics", 0, minimum=0, maximum=64)
    memory = fields.quantity("host_memory", BYTES)
    relay, nvls = fields.flag("nvlink_relay", True), fields.flag("nvls", True)
    links = [*_nvlinks(fields, gpus), *_host_links(fields, gpus, nics)]
    chosen = _chosen_nics(fields, gpus, nics)
    source = fields.source("gpus", "nics", "cpus", "pcie_switches", "host_memory")
    fields.finish()
    return NodeSpec(
        name=name,
        gpus=(gpu,) * gpus if gpu else (),
        links=tuple(links),
        host_memory_bytes=memory,
        nics=chosen,
        nvlink_relay=relay,
        nvls=nvls,
        source=source,
    )


def _chosen_nics(fields: Fields, gpus: int, nics: int) -> tuple[tuple[str, ...], ...] | None:
    """NICs of each GPU if the file states them: a list of NIC numbers a GPU."""
    if not fields.has("gpu_nics"):
        return None
    rows = fields.values("gpu_nics")
    if fields.wrong("gpus", "nics", "gpu_nics"):
        return None
    if len(rows) != gpus:
        fields.note("gpu_nics", f"has {len(rows)} entries for {gpus} GPUs: give one list of NIC numbers a GPU")
        return None
    for index, row in enumerate(rows):
        if not isinstance(row, list) or not row or not all(isinstance(n, int) and 0 <= n < nics for n in row):
            fields.note(f"gpu_nics[{index}]", f"{row!r} is not a list of NIC numbers 0 .. {nics - 1}")
            return None
    return tuple(tuple(f"nic{n}" for n in row) for row in rows)


def _nvlinks(fields: Fields, gpus: int) -> Iterator[Link]:
    shape = fields.choice("nvlink_topology", ("none", "switch", "domain", "mesh"), "none")
    if shape == "none":
        if fields.has("nvlink") and not fields.wrong("nvlink_topology"):
            fields.note("nvlink_topology", "is missing: give switch, domain or mesh beside nvlink")
        if fields.wrong("nvlink_topology"):
            fields.has("nvlink_pairs")
        return
    cable = read_cable(read_part(fields, "nvlink", "link"), "nvlink")
    if shape == "mesh":
        for a, b, lanes in _mesh_pairs(fields, gpus):
            yield from cable.both(f"gpu{a}", f"gpu{b}", lanes)
        return
    for g in range(gpus):
        yield from cable.both(f"gpu{g}", SWITCH if shape == "domain" else "nvswitch")


def _mesh_pairs(fields: Fields, gpus: int) -> Iterator[tuple[int, int, int]]:
    """Entries [gpu, gpu, links between them]."""
    seen: set[frozenset[int]] = set()
    for index, pair in enumerate(fields.values("nvlink_pairs")):
        where = f"nvlink_pairs[{index}]"
        if not isinstance(pair, list) or len(pair) != 3 or not all(type(value) is int for value in pair):
            fields.note(where, f"{pair!r} is not [gpu, gpu, number of NVLinks between them]")
            continue
        a, b, lanes = pair
        if fields.wrong("gpus"):
            continue
        if not (0 <= a < gpus and 0 <= b < gpus and a != b and 1 <= lanes <= 64):
            fields.note(where, f"{pair!r} does not join two of the GPUs 0 .. {gpus - 1} by 1 to 64 NVLinks")
        elif frozenset((a, b)) in seen:
            fields.note(where, f"joins GPUs {a} and {b} a second time")
        else:
            seen.add(frozenset((a, b)))
            yield a, b, lanes


def _host_links(fields: Fields, gpus: int, nics: int) -> Iterator[Link]:
    """Links of CPUs, host memory, PCIe switches and NICs; GPUs and NICs are dealt evenly over what they hang on."""
    cpus = fields.integer("cpus", 1, maximum=16)
    switches = fields.integer("pcie_switches", 0, minimum=0, maximum=64)
    nics_at = fields.choice("nics_at", ("switch", "cpu"), "switch")
    slot = read_cable(read_part(fields, "pcie", "link"), "pcie")
    uplink = _own_or(fields, "pcie_uplink", slot)
    sockets = [f"cpu{c}" for c in range(cpus)]
    holders = [f"pcie{i}" for i in range(switches)] or sockets
    yield from _socket_links(fields, sockets)
    for i in range(switches):
        yield from uplink.both(f"pcie{i}", sockets[i * cpus // switches])
    for g in range(gpus):
        yield from slot.both(f"gpu{g}", holders[g * len(holders) // gpus])
    yield from _nic_links(fields, nics, sockets if nics_at == "cpu" else holders, _own_or(fields, "nic_pcie", slot))


def _own_or(fields: Fields, key: str, usual: Cable) -> Cable:
    return read_cable(read_part(fields, key, "link"), "pcie") if fields.has(key) else usual


def _socket_links(fields: Fields, sockets: list[str]) -> Iterator[Link]:
    memory = read_cable(read_part(fields, "memory", "link"), "dram")
    # A file laid over a preset may leave a part without use, such as smp with one CPU; that is no mistake.
    needed = len(sockets) > 1 or fields.has("smp")
    smp = read_cable(read_part(fields, "smp", "link"), "smp") if needed else _NO_CABLE
    for index, cpu in enumerate(sockets):
        yield from memory.both(cpu, f"mem{index}")
        for other in sockets[index + 1 :]:
            yield from smp.both(cpu, other)


def _nic_links(fields: Fields, nics: int, holders: list[str], slot: Cable) -> Iterator[Link]:
    needed = nics > 0 or fields.has("nic")
    port = read_cable(read_part(fields, "nic", "link"), "network") if needed else _NO_CABLE
    for n in range(nics):
        yield from slot.both(f"nic{n}", holders[n * len(holders) // nics])
        yield from port.both(f"nic{n}", LEAF)
