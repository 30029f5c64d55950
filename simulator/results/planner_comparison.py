"""TorchRec's planner beside foreshard's prediction of the same plan, and why the two differ, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from foreshard.simulator.job.program import Stage
from foreshard.simulator.results.exposure import Breakdown
from foreshard.simulator.step.prediction import Prediction
from foreshard.simulator.torchrec.planner_estimate import PlannerTopology
from foreshard.simulator.torchrec.planner_figures import PlannerFigures, figures_of
from foreshard.simulator.torchrec.planner_rating import PlannerEstimate, planner_estimate
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.machine import LEAF, NodeSpec
from foreshard.topologies.units import format_ms

__all__ = ["PlannerComparison", "compare_with_planner", "machine_topology"]

_UNPRICED: tuple[Stage, ...] = ("batch_input", "local_compute", "dense_gradient_sync", "optimizer_update")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlannerComparison:
    """The planner's estimate with its default constants and with this machine's rates, and what it leaves out.

    `own` are the figures of the planner that made an imported plan, as it gave them.
    """

    default: PlannerEstimate
    machine: PlannerEstimate
    predicted_step_s: float
    reasons: tuple[str, ...]
    own: PlannerFigures | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values: both estimates, seconds and bytes, and the reasons."""
        return {
            "default": self.default.to_dict(),
            "machine": self.machine.to_dict(),
            "predicted_step_s": self.predicted_step_s,
            "reasons": list(self.reasons),
            "own": self.own and asdict(self.own),
        }


def machine_topology(cluster: Cluster, world_size: int, local_world_size: int) -> PlannerTopology:
    """Return the planner's view of a sharding group with the rates of the cluster's first node, in bytes/s.

    Within a node what a GPU's links to its peers carry, or a rank's share of the loopback of a host of CPU ranks;
    between nodes the node's NICs divided by its GPUs.
    """
    node, gpu = cluster.node_kinds[0], cluster.gpus[0]
    nics = [link.usable for link in node.links if link.dst == LEAF]
    plain = PlannerTopology(
        world_size=world_size,
        local_world_size=local_world_size,
        hbm_bytes_per_s=gpu.hbm_bytes_per_s,
        hbm_to_ddr_bytes_per_s=float(cluster.host_to_device_bytes_per_s[0]),
        intra_bytes_per_s=_intra_bytes_per_s(node),
        hbm_cap_bytes=gpu.hbm_bytes,
    )
    return replace(plain, inter_bytes_per_s=sum(nics) / len(node.gpus)) if nics else plain


def _intra_bytes_per_s(node: NodeSpec) -> float:
    own = [link for link in node.links if link.src == "gpu0" and link.kind != "dram"]
    peers = [link.usable for link in own if link.kind == "nvlink"] or [link.usable for link in own]
    shared = [link.usable / len(node.gpus) for link in node.links if link.kind == "loopback" and link.src == "cpu0"]
    return min([sum(peers), *shared])


def compare_with_planner(source: Prediction, parts: Breakdown, communication_s: float) -> PlannerComparison:
    """Return TorchRec's estimate of the plan of one sharding group and what it leaves out of a step of `parts`.

    `communication_s` is what the step's collectives take one after the other.
    """
    size, local = source.layout.group_size, source.local_group_size
    scenario = source.scenario
    defaults = PlannerTopology(world_size=size, local_world_size=local)
    default, machine = (
        planner_estimate(scenario.workload, source.sharded, scenario.comms, scenario.execution, topology)
        for topology in (defaults, machine_topology(source.cluster, size, local))
    )
    return PlannerComparison(
        default=default,
        machine=machine,
        predicted_step_s=parts.step_time_s,
        reasons=tuple(_reasons(source, parts, communication_s, machine)),
        own=figures_of(scenario.assumptions),
    )


def _reasons(source: Prediction, parts: Breakdown, communication_s: float, estimate: PlannerEstimate) -> Iterator[str]:
    collectives = [op for op in source.trace.ops if op.collective is not None]
    priced = sum(2 * len(family.output) for family in source.demand.families)
    yield (
        f"latency: the step has {len(collectives)} collectives; it prices {min(priced, len(collectives))} of them, "
        "as bytes over a bandwidth without latency, and no kernel launch"
    )
    yield (
        f"id exchange: it computes {format_ms(estimate.input_dist_s)} of input_dist and leaves it out of its sum "
        "(row-wise, it charges every rank the ids of all owners)"
    )
    size, local = source.layout.group_size, source.local_group_size
    if size > local:
        yield (
            f"host boundary: it charges all vectors to the link between nodes, though {local / size:.0%} of them "
            "stay in the node"
        )
    lookups = np.sum([family.local.lookups for family in source.demand.families], axis=0)
    if np.any(lookups):
        factor = float(np.max(lookups) / np.mean(lookups))
        yield f"skew: it divides row-wise lookups evenly; here the busiest rank does {factor:.2f} x the mean"
    exposed = sum(stage.exposed_s for stage in parts.stages.values())
    yield (
        f"overlap: it adds compute and communication; here collectives take {format_ms(communication_s)} and compute "
        f"waits {format_ms(exposed)}"
    )
    if source.layout.replicas > 1:
        yield "replica synchronisation: it knows no replicas and plans for one sharding group"
    unpriced = sum(parts.stages[stage].compute_s + parts.stages[stage].exposed_s for stage in _UNPRICED)
    yield f"dense model, its all-reduce, optimizer and input: {format_ms(unpriced)} of the step are not in it"
