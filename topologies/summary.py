"""What a cluster resolves to, as plain data for JSON and as text a person can read."""

from __future__ import annotations

import html
import re
from collections import Counter
from typing import Any

import numpy as np
from tabulate import tabulate

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.machine import LEAF, SWITCH, Gpu, Link
from foreshard.topologies.units import format_bytes

__all__ = ["describe", "describe_html", "describe_text"]

_MOST_NAMED = 12


def describe(cluster: Cluster) -> dict[str, Any]:
    """Return everything a cluster resolves to in base units (bytes, B/s, seconds), ready for JSON."""
    return {
        "name": cluster.name,
        "backend": cluster.backend,
        "nodes": cluster.nodes,
        "ranks": cluster.size,
        "local_world_size": cluster.local_world_size,
        "domains": int(cluster.domain_of.max()) + 1,
        "links": len(cluster.link_usable),
        "node_kinds": _kinds(cluster),
        "gpus": [_gpu(gpu) for gpu in cluster.gpus],
        "fabric": _fabric(cluster),
        "link_kinds": _link_rows(cluster),
        "bandwidth": _bandwidths(cluster),
        "degraded": _degraded(cluster),
        "constants": [
            {"name": name, "value": c.value, "unit": c.unit, "source": c.source}
            for name, c in sorted(cluster.constants.items())
        ],
        "sources": _sources(cluster),
        "assumptions": list(cluster.assumptions),
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "architecture": gpu.architecture,
        "hbm_bytes": gpu.hbm_bytes,
        "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        "l2_bytes": gpu.l2_bytes,
        "flops": dict(gpu.flops),
    }


def _kinds(cluster: Cluster) -> list[dict[str, Any]]:
    """Each group of equal nodes with the number of its devices by kind."""
    rows = []
    for group in cluster.spec.groups:
        devices = Counter(_kind_of(name) for name in group.node.devices)
        models = sorted({gpu.name for gpu in group.node.gpus})
        rows.append(
            {
                "nodes": group.nodes,
                "gpu_models": models,
                "devices": dict(sorted(devices.items())),
                "host_memory_bytes": group.node.host_memory_bytes,
            }
        )
    return rows


def _kind_of(device: str) -> str:
    outside = {LEAF: "leaf", SWITCH: "domain nvswitch"}
    return outside.get(device) or re.sub(r"\d+$", "", device)


def _fabric(cluster: Cluster) -> dict[str, Any]:
    fabric = cluster.spec.fabric
    leaves, uplinks = cluster.leaves, cluster.link_kind == "uplink"
    return {
        "kind": fabric.kind,
        "leaves": leaves,
        "spines": fabric.spines if leaves > 1 else 0,
        "nodes_per_leaf": fabric.nodes_per_leaf,
        "oversubscription": fabric.oversubscription if leaves > 1 else 1.0,
        "uplink_bytes_per_s": float(cluster.link_bandwidth[uplinks].sum()) / 2,
        "routing": fabric.routing,
    }


def _link_rows(cluster: Cluster) -> list[dict[str, Any]]:
    """Links with the same kind of ends and the same numbers, before any degradation, with their count."""
    counts: Counter[tuple[str, str, str, float, float, float]] = Counter()
    for group in cluster.spec.groups:
        for link in group.node.links:
            counts[_row_key(link)] += group.nodes
    for link in cluster.uplinks():
        counts[_row_key(link)] += 1
    keys = ("src", "dst", "kind", "bandwidth_bytes_per_s", "usable_bytes_per_s", "latency_s")
    return [{**dict(zip(keys, row, strict=True)), "count": count} for row, count in counts.items()]


def _row_key(link: Link) -> tuple[str, str, str, float, float, float]:
    return (_kind_of(link.src), _kind_of(link.dst), link.kind, link.bandwidth, link.usable, link.latency_s)


def _bandwidths(cluster: Cluster) -> dict[str, float]:
    """Bisection of the ranks in both measures and host copies of the slowest rank, in B/s per direction."""
    return {
        "bisection_bytes_per_s": _bisection(cluster, cluster.link_bandwidth),
        "bisection_usable_bytes_per_s": _bisection(cluster, cluster.link_usable),
        "host_to_device_bytes_per_s": float(cluster.host_to_device_bytes_per_s.min()),
    }


