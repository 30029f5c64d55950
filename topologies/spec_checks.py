"""What contradicts itself in an explicit cluster, all of it at once."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from foreshard.topologies.machine import LEAF, SWITCH, ClusterSpec, Fabric, Link, NodeSpec

__all__ = ["fabric_problems", "spec_problems"]

_DEVICE = re.compile(r"(gpu|nic|pcie|cpu|mem)\d{1,4}|nvswitch\d{0,4}")
_MOST_RANKS = 1 << 20


def spec_problems(spec: ClusterSpec) -> list[str]:
    """Return one sentence for every mistake in `spec`; empty if it can be compiled."""
    return [*_cluster(spec), *_kinds(spec), *(f"fabric.{problem}" for problem in fabric_problems(spec.fabric))]


def _cluster(spec: ClusterSpec) -> Iterator[str]:
    if not spec.groups:
        yield "groups: there are no nodes: give at least one group"
    for index, group in enumerate(spec.groups):
        if group.nodes < 1:
            yield f"groups[{index}].nodes: {group.nodes} is not a number of nodes from 1"
    ranks = sum(max(group.nodes, 0) * len(group.node.gpus) for group in spec.groups)
    if ranks > _MOST_RANKS:
        yield f"nodes: {ranks:,} ranks are more than the {_MOST_RANKS:,} that one cluster may have"
    if spec.nodes_per_domain < 1:
        yield f"nodes_per_domain: {spec.nodes_per_domain} is not a number of nodes from 1"


def _kinds(spec: ClusterSpec) -> Iterator[str]:
    for kind in {id(group.node): group.node for group in spec.groups}.values():
        if not kind.gpus:
            yield f"node {kind.name!r}: has no GPUs"
            continue
        for problem in [*_devices(kind, spec.nodes_per_domain), *_nic_choice(kind), *_links(kind)]:
            yield f"node {kind.name!r}: {problem}"


def _devices(kind: NodeSpec, nodes_per_domain: int) -> Iterator[str]:
    if not (math.isfinite(kind.host_memory_bytes) and kind.host_memory_bytes >= 0):
        yield f"host_memory: {kind.host_memory_bytes} is not a size"
    named = {int(name[3:]) for name in kind.devices if name.startswith("gpu") and _DEVICE.fullmatch(name)}
    unknown = sorted(named - set(range(len(kind.gpus))))
    if unknown:
        yield f"links name gpu{unknown[0]}, but the node has {len(kind.gpus)} GPUs"
    ends = {end for link in kind.links for end in (link.src, link.dst)}
    if nodes_per_domain > 1 and SWITCH not in ends:
        yield f"{nodes_per_domain} nodes share an NVLink domain, but no link goes to {SWITCH!r}"


def _nic_choice(kind: NodeSpec) -> Iterator[str]:
    if kind.nics is None:
        return
    if len(kind.nics) != len(kind.gpus):
        yield f"nics: {len(kind.nics)} rows for {len(kind.gpus)} GPUs: give one a GPU"
    for index, row in enumerate(kind.nics):
        for name in row:
            if not name.startswith("nic") or name not in kind.devices:
                yield f"nics[{index}]: there is no NIC {name!r} in the links"


def _links(kind: NodeSpec) -> Iterator[str]:
    for index, link in enumerate(kind.links):
        for problem in _link(link):
            yield f"links[{index}] {link.src}->{link.dst}: {problem}"
    for (src, dst), count in Counter((link.src, link.dst) for link in kind.links).items():
        if count > 1:
            yield f"links: {src}->{dst} is given {count} times: give one with the sum of the bandwidths"


def _link(link: Link) -> Iterator[str]:
    for end in (link.src, link.dst):
        if end not in (LEAF, SWITCH) and not _DEVICE.fullmatch(end):
            yield f"{end!r} is not a device: use gpu0, nvswitch, pcie0, cpu0, mem0, nic0, {LEAF!r} or {SWITCH!r}"
    if link.src == link.dst:
        yield "joins a device to itself"
    if LEAF in (link.src, link.dst) and not (link.src.startswith("nic") or link.dst.startswith("nic")):
        yield "only a NIC has a cable to the leaf switch"
    if not (math.isfinite(link.bandwidth) and link.bandwidth >= 0 and math.isfinite(link.usable) and link.usable >= 0):
        yield f"bandwidth {link.bandwidth} and usable {link.usable} must be finite and not negative"
    elif link.usable > link.bandwidth or (link.bandwidth > 0) != (link.usable > 0):
        yield f"usable {link.usable:g} B/s must be above 0 and not above the bandwidth of {link.bandwidth:g} B/s"
    if not (math.isfinite(link.latency_s) and link.latency_s >= 0):
        yield f"latency {link.latency_s} must be finite and not negative"


def fabric_problems(fabric: Fabric) -> Iterator[str]:
    """One sentence for every mistake in a fabric, beginning with the field."""
    if not (math.isfinite(fabric.oversubscription) and fabric.oversubscription > 0):
        yield f"oversubscription: {fabric.oversubscription} is not a ratio above 0"
    if fabric.spines < 1:
        yield f"spines: {fabric.spines} is not a number from 1"
    if fabric.nodes_per_leaf is not None and fabric.nodes_per_leaf < 1:
        yield f"nodes_per_leaf: {fabric.nodes_per_leaf} is not a number from 1"
    if not (math.isfinite(fabric.latency_s) and fabric.latency_s >= 0):
        yield f"latency: {fabric.latency_s} must be finite and not negative"
    if fabric.kind == "leaf_spine" and fabric.nodes_per_leaf is None:
        yield "nodes_per_leaf: is missing: say how many nodes hang on a leaf switch"
    if fabric.kind == "single_switch" and (fabric.oversubscription != 1.0 or fabric.nodes_per_leaf is not None):
        yield "kind: a single switch has no leaves and uplinks: use rail or leaf_spine, or leave the rest out"
