"""Reading cluster files: a preset with changes, a short description or the explicit form become a ClusterSpec.

    schema = 1
    name = "ours"
    preset = "p5.48xlarge"           # or gpu = ... with [node], or [[groups]] for nodes of several kinds;
                                     # cpu = ... with [node] for ranks that are processes on CPUs, see `cpu_node`
    nodes = 4
    [node]
    nic = "ndr-400g"                 # any key of the preset's file can be replaced, by a part or a table in place
    [fabric]
    kind = "leaf_spine"              # or "rail", "single_switch"
    nodes_per_leaf = 2
    oversubscription = 2.0
    [degrade]
    "node0/nic3<->leaf*" = 0.5       # 0: missing

The explicit form (see `explicit`) lists every link in [[kinds]]; `foreshard import-topology` writes it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.constants import MACHINE_CONSTANTS, ConstantRange
from foreshard.topologies.cpu_node import read_cpu_node
from foreshard.topologies.errors import InputError
from foreshard.topologies.explicit import read_kinds
from foreshard.topologies.fields import Fields, near
from foreshard.topologies.machine import Backend, ClusterSpec, Fabric, FabricKind, NodeGroup, NodeSpec, Routing, Sourced
from foreshard.topologies.nodefile import read_node
from foreshard.topologies.shipped import preset_names, preset_text
from foreshard.topologies.spec_checks import fabric_problems
from foreshard.topologies.units import SECONDS

__all__ = ["load_cluster_file", "parse_cluster"]

_BASE_UNITS: dict[str, dict[str, float]] = {"s": SECONDS, "1": {"1": 1.0}}
_GIVEN_BY_FILE = "cluster file"
_GROUP_KEYS = {"preset", "name", "nodes", "gpu", "cpu", "node", "assumptions"}


def load_cluster_file(
    path: str | Path, nodes: int | None = None, degrade: Mapping[str, float] | None = None
) -> Cluster:
    """Return the cluster that a TOML file describes, with `nodes` instead of the file's number if given.

    Raises InputError with every mistake and its TOML path, NoRouteError if a missing link cuts ranks off.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text: {error}", where=str(path)) from error
    return Cluster(parse_cluster(text, where=str(path), nodes=nodes, degrade=degrade))


def parse_cluster(
    text: str, *, where: str, nodes: int | None = None, degrade: Mapping[str, float] | None = None
) -> ClusterSpec:
    """Return the explicit spec of a cluster file's text. Raises InputError with every mistake."""
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"is not TOML: {error}", where=where) from error
    except ValueError:  # Python converts no integer of more than 4,300 digits
        raise InputError("is not TOML: an integer has more digits than can be read", where=where) from None
    problems: list[str] = []
    whole = _on_preset(table, "", problems)
    if problems:
        # Of what an unknown preset would have given nothing is missing.
        _read_cluster(Fields(whole, "", problems), nodes, degrade or {})
        raise InputError([p for p in problems if ": is missing:" not in p], where=where)
    spec = _read_cluster(Fields(whole, "", problems), nodes, degrade or {})
    if problems:
        raise InputError(problems, where=where)
    return spec


