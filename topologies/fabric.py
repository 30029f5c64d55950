"""All links of a cluster as arrays, and the bytes that flows put on them, by matrix products over equal nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.cabling import Cabling
from foreshard.topologies.placing import Placing
from foreshard.topologies.spines import Spines, only_where

__all__ = ["CompiledFabric", "HostRoute", "NodeLoads"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
HostRoute = Literal["to_device", "from_device"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Shares:
    """Share of the bytes on each link of a node: peer [gpus^2, links]; up, down, to_device, from_device [gpus, links];
    egress, ingress [slots][gpus, links]."""

    peer: FloatArray
    up: FloatArray
    down: FloatArray
    egress: tuple[FloatArray, ...]
    ingress: tuple[FloatArray, ...]
    to_device: FloatArray
    from_device: FloatArray


def _shares_of(at: Placing, kind: int) -> _Shares:
    routes = at.routes[kind]
    own = [at.own_slot(kind, slot) for slot in range(at.slots)]
    return _Shares(
        peer=routes.shares(route for row in routes.peer for route in row),
        up=routes.shares(routes.up),
        down=routes.shares(routes.down),
        egress=tuple(routes.shares(routes.egress[k]) / at.slots for k in own),
        ingress=tuple(routes.shares(routes.ingress[k]) / at.slots for k in own),
        to_device=routes.shares(routes.to_device),
        from_device=routes.shares(routes.from_device),
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


class NodeLoads(NamedTuple):
    """Bytes on links node by node: nodes[i], ascending, [n], has the entries first[i] to first[i + 1] of `nbytes` and
    of `links`, sorted, [entries]."""

    nodes: IntArray
    first: IntArray
    links: IntArray
    nbytes: FloatArray


class CompiledFabric:
    """Links as arrays and loads on them; node links first, leaf-spine links after them."""

    def __init__(self, at: Placing, cabling: Cabling, factors: FloatArray) -> None:
        self.at = at
        self.shares = [_shares_of(at, kind) for kind in range(len(at.kinds))]
        self.spines = Spines(cabling, at, factors[at.node_links :] > 0)
        self.bandwidth = self._all("bandwidth", cabling.bandwidth) * factors
        self.usable = self._all("usable", cabling.usable) * factors
        self.latency = self._all("latency_s", np.full(cabling.links, cabling.fabric.latency_s))
        self.kind = self._all("kind", np.full(cabling.links, "uplink"))
        # Cells of the pair table [gpus, gpus] of each node, so that mixed nodes share one flat array.
        cells = at.gpus_of**2
        self.first_cell = np.cumsum(cells) - cells
        self.cells = int(cells.sum())
        self.wide = bool(np.any(np.diff(at.domain_of_node) == 0))
        self.many = bool(at.domain_of_node[-1] > 0)

    def _all(self, field: str, uplinks: NDArray[Any]) -> NDArray[Any]:
        per_kind = [np.array([getattr(link, field) for link in kind.links]) for kind in self.at.kinds]
        return np.concatenate([*(per_kind[kind] for kind in self.at.kind_of), uplinks])

    # Paths

    def core_paths(self, slot: int, src: int, dst: int) -> list[tuple[tuple[int, ...], float]]:
        """Paths from the leaf of `src` to that of `dst` with their shares."""
        base = self.at.node_links
        return [(tuple(base + link for link in path), share) for path, share in self.spines.paths(slot, src, dst)]

    def path_latency(self, src: IntArray, dst: IntArray) -> FloatArray:
        """Latency between ranks in seconds, [flows]."""
        at = self.at
        out, into, up, down = (self._rank_latency(name) for name in ("egress", "ingress", "up", "down"))
        crossing = (out[:, src] + into[:, dst] + self.spines.latency_between(src, dst)).max(axis=0)
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
            up = _sums(s[other], b[other], ranks)
            down = _sums(d[other], b[other], ranks)
            s, d, b = s[~other], d[~other], b[~other]
        peer = _sums(self._cells(s, d), b, self.cells)
        if not self.many:
            return _Demand(
                peer=peer, up=up, down=down, out=np.zeros(ranks), into=np.zeros(ranks), core=self.spines.none()
            )
        crossing = np.where(inside, 0.0, nbytes)
        out = _sums(src, crossing, ranks)
        into = _sums(dst, crossing, ranks)
        return _Demand(peer=peer, up=up, down=down, out=out, into=into, core=self.spines.loads(src, dst, crossing))

    def outer_loads(self, ranks: IntArray, out: FloatArray, share: FloatArray) -> tuple[IntArray, FloatArray]:
        """Bytes per link of the flows out[s] * share[d], sparse."""
        size = len(self.at.node_of)
        sends, receives = np.zeros(size), np.zeros(size)
        sends[ranks], receives[ranks] = out, share
        to_node, to_all = self._beyond(receives)
        from_node, from_all = self._beyond(sends)
        demand = _Demand(
            peer=self._outer_cells(sends, receives),
            up=sends * to_node,
            down=receives * from_node,
            out=sends * to_all,
            into=receives * from_all,
            core=self.spines.outer_loads(sends, receives) if self.many else self.spines.none(),
        )
        return self._onto_links(demand)

    def _beyond(self, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sum of `weight` over the other nodes of each rank's domain and over all other domains, [ranks] each."""
        at = self.at

        def beyond(values: FloatArray) -> tuple[FloatArray, FloatArray]:
            in_node = _sums(at.node_of, values, 0)[at.node_of]
            in_domain = _sums(at.domain_of, values, 0)[at.domain_of]
            return in_domain - in_node, values.sum() - in_domain

        counts, sums = beyond(np.sign(weight)), beyond(weight)
        return only_where(counts[0], sums[0]), only_where(counts[1], sums[1])

    def _outer_cells(self, sends: FloatArray, receives: FloatArray) -> FloatArray:
        """out * share on every pair of GPUs of a node, [cells]."""
        at = self.at
        cells = np.empty(self.cells)
        for kind, spec in enumerate(at.kinds):
            nodes, gpus = at.nodes_of_kind(kind), np.arange(len(spec.gpus))
            ranks = at.first_rank[nodes][:, None] + gpus
            pairs = sends[ranks][:, :, None] * receives[ranks][:, None, :]
            cells[self.first_cell[nodes][:, None] + np.arange(len(gpus) ** 2)] = pairs.reshape(
                len(nodes), len(gpus) ** 2
            )
        return cells

    # Host memory

    def host_loads(self, name: HostRoute, ranks: IntArray, nbytes: FloatArray) -> NodeLoads:
        """What copies of nbytes[i] between ranks[i] and its nearest host memory put on links, for nodes with any."""
        at = self.at
        node = at.node_of[ranks]
        found: list[tuple[IntArray, IntArray, FloatArray]] = []
        for kind in np.unique(at.kind_of[node]).tolist():
            share: FloatArray = getattr(self.shares[kind], name)
            mine = at.kind_of[node] == kind
            nodes, row = np.unique(node[mine], return_inverse=True)
            held = np.zeros((len(nodes), len(share)))
            held[row, at.local_rank[ranks[mine]]] = nbytes[mine]
            total = held @ share
            which, local = np.nonzero(total)
            found.append((nodes[which], at.first_link[nodes[which]] + local, total[which, local]))
        none = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))
        owner, links, loads = (np.concatenate(column) for column in zip(none, *found, strict=True))
        order = np.argsort(links)
        reached, first = np.unique(owner[order], return_index=True)
        return NodeLoads(reached, np.append(first, len(links)), links[order], loads[order])

    def host_rate(self, name: HostRoute) -> FloatArray:
        """What a rank gets in B/s while all ranks copy and share links evenly, [ranks]; 0 without a path."""
        rate = np.zeros(len(self.at.node_of))
        for kind, shares in enumerate(self.shares):
            nodes = self.at.nodes_of_kind(kind)
            share: FloatArray = getattr(shares, name)
            usable = self.usable[self.at.first_link[nodes][:, None] + np.arange(share.shape[1])]
            fair = usable / np.maximum(share.sum(axis=0), 1.0)
            for gpu, crossed in enumerate(share > 0):
                rate[self.at.first_rank[nodes] + gpu] = fair[:, crossed].min(axis=1) if crossed.any() else 0.0
        return rate

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


def _sums(where: IntArray, weights: FloatArray, size: int) -> FloatArray:
    return np.bincount(where, weights, minlength=size).astype(np.float64, copy=False)
