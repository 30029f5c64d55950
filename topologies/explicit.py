"""The explicit form of a cluster file: every device and link of every kind of node; written and read back equal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import tomli_w

from foreshard.topologies.fields import Fields, near
from foreshard.topologies.machine import ClusterSpec, Fabric, Gpu, Link, NodeGroup, NodeSpec, Sourced
from foreshard.topologies.nodefile import read_gpu, read_link
from foreshard.topologies.units import BYTES, BYTES_PER_S, FLOPS, SECONDS, parse_quantity

__all__ = ["dump_cluster", "read_kinds"]


_UNKNOWN_GPU = Gpu(
    name="", architecture="hopper", hbm_bytes=1.0, hbm_bytes_per_s=1.0, l2_bytes=1.0, flops={}, source=""
)


def read_kinds(fields: Fields) -> dict[str, NodeSpec] | None:
    """Return the kinds of node of an explicit file by name, one without a name where the file's cannot be told; None
    if the file is not explicit."""
    if not fields.has("kinds"):
        return None
    models = [read_gpu(table) for table in fields.tables("gpus")]
    gpus = {gpu.name: gpu for gpu in models}
    if fields.wrong("gpus"):
        gpus[""] = _UNKNOWN_GPU
    if len(gpus) < len(models):
        fields.note("gpus", "has two GPU models of the same name")
    kinds = [_read_kind(table, gpus) for table in fields.tables("kinds")]
    named = {kind.name: kind for kind in kinds}
    if fields.wrong("kinds"):
        named[""] = NodeSpec(name="", gpus=(), links=(), host_memory_bytes=0.0)
    elif len(named) < len(kinds):
        fields.note("kinds", "has two kinds of node of the same name")
    return named


def _read_kind(fields: Fields, gpus: Mapping[str, Gpu]) -> NodeSpec:
    names = fields.texts("gpus")
    for index, name in enumerate(names):
        # A model without a name may be any of those asked for.
        if name not in gpus and name not in names[:index] and not fields.wrong("gpus") and "" not in gpus:
            fields.note(f"gpus[{index}]", f"there is no GPU model {name!r}; {near(name, gpus)}")
    rows = fields.values("nics") if fields.has("nics") else None
    spec = NodeSpec(
        name=fields.text("name"),
        gpus=tuple(gpus[name] for name in names if name in gpus),
        links=tuple(read_link(link) for link in fields.tables("links")),
        host_memory_bytes=fields.quantity("host_memory", BYTES),
        nics=None if rows is None else tuple(_nic_row(fields, index, row) for index, row in enumerate(rows)),
        nvlink_relay=fields.flag("nvlink_relay", True),
        nvls=fields.flag("nvls", True),
        source=fields.text("source", ""),
    )
    fields.finish()
    return spec


def _nic_row(fields: Fields, index: int, row: object) -> tuple[str, ...]:
    if not isinstance(row, list) or not all(isinstance(name, str) for name in row):
        fields.note(f"nics[{index}]", f"{row!r} is not a list of NIC names such as ['nic0']")
        return ()
    return tuple(row)


def dump_cluster(spec: ClusterSpec) -> str:
    """Return the explicit form of a cluster as TOML text that `parse_cluster` reads back equal."""
    kinds = _named_kinds(spec)
    gpus = {gpu.name: gpu for kind in kinds.values() for gpu in kind.gpus}
    table: dict[str, Any] = {
        "schema": 1,
        "name": spec.name,
        "backend": spec.backend,
        "nodes_per_domain": spec.nodes_per_domain,
        "assumptions": list(spec.assumptions),
        "groups": [_group_table(group, kinds) for group in spec.groups],
        "fabric": _fabric_table(spec.fabric),
        "constants": {name: _constant_table(constant) for name, constant in spec.constants.items()},
        "degrade": dict(spec.degrade),
        "gpus": [_gpu_table(gpu) for gpu in gpus.values()],
        "kinds": [_kind_table(name, kind) for name, kind in kinds.items()],
    }
    return tomli_w.dumps(table)


def _named_kinds(spec: ClusterSpec) -> dict[str, NodeSpec]:
    """The different kinds of node, each under a name of its own."""
    kinds: dict[str, NodeSpec] = {}
    for group in spec.groups:
        if group.node not in kinds.values():
            name = group.node.name
            kinds[name if name not in kinds else f"{name}-{len(kinds)}"] = group.node
    return kinds


def _group_table(group: NodeGroup, kinds: Mapping[str, NodeSpec]) -> dict[str, Any]:
    return {"kind": next(name for name, kind in kinds.items() if kind == group.node), "nodes": group.nodes}


def _fabric_table(fabric: Fabric) -> dict[str, Any]:
    table = {key: value for key, value in asdict(fabric).items() if value is not None}
    table["latency"] = _text(table.pop("latency_s"), SECONDS, "s", "us")
    return table if fabric.source else {key: value for key, value in table.items() if key != "source"}


def _constant_table(constant: Sourced) -> dict[str, Any]:
    return {"value": constant.value, "unit": constant.unit, "source": constant.source}


def _gpu_table(gpu: Gpu) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "architecture": gpu.architecture,
        "hbm": _text(gpu.hbm_bytes, BYTES, "B", "GiB"),
        "hbm_bandwidth": _text(gpu.hbm_bytes_per_s, BYTES_PER_S, "B/s", "GB/s"),
        "l2": _text(gpu.l2_bytes, BYTES, "B", "MiB"),
        "flops": {name: _text(rate, FLOPS, "FLOP/s", "TFLOP/s") for name, rate in gpu.flops.items()},
        "source": gpu.source,
    }


def _kind_table(name: str, kind: NodeSpec) -> dict[str, Any]:
    table: dict[str, Any] = {
        "name": name,
        "gpus": [gpu.name for gpu in kind.gpus],
        "host_memory": _text(kind.host_memory_bytes, BYTES, "B", "GiB"),
        "nvlink_relay": kind.nvlink_relay,
        "nvls": kind.nvls,
        "source": kind.source,
        "links": [_link_table(link) for link in kind.links],
    }
    return table if kind.nics is None else {**table, "nics": [list(row) for row in kind.nics]}


def _link_table(link: Link) -> dict[str, Any]:
    return {
        "src": link.src,
        "dst": link.dst,
        "kind": link.kind,
        "bandwidth": _text(link.bandwidth, BYTES_PER_S, "B/s", "GB/s"),
        "usable": _text(link.usable, BYTES_PER_S, "B/s", "GB/s"),
        "latency": _text(link.latency_s, SECONDS, "s", "us"),
        "source": link.source,
    }


def _text(value: float, units: dict[str, float], base: str, usual: str) -> str:
    """The value in its usual unit if that reads back to the same number, else in the base unit."""
    for unit in (usual, base):
        text = f"{value / units[unit]:.12g} {unit}"
        if math.isfinite(value) and parse_quantity(text, units) == value:
            return text
    return f"{value!r} {base}"