def _on_preset(table: dict[str, Any], path: str, problems: list[str]) -> dict[str, Any]:
    """The table laid over the preset it names, if it names one."""
    name = table.get("preset")
    if name is None:
        return table
    if not isinstance(name, str) or name not in preset_names():
        problems.append(f"{path}preset: there is no machine {name!r}; {near(str(name), preset_names())}")
        return {key: value for key, value in table.items() if key != "preset"}
    return _merged(tomllib.loads(preset_text(name)), {key: value for key, value in table.items() if key != "preset"})


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`: tables key by key, assumptions added, a fabric of another kind whole."""
    out = dict(base)
    for key, value in over.items():
        both = isinstance(out.get(key), dict) and isinstance(value, dict)
        if key == "assumptions" and isinstance(value, list):
            out[key] = [*out.get(key, []), *value]
        elif both and not (key == "fabric" and "kind" in value):
            out[key] = _merged(out[key], value)
        else:
            out[key] = value
    return out


def _read_cluster(fields: Fields, nodes: int | None, degrade: Mapping[str, float]) -> ClusterSpec:
    fields.integer("schema", maximum=1)
    assumptions = list(fields.texts("assumptions"))
    own_nodes = fields.integer("nodes", 1)
    name = fields.text("name")
    groups = _read_groups(fields, nodes, own_nodes, assumptions)
    fabric = fields.table("fabric", required=False)
    if fabric is None and sum(group.nodes for group in groups) > 1:
        assumptions.append("no fabric is given: one non-blocking switch for all NICs is assumed")
    constants, damage = fields.table("constants", required=False), fields.table("degrade", required=False)
    spec = ClusterSpec(
        name=name,
        groups=groups,
        fabric=_read_fabric(fabric) if fabric else Fabric(source="assumed"),
        nodes_per_domain=fields.integer("nodes_per_domain", 1),
        constants=_read_constants(constants) if constants else {},
        backend=_read_backend(fields, groups),
        assumptions=tuple(dict.fromkeys(assumptions)),
        degrade={
            **({key: damage.number(key, minimum=0.0, maximum=1.0) for key in damage} if damage else {}),
            **degrade,
        },
    )
    fields.finish()
    return spec


def _read_groups(fields: Fields, nodes: int | None, own_nodes: int, assumptions: list[str]) -> tuple[NodeGroup, ...]:
    kinds = read_kinds(fields)
    if not fields.has("groups"):
        node = _read_node(fields.table("node"), fields)
        return (NodeGroup(node=node, nodes=nodes or own_nodes),) if node else ()
    if fields.has("node"):
        fields.note("node", "stands beside groups: give one node, or groups that each have one")
    tables = fields.tables("groups")
    if kinds is None and any(table.has("kind") for table in tables):
        fields.note("kinds", "is missing: groups name kinds of node, give them as [[kinds]]")
        fields.has("gpus")
        return ()
    groups = [_read_group(table, kinds, assumptions) for table in tables]
    if not groups and not fields.wrong("groups"):
        fields.note("groups", "is empty: give at least one group of nodes")
    if nodes is not None and len(groups) > 1:
        fields.note("groups", f"are several, so a number of nodes ({nodes}) cannot be set for all: change the file")
    sized = (replace(group, nodes=nodes or group.nodes) for group in groups if group is not None)
    return tuple(sized)


def _read_group(fields: Fields, kinds: dict[str, NodeSpec] | None, assumptions: list[str]) -> NodeGroup | None:
    nodes = fields.integer("nodes")
    if kinds is not None:
        kind = fields.text("kind")
        fields.finish()
        if kind not in kinds and not fields.wrong("kind") and "" not in kinds:
            fields.note("kind", f"there is no kind of node {kind!r}; {near(kind, kinds)}")
        return NodeGroup(node=kinds[kind], nodes=nodes) if kind in kinds else None
    if fields.wrong():
        return None
    problems: list[str] = []
    table = _on_preset({key: fields.raw(key) for key in fields}, f"{fields.path}.", problems)
    unknown = bool(problems)
    # A preset also describes a fabric, constants and more: of those the cluster's own hold, not a group's.
    from_preset = fields.has("preset")
    given = {key for key in fields if key != "preset"}
    kept = {key: value for key, value in table.items() if not from_preset or key in _GROUP_KEYS | given}
    own = Fields(kept, fields.path, problems)
    for key in ("nodes", "name"):
        own.has(key)
    assumptions.extend(own.texts("assumptions"))
    spec = _read_node(own.table("node"), own)
    own.finish()
    # Of what an unknown preset would have given nothing is missing.
    fields.problems.extend(problem for problem in problems if not (unknown and ": is missing:" in problem))
    return NodeGroup(node=spec, nodes=nodes) if spec else None


def _read_node(fields: Fields | None, parent: Fields) -> NodeSpec | None:
    """A node of GPUs, or of ranks on CPUs where the file says how many `ranks` it has, or names a `cpu`.

    None if there is no table of it; what stands beside it is not to be blamed then.
    """
    cpu, gpu = parent.has("cpu"), parent.has("gpu")
    if fields is None or fields.wrong():
        return None
    return read_cpu_node(fields, parent) if fields.has("ranks") or (cpu and not gpu) else read_node(fields, parent)


def _read_backend(fields: Fields, groups: tuple[NodeGroup, ...]) -> Backend:
    on_cpu = {gpu.architecture == "cpu" for group in groups for gpu in group.node.gpus}
    if len(on_cpu) == 2:
        fields.note("groups", "some ranks are on GPUs and some on CPUs: one job has ranks of one kind")
    backend: Backend = fields.choice("backend", get_args(Backend), "gloo" if on_cpu == {True} else "nccl")
    if True in on_cpu and backend == "nccl" and not fields.wrong("backend"):
        fields.note("backend", '"nccl" needs GPUs: ranks on CPUs use "gloo"')
    return backend


def _read_fabric(fields: Fields) -> Fabric:
    fabric = Fabric(
        kind=fields.choice("kind", get_args(FabricKind)),
        nodes_per_leaf=fields.integer("nodes_per_leaf") if fields.has("nodes_per_leaf") else None,
        spines=fields.integer("spines", 1, maximum=1024),
        oversubscription=fields.number("oversubscription", 1.0, minimum=0.01, maximum=1000.0),
        latency_s=fields.quantity("latency", SECONDS, "0 s"),
        routing=fields.choice("routing", get_args(Routing), "even"),
        source=fields.text("source", _GIVEN_BY_FILE),
    )
    for problem in fabric_problems(fabric):
        key, _, text = problem.partition(": ")
        if not fields.wrong("kind", key):
            fields.note(key, text)
    fields.finish()
    return fabric


def _read_constants(fields: Fields) -> dict[str, Sourced]:
    found = {}
    for name in fields:
        known = MACHINE_CONSTANTS.get(name)
        if known is None:
            fields.has(name)
            fields.note(name, f"there is no constant of that name; {near(name, MACHINE_CONSTANTS)}")
            continue
        table = fields.table(name)
        constant = _read_constant(table, known) if table else None
        if constant is not None:
            found[name] = constant
    return found


def _read_constant(fields: Fields, known: ConstantRange) -> Sourced | None:
    """A constant with a value, a unit (none or "1" for a plain number) and a source, in the base unit."""
    before = len(fields.problems)
    source, unit, number = fields.text("source"), fields.text("unit", "1"), fields.number("value")
    fields.finish()
    if len(fields.problems) > before:
        return None
    value = _in_base_unit(fields, number, unit, known.unit)
    problem = known.problem(value) if value is not None else None
    if problem:
        fields.note("value", problem)
    return Sourced(value=value, unit=known.unit, source=source) if value is not None else None


def _in_base_unit(fields: Fields, number: float, unit: str, base: str) -> float | None:
    """The value in its base unit; None with a note if the unit is of something else."""
    units = _BASE_UNITS[base]
    if unit in units:
        return number * units[unit]
    shown = f"{unit!r} is" if fields.has("unit") else "no unit is given, which is"
    expected = "a time such as 's', 'ms' or 'us'" if base == "s" else "none, or '1' for a plain number"
    fields.note("unit", f"{shown} not the unit of this constant: give {expected}")
    return None
