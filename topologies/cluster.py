"""A compiled cluster: ranks, links and routes as integer arrays; what flows load which links with how many bytes.

A node's routes are computed once per kind of node; link `i` of node `n` has the number `first_link[n] + i`, the
links between leaf and spine switches follow at the end. A route is egress (gpu .. nic .. leaf), core (leaf to leaf
over the spines) and ingress, so no table over pairs of ranks exists.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.cabling import cable
from foreshard.topologies.errors import InputError, NoRouteError
from foreshard.topologies.fabric import CompiledFabric, HostRoute, NodeLoads
from foreshard.topologies.machine import ClusterSpec, Gpu, Link, NodeSpec, Sourced
from foreshard.topologies.naming import Naming, damage_of
from foreshard.topologies.placing import Placing, name_ranks, place
from foreshard.topologies.routes import Route
from foreshard.topologies.spec_checks import spec_problems

__all__ = ["Cluster", "ClusterSpec", "Gpu", "HostRoute", "Link", "NodeLoads", "Sourced"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Cluster:
    """A cluster ready for simulation; see `ClusterSpec` for what it is compiled from (kept as `spec`)."""

    def __init__(self, spec: ClusterSpec) -> None:
        problems = spec_problems(spec)
        if problems:
            raise InputError(problems, where=f"cluster {spec.name!r}")
        self.spec = spec
        self._at: Placing = place(spec)
        self._cabling = cable(spec.fabric, self._at)
        self._naming = Naming(self._at, self._cabling)
        self._factors = self._damage()
        self._fabric = CompiledFabric(self._at, self._cabling, self._factors)
        self._check_routes()

    def _damage(self) -> FloatArray:
        """Factor on each link's bandwidth, [links]; nodes that lack links are placed again without them."""
        links = self._at.node_links + self._cabling.links
        if not self.spec.degrade:
            return np.ones(links)
        problems: list[str] = []
        factors = damage_of(self._naming, self.spec.degrade, problems)
        if problems:
            raise InputError(problems, where=f"cluster {self.name!r}")
        missing: dict[int, frozenset[int]] = {}
        for link in np.flatnonzero(factors[: self._at.node_links] == 0):
            node, local = self._at.node_and_local(int(link))
            missing[node] = missing.get(node, frozenset()) | {local}
        self._at = place(self.spec, missing)
        self._naming = Naming(self._at, self._cabling)
        return factors

    def __repr__(self) -> str:
        return f"Cluster({self.name!r}, nodes={self.nodes}, ranks={self.size}, links={len(self.link_usable)})"

    def _repr_html_(self) -> str:
        """The summary as a notebook shows it."""
        from foreshard.topologies.summary import describe_html

        return describe_html(self)

    # What the cluster is

    @property
    def name(self) -> str:
        """Name of the preset or cluster file."""
        return self.spec.name

    @property
    def backend(self) -> str:
        """Communication library, "nccl" or "gloo"."""
        return self.spec.backend

    @property
    def on_cpu(self) -> bool:
        """Whether ranks are processes on CPUs, whose host thread does the work."""
        return self.gpus[0].architecture == "cpu"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What had to be assumed about this machine, one sentence each."""
        return self.spec.assumptions

    @property
    def constants(self) -> Mapping[str, Sourced]:
        """Constants of this machine that costs and collectives use, with their sources."""
        return self.spec.constants

    def with_constants(self, constants: Mapping[str, Sourced]) -> Cluster:
        """The same cluster, compiled once, with these constants in place of or beside its own."""
        changed = copy.copy(self)
        changed.spec = replace(self.spec, constants={**self.spec.constants, **constants})
        return changed

    def mended(self, pattern: str) -> Cluster:
        """The same cluster without the damage of one pattern of its `degrade`."""
        others = {name: factor for name, factor in self.spec.degrade.items() if name != pattern}
        return Cluster(replace(self.spec, degrade=others))

    def constant(self, name: str) -> float:
        """Value of a constant in its base unit. Raises InputError if this machine has none of that name."""
        if name not in self.constants:
            raise InputError(f"cluster {self.name!r} has no constant {name!r}; it has {sorted(self.constants)}")
        return self.constants[name].value

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self._at.kind_of)

    @property
    def size(self) -> int:
        """Number of ranks, one per GPU."""
        return len(self.node_of)

    @property
    def local_world_size(self) -> int:
        """Ranks of a node; of the largest node where they differ."""
        return int(self._at.gpus_of.max())

    @property
    def node_of(self) -> IntArray:
        """Node of each rank, [ranks]."""
        return self._at.node_of

    @property
    def local_rank(self) -> IntArray:
        """Position of each rank in its node, [ranks]."""
        return self._at.local_rank

    @property
    def domain_of(self) -> IntArray:
        """Domain of each rank, [ranks]: ranks of one domain reach each other without a NIC (a node, or an NVLink
        domain of several nodes)."""
        return self._at.domain_of

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPU models that occur."""
        return tuple({gpu.name: gpu for group in self.spec.groups for gpu in group.node.gpus}.values())

    @cached_property
    def gpu_index(self) -> IntArray:
        """Index into `gpus` of each rank, [ranks]."""
        index = {gpu.name: i for i, gpu in enumerate(self.gpus)}
        per_kind = [[index[gpu.name] for gpu in kind.gpus] for kind in self._at.kinds]
        return np.array([i for kind in self._at.kind_of for i in per_kind[kind]], dtype=np.int64)

    def gpu(self, rank: int) -> Gpu:
        """The GPU model of a rank."""
        return self.gpus[int(self.gpu_index[rank])]

    @cached_property
    def host_memory_bytes(self) -> FloatArray:
        """Host memory of each node in bytes, [nodes]."""
        return np.array([kind.host_memory_bytes for kind in self._at.kinds])[self._at.kind_of]

    @cached_property
    def host_to_device_bytes_per_s(self) -> FloatArray:
        """What a copy from the nearest host memory to each rank's GPU carries in B/s, [ranks], while all ranks copy
        and share links evenly; 0 without a path."""
        return self._fabric.host_rate("to_device")

    @cached_property
    def device_to_host_bytes_per_s(self) -> FloatArray:
        """What a copy from each rank's GPU to the nearest host memory carries in B/s, [ranks], while all ranks copy
        and share links evenly; 0 without a path."""
        return self._fabric.host_rate("from_device")

    @cached_property
    def nvls(self) -> NDArray[np.bool_]:
        """Whether switches of each node may add up, [nodes]; see `NodeSpec.nvls`."""
        return np.array([kind.nvls for kind in self._at.kinds])[self._at.kind_of]

    # Links

    @property
    def link_bandwidth(self) -> FloatArray:
        """Nominal bandwidth of each directed link in B/s, [links]."""
        return self._fabric.bandwidth

    @property
    def link_usable(self) -> FloatArray:
        """What each directed link really carries in B/s, [links]."""
        return self._fabric.usable

    @property
    def link_latency(self) -> FloatArray:
        """Latency of each link in seconds, [links]."""
        return self._fabric.latency

    @property
    def link_kind(self) -> NDArray[np.str_]:
        """Kind of each link, [links]."""
        return self._fabric.kind

    @property
    def link_factor(self) -> FloatArray:
        """What is left of each link's bandwidth after degradation, [links]: 1 whole, 0 missing."""
        return self._factors

    def is_kind(self, kind: str) -> NDArray[np.bool_]:
        """Whether each link is of a kind, [links]; kept, since comparing words takes long."""
        kinds = self.__dict__.setdefault("_of_kind", {})
        if kind not in kinds:
            kinds[kind] = self.link_kind == kind
        of_kind: NDArray[np.bool_] = kinds[kind]
        return of_kind

    @cached_property
    def alike(self) -> IntArray:
        """A number for each node, equal for nodes whose links are equal one by one, damage included, [nodes]."""
        numbers: dict[tuple[int, bytes], int] = {}
        whole = [(kind, b"") for kind in self._at.kind_of.tolist()]
        damaged = np.flatnonzero(self._factors[: self._at.node_links] < 1)
        for node in np.unique(np.searchsorted(self._at.first_link, damaged, side="right") - 1).tolist():
            whole[node] = (whole[node][0], self._factors[self.links_of_node(node)].tobytes())
        return np.array([numbers.setdefault(key, len(numbers)) for key in whole], dtype=np.int64)

    @property
    def leaves(self) -> int:
        """Number of leaf switches."""
        return self._cabling.leaves

    def links_of_node(self, node: int) -> IntArray:
        """Numbers of the links that belong to a node, its NICs' cables and its NVLinks included."""
        first = int(self._at.first_link[node])
        return np.arange(first, first + len(self._at.kinds[int(self._at.kind_of[node])].links))

    def uplinks(self) -> tuple[Link, ...]:
        """The links between leaf and spine switches as they are without degradation."""
        numbers = range(self._at.node_links, self._at.node_links + self._cabling.links)
        return tuple(
            Link(
                src=self._naming.ends(number)[0],
                dst=self._naming.ends(number)[1],
                bandwidth=float(self._cabling.bandwidth[number - self._at.node_links]),
                usable=float(self._cabling.usable[number - self._at.node_links]),
                latency_s=self.spec.fabric.latency_s,
                kind="uplink",
                source=self.spec.fabric.source,
            )
            for number in numbers
        )

    def link_name(self, link: int) -> str:
        """Name of a link, as "node0/gpu3->node0/nvswitch"."""
        return "->".join(self._naming.ends(link))

    def links_named(self, pattern: str) -> IntArray:
        """Numbers of the links whose names match a pattern as in `degrade`, "node0/nic3<->*" for both directions."""
        return np.array(self._naming.find(pattern), dtype=np.int64)

    def link(self, link: int) -> Link:
        """One link with the names of its ends."""
        src, dst = self._naming.ends(link)
        return Link(
            src=src,
            dst=dst,
            bandwidth=float(self.link_bandwidth[link]),
            usable=float(self.link_usable[link]),
            latency_s=float(self.link_latency[link]),
            kind=self.link_kind[link].item(),
            source=self._source(link),
        )

    def _source(self, link: int) -> str:
        if link >= self._at.node_links:
            return self.spec.fabric.source
        node, local = self._at.node_and_local(link)
        return self._at.kinds[int(self._at.kind_of[node])].links[local].source

    def graph(self) -> nx.DiGraph:
        """The whole cluster as a graph of device names; every edge carries `link` (a Link) and `number`."""
        graph = nx.DiGraph()
        for number in np.flatnonzero(self.link_bandwidth > 0):
            link = self.link(int(number))
            graph.add_edge(link.src, link.dst, link=link, number=int(number))
        return graph

    # Routes

    def path(self, src: int, dst: int) -> tuple[int, ...]:
        """Link numbers from rank to rank in order; of several equal ones (NICs, spines) the first."""
        return self.paths(src, dst)[0][0] if src != dst else ()

    def paths(self, src: int, dst: int) -> tuple[tuple[tuple[int, ...], float], ...]:
        """All paths that a flow from rank to rank is spread over, each with its share of the bytes."""
        at = self._at
        if src == dst:
            return (((), 1.0),)
        if at.node_of[src] == at.node_of[dst]:
            return ((self._numbers(src, at.routes_of(src).peer[at.local_rank[src]][at.local_rank[dst]]), 1.0),)
        if at.domain_of[src] == at.domain_of[dst]:
            up = at.routes_of(src).up[at.local_rank[src]]
            down = at.routes_of(dst).down[at.local_rank[dst]]
            return ((self._numbers(src, up) + self._numbers(dst, down), 1.0),)
        found = []
        for slot in range(at.slots):
            out = self._numbers(src, at.routes_of(src).egress[self._own_slot(src, slot)][at.local_rank[src]])
            into = self._numbers(dst, at.routes_of(dst).ingress[self._own_slot(dst, slot)][at.local_rank[dst]])
            for core, share in self._fabric.core_paths(slot, src, dst):
                found.append((out + core + into, share / at.slots))
        return tuple(found)

    def _own_slot(self, rank: int, slot: int) -> int:
        return self._at.own_slot(int(self._at.kind_of[self._at.node_of[rank]]), slot)

    def _numbers(self, rank: int, route: Route | None) -> tuple[int, ...]:
        assert route is not None
        base = int(self._at.first_link[self._at.node_of[rank]])
        return tuple(base + link for link in route)

    def path_latency(self, src: IntArray, dst: IntArray) -> FloatArray:
        """Sum of the link latencies between the ranks src[i] and dst[i] in seconds, [flows]; the worst of several
        paths."""
        src, dst = np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64)
        return self._fabric.path_latency(src, dst)

    # Loads

    def loads(self, src: IntArray, dst: IntArray, nbytes: FloatArray) -> tuple[IntArray, FloatArray]:
        """Bytes that flows src[i] -> dst[i] of nbytes[i] put on links: (link numbers sorted [k], bytes [k]).

        A flow from a rank to itself loads nothing. Raises InputError for ranks that do not exist.
        """
        src, dst = np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64)
        self._check_ranks(src, dst)
        return self._fabric.loads(src, dst, np.asarray(nbytes, dtype=np.float64))

    def outer_loads(self, ranks: IntArray, out: FloatArray, share: FloatArray) -> tuple[IntArray, FloatArray]:
        """Loads of bytes[s, d] = out[s] * share[d] among distinct `ranks` [n], without forming the matrix.

        Returns what `loads` returns for all pairs of different ranks.
        """
        ranks = np.asarray(ranks, dtype=np.int64)
        self._check_ranks(ranks)
        return self._fabric.outer_loads(ranks, np.asarray(out, dtype=np.float64), np.asarray(share, dtype=np.float64))

    def host_loads(self, ranks: IntArray, nbytes: FloatArray, direction: HostRoute) -> NodeLoads:
        """What copies of nbytes[i] between the GPU of ranks[i] and its nearest host memory put on links, node by node.

        Ranks are distinct; one without a path loads nothing.
        """
        ranks = np.asarray(ranks, dtype=np.int64)
        self._check_ranks(ranks)
        return self._fabric.host_loads(direction, ranks, np.asarray(nbytes, dtype=np.float64))

    def _check_ranks(self, *ranks: IntArray) -> None:
        for group in ranks:
            if len(group) and (group.min() < 0 or group.max() >= self.size):
                raise InputError(f"rank {int(group.min())} or {int(group.max())} is not one of 0 .. {self.size - 1}")

    def _check_routes(self) -> None:
        problems = list(self._at.unreachable())
        for a, b in self._fabric.spines.cut_off():
            ranks = [
                name_ranks(np.flatnonzero((self._fabric.spines.leaf == leaf).any(axis=0)).tolist()) for leaf in (a, b)
            ]
            problems.append(f"{ranks[0]} on leaf{a}: no spine switch reaches leaf{b} with {ranks[1]}")
        if problems:
            raise NoRouteError(problems, where=f"cluster {self.name!r}")

    @property
    def node_kinds(self) -> tuple[NodeSpec, ...]:
        """The kinds of node that occur (a node with a missing link is a kind of its own)."""
        return self._at.kinds
