"""Reading cluster files: the short human form and presets resolve to an explicit ClusterSpec."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.fields import Fields
from foreshard.topologies.machine import Backend, ClusterSpec, Fabric, FabricKind, NodeGroup, Sourced
from foreshard.topologies.nodefile import read_gpu, read_node
from foreshard.topologies.units import BYTES, BYTES_PER_S, FLOPS, SECONDS

__all__ = ["load_cluster_file", "parse_cluster"]

_UNITS: tuple[tuple[str, dict[str, float]], ...] = (
    ("s", SECONDS),
    ("B/s", BYTES_PER_S),
    ("B", BYTES),
    ("FLOP/s", FLOPS),
)


def load_cluster_file(path: str | Path, nodes: int | None = None) -> Cluster:
    """Return the cluster that a TOML file describes, with `nodes` instead of the file's number if given.

    Raises InputError with every mistake and its TOML path.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read it: {error}", where=str(path)) from error
    return Cluster(parse_cluster(text, where=str(path), nodes=nodes))


def parse_cluster(
    text: str, *, where: str, nodes: int | None = None, degrade: Mapping[str, float] | None = None
) -> ClusterSpec:
    """Return the explicit spec of a cluster file's text. Raises InputError with every mistake."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is not TOML: {error}", where=where) from error
    fields = Fields(table)
    spec = _read_cluster(fields, nodes, degrade or {})
    if fields.problems:
        raise InputError(fields.problems, where=where)
    return spec


def _read_cluster(fields: Fields, nodes: int | None, degrade: Mapping[str, float]) -> ClusterSpec:
    fields.integer("schema", maximum=1)
    name = fields.text("name")
    gpu_fields, node_fields = fields.table("gpu"), fields.table("node")
    groups: tuple[NodeGroup, ...] = ()
    own_nodes = fields.integer("nodes", 1)
    if gpu_fields and node_fields:
        groups = (NodeGroup(node=read_node(node_fields, read_gpu(gpu_fields)), nodes=nodes or own_nodes),)
    fabric = fields.table("fabric", required=False)
    constants = fields.table("constants", required=False)
    spec = ClusterSpec(
        name=name,
        groups=groups,
        fabric=_read_fabric(fabric) if fabric else Fabric(),
        nodes_per_domain=fields.integer("nodes_per_domain", 1),
        constants=_read_constants(constants) if constants else {},
        backend=fields.text("backend", "nccl", choices=get_args(Backend)),  # type: ignore[arg-type]
        assumptions=tuple(str(sentence) for sentence in fields.values("assumptions", [])),
        degrade=dict(degrade),
    )
    fields.finish()
    return spec


def _read_fabric(fields: Fields) -> Fabric:
    kind: Any = fields.text("kind", choices=get_args(FabricKind))
    routing: Any = fields.text("routing", "even", choices=("even", "by_destination"))
    fabric = Fabric(
        kind=kind,
        nodes_per_leaf=fields.integer("nodes_per_leaf") if fields.has("nodes_per_leaf") else None,
        spines=fields.integer("spines", 1, maximum=1024),
        oversubscription=fields.number("oversubscription", 1.0, minimum=1e-3),
        latency_s=fields.quantity("latency", SECONDS, "0 s"),
        routing=routing,
        source=fields.text("source", ""),
    )
    fields.finish()
    return fabric


def _read_constants(fields: Fields) -> dict[str, Sourced]:
    constants = {}
    for name in fields.keys():
        item = fields.table(name)
        if item is not None:
            constants[name] = _read_constant(item)
    return constants


def _read_constant(fields: Fields) -> Sourced:
    """A constant: `value` a quantity with its unit in quotes, or a bare number with unit = "1"."""
    source = fields.text("source")
    unit = fields.text("unit", "1")
    value = fields.number("value", minimum=float("-inf"))
    fields.finish()
    return Sourced(value=value, unit=unit, source=source)
