"""All links of a cluster as arrays, and the bytes that flows put on them, by matrix products over equal nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.core import Core, build_core
from foreshard.topologies.machine import LEAF, SWITCH, ClusterSpec
from foreshard.topologies.placing import Placing

__all__ = ["CompiledFabric", "compile_fabric"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Shares:
    """Share of the bytes on each link of a node: peer [gpus^2, links]; up, down [gpus, links]; egress, ingress
    [slots][gpus, links]."""

    peer: FloatArray
    up: FloatArray
    down: FloatArray
    egress: tuple[FloatArray, ...]
    ingress: tuple[FloatArray, ...]


def _shares_of(at: Placing, kind: int) -> _Shares:
    routes = at.routes[kind]
    own = [slot * len(routes.egress) // at.slots for slot in range(at.slots)]
    return _Shares(
        peer=routes.shares(route for row in routes.peer for route in row),
        up=routes.shares(routes.up),
        down=routes.shares(routes.down),
        egress=tuple(routes.shares(routes.egress[k]) / at.slots for k in own),
        ingress=tuple(routes.shares(routes.ingress[k]) / at.slots for k in own),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Demand:
    """Bytes of flows by where they go: peer [cells] on pairs of GPUs of a node, up and down [ranks] on the domain's
    NVSwitch, out and into [ranks] on the fabric, core links beyond the leaf [links]."""

    peer: FloatArray
    up: FloatArray
    down: FloatArray
    out: FloatArray
    into: FloatArray
    core: FloatArray


class CompiledFabric:
    """Links as arrays and loads on them; node links first, leaf-spine links after them."""

    def __init__(self, spec: ClusterSpec, at: Placing) -> None:
        self.at = at
        self.shares = [_shares_of(at, kind) for kind in range(len(at.kinds))]
        self.core: Core = build_core(spec, at)
        self.bandwidth = np.concatenate([self._tiled("bandwidth"), self.core.bandwidth])
        self.usable = np.concatenate([self._tiled("usable"), self.core.usable])
        self.latency = np.concatenate([self._tiled("latency_s"), np.full(len(self.core.usable), self.core.latency_s)])
        self.kind = np.concatenate([self._tiled("kind"), np.full(len(self.core.usable), "uplink")])
        # Cells of the pair table [gpus, gpus] of each node, so that mixed nodes share one flat array.
        cells = at.gpus_of**2
        self.first_cell = np.cumsum(cells) - cells
        self.cells = int(cells.sum())
        self.wide = bool(np.any(np.diff(at.domain_of_node) == 0))
        self.many = bool(at.domain_of_node[-1] > 0)

    def _tiled(self, field: str) -> NDArray[np.generic]:
        per_kind = [np.array([getattr(link, field) for link in kind.links]) for kind in self.at.kinds]
        return np.concatenate([per_kind[kind] for kind in self.at.kind_of])

    # Names

    def ends(self, link: int) -> tuple[str, str]:
        """Names of the two ends of a link."""
        if link >= self.at.node_links:
            return self.core.ends(link - self.at.node_links)
        node, local = self._local(link)
        ends = self.at.kinds[self.at.kind_of[node]].links[local]
        return self._end(node, ends.src, ends.dst), self._end(node, ends.dst, ends.src)

    def _local(self, link: int) -> tuple[int, int]:
        node = int(np.searchsorted(self.at.first_link, link, side="right")) - 1
        return node, link - int(self.at.first_link[node])

    def _end(self, node: int, end: str, other: str) -> str:
        if end == LEAF:
            return f"leaf{self.core.leaf_of_nic(node, other)}"
        if end == SWITCH:
            return f"domain{self.at.domain_of_node[node]}/nvswitch"
        return f"node{node}/{end}"

    def source(self, link: int) -> str:
        """Source of a link's numbers."""
        if link >= self.at.node_links:
            return self.core.source
        node, local = self._local(link)
        return self.at.kinds[self.at.kind_of[node]].links[local].source

    # Paths

    def core_paths(self, slot: int, src: int, dst: int) -> list[tuple[tuple[int, ...], float]]:
        """Paths from the leaf of `src` to that of `dst` with their shares."""
        base = self.at.node_links
        return [(tuple(base + link for link in path), share) for path, share in self.core.paths(slot, src, dst)]

    def path_latency(self, src: IntArray, dst: IntArray) -> FloatArray:
        """Latency between ranks in seconds, [flows]."""
        at = self.at
        out, into, up, down = (self._rank_latency(name) for name in ("egress", "ingress", "up", "down"))
        crossing = (out[:, src] + into[:, dst] + self.core.latency_between(src, dst)).max(axis=0)
        cells = self._cells(src, dst)
        same_node = at.node_of[src] == at.node_of[dst]
        inside = np.where(same_node, self._cell_latency()[np.where(same_node, cells, 0)], up[0, src] + down[0, dst])
        return np.where(at.domain_of[src] == at.domain_of[dst], inside, crossing)

    def _node_latency(self, node_kind: int) -> FloatArray:
        return np.array([link.latency_s for link in self.at.kinds[node_kind].links])

    def _rank_latency(self, name: str) -> FloatArray:
        """Latency of a kind of route of each rank, [slots, ranks]."""
        per_kind = []
        for kind, shares in enumerate(self.shares):
            matrices = getattr(shares, name)
            matrices = matrices if isinstance(matrices, tuple) else (matrices,)
            per_kind.append([(matrix > 0) @ self._node_latency(kind) for matrix in matrices])
        slots = len(per_kind[0])
        return np.array([np.concatenate([per_kind[kind][slot] for kind in self.at.kind_of]) for slot in range(slots)])

    def _cell_latency(self) -> FloatArray:
        per_kind = [shares.peer @ self._node_latency(kind) for kind, shares in enumerate(self.shares)]
        return np.concatenate([per_kind[kind] for kind in self.at.kind_of])

    def _cells(self, src: IntArray, dst: IntArray) -> IntArray:
        """Flat number of the pair in its node's table; only meaningful for ranks of one node, [flows]."""
        at = self.at
        node = at.node_of[src]
        return self.first_cell[node] + at.local_rank[src] * at.gpus_of[node] + at.local_rank[dst]

    # Loads

    def loads(self, src: IntArray, dst: IntArray, nbytes: FloatArray) -> tuple[IntArray, FloatArray]:
        """Bytes per link of flows, sparse."""
        return self._onto_links(self._sort_flows(src, dst, nbytes))

    def _sort_flows(self, src: IntArray, dst: IntArray, nbytes: FloatArray) -> _Demand:
        at, ranks = self.at, len(self.at.node_of)
        inside = at.domain_of[src] == at.domain_of[dst] if self.many else np.ones(len(src), dtype=bool)
        local = np.flatnonzero(inside)
        s, d, b = (src[local], dst[local], nbytes[local]) if self.many else (src, dst, nbytes)
        up = down = np.zeros(ranks)
        if self.wide:
            other = at.node_of[s] != at.node_of[d]
            up = np.bincount(s[other], b[other], minlength=ranks)
            down = np.bincount(d[other], b[other], minlength=ranks)
            s, d, b = s[~other], d[~other], b[~other]
        peer = np.bincount(self._cells(s, d), b, minlength=self.cells)
        if not self.many:
            return _Demand(
                peer=peer, up=up, down=down, out=np.zeros(ranks), into=np.zeros(ranks), core=self.core.none()
            )
        crossing = np.where(inside, 0.0, nbytes)
        out = np.bincount(src, crossing, minlength=ranks)
        into = np.bincount(dst, crossing, minlength=ranks)
        return _Demand(peer=peer, up=up, down=down, out=out, into=into, core=self.core.loads(src, dst, crossing))

    def outer_loads(self, ranks: IntArray, out: FloatArray, share: FloatArray) -> tuple[IntArray, FloatArray]:
        """Bytes per link of the flows out[s] * share[d], sparse."""
        at, size = self.at, len(self.at.node_of)
        sends, receives = np.zeros(size), np.zeros(size)
        sends[ranks], receives[ranks] = out, share
        nodes, domains = len(at.kind_of), int(at.domain_of_node[-1]) + 1
        node_out, node_in = (np.bincount(at.node_of, v, minlength=nodes)[at.node_of] for v in (sends, receives))
        dom_out, dom_in = (np.bincount(at.domain_of, v, minlength=domains)[at.domain_of] for v in (sends, receives))
        demand = _Demand(
            peer=self._outer_cells(sends, receives),
            up=sends * (dom_in - node_in),
            down=receives * (dom_out - node_out),
            out=sends * (receives.sum() - dom_in) if self.many else np.zeros(size),
            into=receives * (sends.sum() - dom_out) if self.many else np.zeros(size),
            core=self.core.outer_loads(sends, receives) if self.many else self.core.none(),
        )
        return self._onto_links(demand)

    def _outer_cells(self, sends: FloatArray, receives: FloatArray) -> FloatArray:
        """out * share on every pair of GPUs of a node, [cells]."""
        at = self.at
        cells = np.empty(self.cells)
        for kind, spec in enumerate(at.kinds):
            nodes, gpus = at.nodes_of_kind(kind), np.arange(len(spec.gpus))
            ranks = at.first_rank[nodes][:, None] + gpus
            pairs = sends[ranks][:, :, None] * receives[ranks][:, None, :]
            cells[self.first_cell[nodes][:, None] + np.arange(len(gpus) ** 2)] = pairs.reshape(len(nodes), -1)
        return cells

    def _onto_links(self, demand: _Demand) -> tuple[IntArray, FloatArray]:
        total = np.zeros(len(self.usable))
        total[self.at.node_links :] = demand.core
        for kind, shares in enumerate(self.shares):
            nodes = self.at.nodes_of_kind(kind)
            where = self.at.first_link[nodes][:, None] + np.arange(shares.peer.shape[1])
            total[where] = self._on_nodes(demand, nodes, shares)
        loaded = np.flatnonzero(total > 0)
        return loaded, total[loaded]

    def _on_nodes(self, demand: _Demand, nodes: IntArray, shares: _Shares) -> FloatArray:
        """Bytes on each link of equal nodes, [nodes, links]."""
        ranks = self.at.first_rank[nodes][:, None] + np.arange(len(shares.up))
        cells = self.first_cell[nodes][:, None] + np.arange(len(shares.peer))
        total: FloatArray = demand.peer[cells] @ shares.peer
        if self.wide:
            total += demand.up[ranks] @ shares.up + demand.down[ranks] @ shares.down
        if self.many:
            total += demand.out[ranks] @ sum(shares.egress) + demand.into[ranks] @ sum(shares.ingress)
        return total


def compile_fabric(spec: ClusterSpec, at: Placing) -> CompiledFabric:
    """Return the links and loads of a placed cluster."""
    return CompiledFabric(spec, at)
