"""Where the boxes of a cluster's drawing stand: one or two nodes, their devices in rows, the switches above."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.machine import Link

__all__ = ["Box", "Layout", "device_kind", "device_number", "shown_nodes"]

# Rows from the bottom up, each with its distance to the row below.
_ROWS = {"nvswitch": 0.0, "gpu": 1.4, "pcie": 1.5, "cpu": 1.35, "mem": 0.85, "nic": 1.15, "leaf": 1.5, "spine": 1.3}
_MOST_SWITCHES = 16
_COLUMN = 1.5
_HALF_WIDTH = 0.62
Box = tuple[float, float, float]
"""Middle x, y and half the width."""


def shown_nodes(cluster: Cluster) -> tuple[int, ...]:
    """The first node and one that differs most from it: of another kind, else on another leaf, else the next."""
    if cluster.nodes == 1:
        return (0,)
    first = cluster.spec.groups[0].nodes
    other_kind = first if first < cluster.nodes else None
    per_leaf = cluster.spec.fabric.nodes_per_leaf
    other_leaf = per_leaf if per_leaf is not None and per_leaf < cluster.nodes else None
    return (0, other_kind or other_leaf or 1)


class Layout:
    """Boxes and links of the drawn part; every box is (x of its middle, y, half its width)."""

    def __init__(self, cluster: Cluster, nodes: tuple[int, ...]) -> None:
        self.cluster, self.nodes = cluster, nodes
        self.boxes: dict[str, Box] = {}
        self.links = self._drawn_links()
        names = dict.fromkeys(end for _, link in self.links for end in (link.src, link.dst))
        self.rows = _used_rows({device_kind(name) for name in names})
        self.frames: list[tuple[int, float, float]] = []
        left = 0.0
        for node in nodes:
            inside = [name for name in names if name.startswith(f"node{node}/")]
            right = left + self._place_node(node, inside, left)
            self.frames.append((node, left, right))
            left = right + 1.2
        self.width = left - 1.2
        self._place_outside([name for name in names if not name.startswith("node")])

    def _drawn_links(self) -> list[tuple[int, Link]]:
        """One link of every pair of directions of the drawn nodes and of the switches they are cabled to."""
        numbers = [int(i) for node in self.nodes for i in self.cluster.links_of_node(node)]
        links = [(i, self.cluster.link(i)) for i in numbers]
        leaves = {end for _, link in links for end in (link.src, link.dst) if end.startswith("leaf")}
        first_uplink = len(self.cluster.link_usable) - len(self.cluster.uplinks())
        uplinks = [(i, self.cluster.link(i)) for i in range(first_uplink, len(self.cluster.link_usable))]
        links += [(i, link) for i, link in uplinks if link.src in leaves]
        seen: set[frozenset[str]] = set()
        kept = []
        for number, link in links:
            pair = frozenset((link.src, link.dst))
            if pair not in seen:
                seen.add(pair)
                kept.append((number, link))
        return kept

    def _place_node(self, node: int, names: list[str], left: float) -> float:
        """Put a node's devices on rows: GPUs evenly, switches and CPUs over what hangs on them, NICs over those."""
        devices: dict[str, list[str]] = defaultdict(list)
        for name in sorted(names, key=device_number):
            devices[device_kind(name)].append(name)
        width = _COLUMN * max(len(devices["gpu"]), len(devices["nic"]), 2 * len(devices["cpu"]), 2)
        for i, name in enumerate(devices["gpu"]):
            self.boxes[name] = (left + width * (i + 0.5) / len(devices["gpu"]), self.rows["gpu"], _HALF_WIDTH)
        edges = (left, left + width)
        self._row("pcie", {n: self._middle_of(n, ("gpu",), edges) for n in devices["pcie"]}, edges, _COLUMN)
        self._row("cpu", {n: self._middle_of(n, ("gpu", "pcie"), edges) for n in devices["cpu"]}, edges, 2 * _COLUMN)
        self._row("nic", self._over_parents(devices["nic"], edges), edges, _COLUMN)
        self._place_memory(devices["mem"])
        for name in devices["nvswitch"]:
            self.boxes[name] = (left + width / 2, self.rows["nvswitch"], width / 2 - 0.1)
        return width

    def _row(self, kind: str, wanted: dict[str, float], edges: tuple[float, float], gap: float) -> None:
        """Put devices of a kind near where they are wanted, in that order and at least `gap` apart."""
        names = sorted(wanted, key=lambda name: (wanted[name], device_number(name)))
        gap = min(gap, (edges[1] - edges[0]) / max(len(names), 1))
        at: list[float] = []
        for name in names:
            at.append(max([wanted[name], edges[0] + gap / 2, *(x + gap for x in at[-1:])]))
        limit = edges[1] - gap / 2
        for i in reversed(range(len(at))):
            at[i] = min(at[i], limit)
            limit = at[i] - gap
        half = 0.42 if kind == "cpu" else min(_HALF_WIDTH, gap / 2 - 0.1)
        for name, x in zip(names, at, strict=True):
            self.boxes[name] = (x, self.rows[kind], half)

    def _over_parents(self, nics: list[str], edges: tuple[float, float]) -> dict[str, float]:
        """Where NICs are wanted: side by side over the switch or CPU that they hang on."""
        parent = {nic: self._middle_of(nic, ("pcie", "cpu"), edges) for nic in nics}
        wanted = {}
        for nic in nics:
            together = [other for other in nics if parent[other] == parent[nic]]
            wanted[nic] = parent[nic] + (together.index(nic) - (len(together) - 1) / 2) * _COLUMN
        return wanted

    def _place_memory(self, names: list[str]) -> None:
        """Host memory above its CPU, or beside that where NICs hang on the CPU and their lines need the place."""
        nic_at_cpu = any({device_kind(link.src), device_kind(link.dst)} == {"nic", "cpu"} for _, link in self.links)
        for name in names:
            x, _, half = self.boxes[name.replace("mem", "cpu")]
            self.boxes[name] = (x + (0.95 if nic_at_cpu else 0.0), self.rows["mem"], half)

    def _middle_of(self, name: str, kinds: Iterable[str], edges: tuple[float, float]) -> float:
        """Middle of the boxes of some kinds that are linked to a device, the middle of the node if there are none."""
        ends = (link.dst if link.src == name else link.src for _, link in self.links if name in (link.src, link.dst))
        found = [self.boxes[end][0] for end in ends if end in self.boxes and device_kind(end) in kinds]
        return float(np.mean(found)) if found else sum(edges) / 2

    def _place_outside(self, names: list[str]) -> None:
        for kind in ("leaf", "spine"):
            ordered = sorted((name for name in names if device_kind(name) == kind), key=device_number)[:_MOST_SWITCHES]
            half = self.width / max(len(ordered), 1) / 2 - 0.12
            for i, name in enumerate(ordered):
                self.boxes[name] = (self.width * (i + 0.5) / len(ordered), self.rows[kind], half)
        for name in (name for name in names if device_kind(name) == "nvswitch"):
            below = [self.boxes[end][0] for _, link in self.links for end in (link.src,) if link.dst == name]
            middle, half = (min(below) + max(below)) / 2, (max(below) - min(below)) / 2 + 0.62
            self.boxes[name] = (middle, self.rows["nvswitch"], half)

    @property
    def hanging(self) -> float:
        """Room below the lowest row: links between GPUs hang there in curves."""
        mesh = any(device_kind(link.src) == device_kind(link.dst) == "gpu" for _, link in self.links)
        return 1.25 if mesh else 0.45

    @property
    def bottom(self) -> float:
        """Lowest point of the drawing."""
        return min(y for _, y, _ in self.boxes.values()) - self.hanging

    @property
    def height(self) -> float:
        """Height from the lowest to the highest row, with what hangs below."""
        return max(y for _, y, _ in self.boxes.values()) - self.bottom


def _used_rows(kinds: set[str]) -> dict[str, float]:
    """Height of each row that is used; unused ones take no room."""
    rows: dict[str, float] = {}
    y = 0.0
    for kind, distance in _ROWS.items():
        if kind in kinds:
            y += distance if rows else 0.0
            rows[kind] = y
    return rows


def device_kind(name: str) -> str:
    """Kind of a device by its name, as "gpu" of "node0/gpu3"."""
    return name.split("/")[-1].rstrip("0123456789")


def device_number(name: str) -> int:
    """Number of a device by its name, as 3 of "node0/gpu3"."""
    digits = name.split("/")[-1].lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) if digits else 0
