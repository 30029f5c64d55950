"""A whole what-if: machine, workload, plan, layout, communication precision and execution, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Annotated, Literal

from annotated_types import Ge, Le

from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.program import AllToAll
from foreshard.simulator.job.sharding import Plan
from foreshard.simulator.job.workload import DataType, Workload
from foreshard.topologies.units import format_bytes

__all__ = ["Assumption", "ClusterChoice", "Comms", "Constant", "Execution", "Optimizer", "Pipeline", "Scenario"]

Pipeline = Literal["base", "sparse_dist"]
Optimizer = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterChoice:
    """Which machine: a shipped preset or a cluster file, how many nodes of it, and what is broken in it.

    Without `nodes` a preset is one node, a file what it says.
    `degrade` pairs patterns of link names with the factor on their bandwidth, 0 for a missing link. `profile` is a file
    of what was measured on such a machine, which takes the place of modelled times.
    """

    preset: str | None = None
    file: str | None = None
    nodes: Annotated[int, Ge(1)] | None = None
    degrade: tuple[tuple[str, Annotated[float, Ge(0), Le(1)]], ...] = ()
    profile: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comms:
    """Data types on the wire, of vectors going forward and of their gradients going back, and how all-to-alls run.

    "pairwise" all-to-alls are plain grouped send/recv; "hierarchical" ones go inside the nodes first, to the rank of
    the destination's local position, and then between ranks of equal local position.
    """

    forward: DataType = "fp32"
    backward: DataType = "fp32"
    all_to_all: AllToAll = "pairwise"


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """How the step is run: the training pipeline, the embedding optimizer, how ids are drawn and the seed.

    `routing` "expected" uses the closed-form expectation of the access distributions; "sampled" draws one batch
    of ids per rank with `seed` and routes it exactly, "replayed" routes the samples of `workload.replay` exactly. With
    `dedup` a rank exchanges each distinct id of a table once.
    """

    pipeline: Pipeline = "base"
    optimizer: Optimizer = "rowwise_adagrad"
    routing: Literal["expected", "sampled", "replayed"] = "expected"
    seed: Annotated[int, Ge(0), Le((1 << 63) - 1)] = 0
    dedup: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """Something taken for granted because nobody published or measured it, and why; reports print it."""

    name: str
    value: float | str
    unit: str = ""
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """A figure that takes the place of a shipped constant, in its base unit (seconds, bytes or a plain number)."""

    name: str
    value: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Everything that determines a predicted step, and what its author (or a shipped table set) assumed."""

    cluster: ClusterChoice
    workload: Workload
    plan: Plan = field(default_factory=Plan)
    layout: Layout = field(default_factory=Layout)
    comms: Comms = field(default_factory=Comms)
    execution: Execution = field(default_factory=Execution)
    name: str = "custom"
    description: str = ""
    assumptions: tuple[Assumption, ...] = ()
    constants: tuple[Constant, ...] = ()

    def _repr_html_(self) -> str:
        tables, dense, layout = self.workload.tables, self.workload.dense, self.layout
        machine = self.cluster.preset or self.cluster.file
        groups = (
            "explicit groups" if layout.groups else f"sharding groups of {layout.sharding_group_size or 'all'} ranks"
        )
        rows = {
            "machine": " x ".join(str(part) for part in (self.cluster.nodes, machine) if part),
            "tables": f"{len(tables)} with {sum(table.num_embeddings for table in tables):,} rows, "
            f"{format_bytes(sum(table.nbytes for table in tables))}",
            "dense model": f"{dense.num_parameters:,} parameters, {dense.flops_per_sample:,.0f} FLOPs a sample forward",
            "batch": f"{self.workload.batch_size:,} samples per rank",
            "plan": f"{self.plan.default.sharding}, {len(self.plan.tables)} tables otherwise",
            "layout": f"{groups}, {layout.placement}; replicas synchronise {layout.sync}",
            "pipeline": f"{self.execution.pipeline}, {self.execution.optimizer}",
        }
        body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
        about = f"{self.name}: {self.description}" if self.description else self.name
        return f"<div>{escape(about)}</div><table>{body}</table>"