def _bisection(cluster: Cluster, capacity: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """What the first half of the ranks can send to the second half, each rank to each evenly, in B/s.

    The rate at which the busiest link of the routes is full: it sees shared NICs, oversubscription and damage.
    """
    half = cluster.size // 2
    if half == 0:
        return 0.0
    ranks = np.arange(cluster.size)
    out, share_of = np.where(ranks < half, 1.0 / half, 0.0), np.where(ranks < half, 0.0, 1.0 / (cluster.size - half))
    links, share = cluster.outer_loads(ranks, out, share_of)
    return float((capacity[links] / share).min())


def _degraded(cluster: Cluster) -> list[dict[str, Any]]:
    changed = np.flatnonzero(cluster.link_factor != 1.0)
    return [{"link": cluster.link_name(int(i)), "factor": float(cluster.link_factor[i])} for i in changed]


def _sources(cluster: Cluster) -> dict[str, str]:
    sources = {gpu.name: gpu.source for gpu in cluster.gpus}
    for index, group in enumerate(cluster.spec.groups):
        sources["nodes" if len(cluster.spec.groups) == 1 else f"nodes of group {index}"] = group.node.source
        for link in group.node.links:
            sources.setdefault(f"{link.kind} {_gb(link.bandwidth)} GB/s", link.source)
    sources["fabric"] = cluster.spec.fabric.source
    return {name: source for name, source in sources.items() if source}


def describe_text(cluster: Cluster) -> str:
    """Return the same as a report a person can read."""
    data = describe(cluster)
    parts = [
        _head(data),
        tabulate(_link_table(data["link_kinds"]), headers="firstrow", disable_numparse=True, colalign=_ALIGN),
        _bandwidth_text(data),
        _listed("Degraded links", [f"{d['link']}  x {d['factor']:g}" for d in data["degraded"]]),
        _listed("Constants", [_constant(c) for c in data["constants"]], most=None),
        _listed("Assumptions", data["assumptions"], most=None),
        _listed("Sources", [f"{name}: {source}" for name, source in data["sources"].items()], most=None),
    ]
    return "\n\n".join(part for part in parts if part)


def describe_html(cluster: Cluster) -> str:
    """Return the head, the table of links and the bandwidths as HTML, for notebooks."""
    data = describe(cluster)
    table = tabulate(_link_table(data["link_kinds"]), headers="firstrow", tablefmt="html", disable_numparse=True)
    lines = [*_head(data).splitlines(), *_bandwidth_text(data).splitlines()]
    text = "".join(f"<div>{html.escape(line)}</div>" for line in lines)
    return f'<div style="font-size: 90%">{text}{table}</div>'


_ALIGN = ("left", "left", "right", "right", "right", "right")


def _head(data: dict[str, Any]) -> str:
    ranks_per_domain = data["ranks"] // data["domains"]
    lines = [
        f"{data['name']}: {_count(data['nodes'], 'node')}, {_count(data['ranks'], 'rank')}, "
        f"{_count(data['links'], 'directed link')}, {data['backend']}; {_count(data['domains'], 'domain')} of "
        f"{ranks_per_domain} ranks that reach each other without a NIC"
    ]
    for gpu in data["gpus"]:
        flops = ", ".join(f"{name} {rate / 1e12:g}" for name, rate in gpu["flops"].items())
        memory = f"{format_bytes(gpu['hbm_bytes'])} at {gpu['hbm_bytes_per_s'] / 1e9:,.0f} GB/s"
        label = "CPU   " if gpu["architecture"] == "cpu" else "GPU   "
        lines.append(f"{label}  {gpu['name']}: {memory}, L2 {format_bytes(gpu['l2_bytes'])}, dense TFLOP/s: {flops}")
    for kind in data["node_kinds"]:
        devices = ", ".join(f"{count} {name}" for name, count in kind["devices"].items() if name != "mem")
        lines.append(f"nodes   {kind['nodes']} x {devices}; {format_bytes(kind['host_memory_bytes'])} host memory")
    return "\n".join([*lines, _fabric_text(data["fabric"])])


def _fabric_text(fabric: dict[str, Any]) -> str:
    text = f"fabric  {fabric['kind']}: {_count(fabric['leaves'], 'leaf switch')}"
    if fabric["leaves"] > 1:
        text += (
            f", {_count(fabric['spines'], 'spine')}, oversubscription {fabric['oversubscription']:g}, "
            f"{_gb(fabric['uplink_bytes_per_s'])} GB/s of uplinks in all"
        )
    return text


def _link_table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Both directions in one row where they are alike."""
    table: dict[tuple[str, ...], int] = {}
    for row in rows:
        ends = sorted((row["src"], row["dst"]))
        key = (
            f"{ends[0]} - {ends[1]}",
            row["kind"],
            _gb(row["bandwidth_bytes_per_s"]),
            _gb(row["usable_bytes_per_s"]),
            f"{row['latency_s'] * 1e6:g}",
        )
        table[key] = table.get(key, 0) + row["count"]
    head = ["between", "kind", "directed links", "nominal GB/s", "usable GB/s", "latency us"]
    return [head, *([key[0], key[1], f"{count:,}", *key[2:]] for key, count in table.items())]


def _gb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.4g}" if bytes_per_s < 1e13 else f"{bytes_per_s / 1e9:,.0f}"


def _bandwidth_text(data: dict[str, Any]) -> str:
    bandwidth = data["bandwidth"]
    nominal, usable = bandwidth["bisection_bytes_per_s"], bandwidth["bisection_usable_bytes_per_s"]
    per_rank = usable / max(data["ranks"] // 2, 1)
    return (
        f"Bisection (first half of the ranks to the second, per direction): {_gb(nominal)} GB/s nominal, "
        f"{_gb(usable)} usable, {_gb(per_rank)} a rank\n"
        f"Host to device, all ranks at once: {_gb(bandwidth['host_to_device_bytes_per_s'])} GB/s a rank"
    )


def _constant(constant: dict[str, Any]) -> str:
    unit = "" if constant["unit"] == "1" else f" {constant['unit']}"
    return f"{constant['name']} = {constant['value']:g}{unit}  ({constant['source']})"


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _listed(title: str, lines: list[str], most: int | None = _MOST_NAMED) -> str:
    if not lines:
        return ""
    shown = lines[:most]
    rest = [f"... and {len(lines) - len(shown)} more"] if len(lines) > len(shown) else []
    return "\n".join([f"{title}:", *(f"  - {line}" for line in [*shown, *rest])])
