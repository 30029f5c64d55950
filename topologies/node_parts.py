"""Building a node from parts of the catalogue, where an imported description does not state numbers itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from foreshard.topologies.errors import InputError
from foreshard.topologies.fields import Fields, near
from foreshard.topologies.machine import LEAF, Gpu, Link, LinkKind
from foreshard.topologies.nodefile import Cable, kind_advice, read_cable, read_gpu, serving_kinds
from foreshard.topologies.shipped import parts
from foreshard.topologies.units import BYTES, parse_quantity

__all__ = ["PartList", "catalogue_cable", "catalogue_gpu", "part_list"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartList:
    """What machines with a GPU model usually hold, as names of the catalogue."""

    nvlink: str
    pcie: str
    nic: str
    memory: str
    smp: str
    host_memory: str

    @property
    def host_memory_bytes(self) -> float:
        """Host memory of the node in bytes."""
        return parse_quantity(self.host_memory, BYTES)

    def socket_links(self, sockets: int) -> Iterator[Link]:
        """Links of the CPUs to their memory and to each other."""
        for c in range(sockets):
            yield from catalogue_cable(self.memory, "dram").both(f"cpu{c}", f"mem{c}")
            for other in range(c + 1, sockets):
                yield from catalogue_cable(self.smp, "smp").both(f"cpu{c}", f"cpu{other}")

    def port_links(self, nic: str, name: str | None = None) -> Iterator[Link]:
        """Links of a NIC to its leaf switch."""
        yield from catalogue_cable(name or self.nic, "network").both(nic, LEAF)

    def nvlink_cable(self, to_switch: bool) -> Cable:
        """One NVLink; to a switch it is half a hop."""
        one = catalogue_cable(self.nvlink, "nvlink")
        return replace(one, latency_s=one.latency_s / 2) if to_switch else one


_USUAL = {
    "A10-24GB": PartList(
        nvlink="nvlink3-one",
        pcie="pcie4-x16",
        nic="edr-100g",
        memory="ddr4-3200-x8",
        smp="xgmi-milan",
        host_memory="512 GiB",
    ),
    "volta": PartList(
        nvlink="nvlink2-one",
        pcie="pcie3-x16",
        nic="edr-100g",
        memory="ddr4-2400-x4",
        smp="qpi-broadwell",
        host_memory="512 GiB",
    ),
    "ampere": PartList(
        nvlink="nvlink3-one",
        pcie="pcie4-x16",
        nic="hdr-200g",
        memory="ddr4-3200-x8",
        smp="xgmi-milan",
        host_memory="1 TiB",
    ),
    "hopper": PartList(
        nvlink="nvlink4-one",
        pcie="pcie5-x16",
        nic="ndr-400g",
        memory="ddr5-4800-x8",
        smp="upi-sapphire-rapids",
        host_memory="2 TiB",
    ),
    "blackwell": PartList(
        nvlink="nvlink5-one",
        pcie="pcie5-x16",
        nic="ndr-400g",
        memory="ddr5-5600-x8",
        smp="upi-emerald-rapids",
        host_memory="2 TiB",
    ),
}


def part_list(gpu: Gpu) -> PartList:
    """Return the usual parts around a GPU model, by its name or its architecture."""
    return _USUAL.get(gpu.name) or _USUAL.get(gpu.architecture) or _USUAL["ampere"]


def catalogue_gpu(name: str) -> Gpu:
    """Return a GPU model of the catalogue. Raises InputError naming the nearest ones if there is none."""
    return read_gpu(Fields({"name": name, **_part("gpu", name)}, f"gpu.{name}"))


def catalogue_cable(name: str, kind: LinkKind) -> Cable:
    """Return a link of the catalogue that can serve as `kind`.

    Raises InputError naming the nearest ones if there is none of that name, or some of that kind if it is of another.
    """
    part, kinds = _part("link", name), serving_kinds(kind)
    if part["kind"] not in kinds:
        raise InputError(f"{name!r} is of kind {part['kind']}, not {kind}: {kind_advice(kinds)}")
    return read_cable(Fields(part, f"link.{name}"), kind)


def _part(kind: str, name: str) -> dict[str, object]:
    catalogue = parts(kind)
    if name not in catalogue:
        raise InputError(f"there is no {kind} {name!r} in the catalogue; {near(name, catalogue)}")
    return dict(catalogue[name])
