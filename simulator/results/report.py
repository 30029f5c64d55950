"""The report of a predicted (or measured) step: what a person reads in a minute, and the same as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from foreshard.simulator.job.demand import Demand
from foreshard.simulator.job.layout import ResolvedLayout
from foreshard.simulator.job.program import CollectiveKind, Stage
from foreshard.simulator.job.scenario import Assumption, Scenario
from foreshard.simulator.job.trace import StepTrace
from foreshard.simulator.results.advice import Advice, memory_advice
from foreshard.simulator.results.assumptions import assumptions_of, foreshard_version
from foreshard.simulator.results.busy_links import BusyLink, busy_links
from foreshard.simulator.results.damage import Damage, damage_of_step
from foreshard.simulator.results.exposure import Breakdown, breakdown, slowest_rank
from foreshard.simulator.results.planner_comparison import PlannerComparison, compare_with_planner
from foreshard.simulator.results.profile_use import ProfileUse, profile_use, stage_intervals
from foreshard.simulator.results.report_text import html_report, text_report
from foreshard.simulator.results.signals import HotTable, Imbalance, PlacementReport, SyncReport, hot_tables, imbalance
from foreshard.simulator.step.memory import Memory, predict_memory
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import BoundViolationError, InputError

__all__ = ["CollectiveRow", "Heading", "Report", "advice_of", "memory_of", "report"]

_ROUNDING = 1e-6
_RESOLUTION = 1e-13  # of simulated times, as a share of the step: a collective below it may seem to take no time
_LOOKUP_STAGES: tuple[Stage, ...] = ("lookup_routing", "vector_return", "sparse_gradient_return")


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    """What was predicted, in words."""

    name: str
    description: str = ""
    machine: str = ""
    nodes: int = 0
    ranks: int
    layout: str = ""
    pipeline: str = ""
    optimizer: str = ""
    batch_size: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveRow:
    """One collective: bytes of the busiest rank, transfer time and closed-form bound of the slowest group in seconds.

    `wait_s` is the longest a rank waited for the last member, `exposed_s` what the slowest rank could not hide. It runs
    every `every` steps. `peers` is the most peers in other nodes that a rank of an all-to-all posts to.
    """

    name: str
    kind: CollectiveKind
    stage: Stage
    group_size: int
    groups: int
    max_bytes_out: float
    max_bytes_in: float
    time_s: float
    bound_s: float
    algorithm: str
    bottleneck: str
    group_sizes: tuple[int, ...]
    wait_s: float
    exposed_s: float
    every: int = 1
    peers: int = 0

    @property
    def ratio(self) -> float | None:
        """Time over bound, at least 1; 1 where nothing has to move, None where no bound is known."""
        if self.bound_s:
            return self.time_s / self.bound_s
        return None if self.max_bytes_out or self.max_bytes_in else 1.0

    def to_dict(self) -> dict[str, Any]:
        """JSON values in bytes and seconds."""
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Report:
    """A step's report: times in seconds, memory in bytes; parts that a bare trace cannot tell are None or empty.

    `step_time_interval_s` and `stage_intervals_s` hold with a probability of 80 %, as far as a profile tells; None and
    empty without one. `profile` says what was taken from it.
    """

    heading: Heading
    step_time_s: float
    step_time_interval_s: tuple[float, float] | None
    samples_per_s: float | None
    breakdown: Breakdown
    host_s: float
    collectives: tuple[CollectiveRow, ...]
    links: tuple[BusyLink, ...] = ()
    damage: tuple[Damage, ...] = ()
    imbalance: tuple[Imbalance, ...] = ()
    hot_tables: tuple[HotTable, ...] = ()
    memory: Memory | None = None
    advice: tuple[Advice, ...] = ()
    sync: SyncReport | None = None
    placements: PlacementReport | None = None
    planner: PlannerComparison | None = None
    stage_intervals_s: Mapping[Stage, tuple[float, float]] = field(default_factory=dict)
    profile: ProfileUse | None = None
    on_cpu: bool = False
    assumptions: tuple[Assumption, ...] = ()
    provenance: tuple[tuple[str, str | int], ...] = ()

    @property
    def host_bound(self) -> bool:
        """Whether the step lasts as long as the host needs to issue it, to within one percent."""
        return self.step_time_s <= 1.01 * self.host_s

    @property
    def all_to_all_s(self) -> float:
        """Seconds of all look-up exchanges in the sharding groups, one after the other.

        All-to-alls of ids, vectors and gradients, and the reduce-scatters and all-gathers of row-wise kinds.
        """
        return sum(row.time_s for row in self.collectives if row.stage in _LOOKUP_STAGES)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values, seconds and bytes."""
        told = {
            "scenario": asdict(self.heading),
            "step_time_s": self.step_time_s,
            "step_time_interval_s": self.step_time_interval_s and list(self.step_time_interval_s),
            "stage_intervals_s": {stage: list(band) for stage, band in self.stage_intervals_s.items()},
            "samples_per_s": self.samples_per_s,
            "slowest_rank": self.breakdown.rank,
            "stages": {name: asdict(stage) for name, stage in self.breakdown.stages.items()},
            "compute_s": self.breakdown.compute_s,
            "idle_s": self.breakdown.idle_s,
            "host_s": self.host_s,
            "host_bound": self.host_bound,
            "all_to_all_s": self.all_to_all_s,
            "collectives": [row.to_dict() for row in self.collectives],
            "links": [link.to_dict() for link in self.links],
            "damage": [item.to_dict() for item in self.damage],
            "imbalance": [{**asdict(item), "factor": item.factor} for item in self.imbalance],
            "hot_tables": [asdict(item) for item in self.hot_tables],
            "memory": self.memory and self.memory.to_dict(),
            "advice": [item.sentence() for item in self.advice],
            "sync": self.sync and self.sync.to_dict(),
            "placements": self.placements and self.placements.to_dict(),
            "profile": self.profile and self.profile.to_dict(),
            "assumptions": [asdict(item) for item in self.assumptions],
            "provenance": dict(self.provenance),
        }
        return {**told, "planner": self.planner.to_dict()} if self.planner else told

    def to_text(self) -> str:
        """The report as aligned text, to be read in a minute."""
        return text_report(self)

    def _repr_html_(self) -> str:
        return html_report(self)


def report(source: Prediction | StepTrace, *, planner: bool = False, what_if: bool = True) -> Report:
    """Return the report of a prediction, or what a bare trace tells.

    `planner` sets TorchRec's estimate beside it. `what_if` predicts changes: what to do where memory does not fit, and
    the other placement of a 2D layout. Raises BoundViolationError if a predicted collective is faster than its
    closed-form bound, which is a bug in foreshard.
    """
    if isinstance(source, StepTrace):
        return _trace_report(source)
    scenario = source.scenario
    memory, sync = memory_of(source), _sync(source)
    time = sync.step_time_s if sync else source.trace.step_time_s
    parts = _breakdown(source)
    rows = _collectives(source, parts)
    communication = sum(row.time_s / row.every for row in rows)
    return Report(
        heading=_heading(source),
        step_time_s=time,
        step_time_interval_s=source.interval,
        stage_intervals_s=stage_intervals(source),
        profile=profile_use(source),
        on_cpu=source.cluster.on_cpu,
        samples_per_s=scenario.workload.batch_size * source.cluster.size / time,
        breakdown=parts,
        host_s=source.trace.host_s,
        collectives=rows,
        links=busy_links(source) if what_if else (),
        damage=damage_of_step(source) if what_if else (),
        imbalance=imbalance(source.demand, source.trace, memory.per_rank_bytes),
        hot_tables=hot_tables(source.hot_owners(), source.layout.sharding.members[0]),
        memory=memory,
        advice=advice_of(source, memory) if what_if else (),
        sync=sync,
        placements=_placements(source, sync) if what_if and sync else None,
        planner=compare_with_planner(source, parts, communication) if planner else None,
        assumptions=assumptions_of(
            scenario,
            source.cluster,
            source.costs.constants,
            peers=_most_peers(source.trace),
            profile=source.profile,
        ),
        provenance=_provenance(source),
    )


def _most_peers(trace: StepTrace) -> int:
    return max((op.collective.peers for op in trace.ops if op.collective), default=0)


def memory_of(source: Prediction) -> Memory:
    """Return the memory of a prediction in bytes, item by item and rank by rank."""
    return _memory_with(source, source.demand)


def _memory_with(source: Prediction, demand: Demand) -> Memory:
    parts = (source.scenario, source.cluster, source.layout, source.sharded, demand)
    return predict_memory(*parts, source.costs.constants)


def _trace_report(trace: StepTrace) -> Report:
    parts = breakdown(trace, slowest_rank(trace))
    return Report(
        heading=Heading(name=f"{trace.source} step", ranks=trace.world_size),
        step_time_s=trace.step_time_s,
        step_time_interval_s=None,
        samples_per_s=None,
        breakdown=parts,
        host_s=trace.host_s,
        collectives=tuple(_rows(trace, parts)),
    )


def _heading(source: Prediction) -> Heading:
    scenario, layout = source.scenario, source.layout
    return Heading(
        name=scenario.name,
        description=scenario.description,
        machine=source.cluster.name,
        nodes=source.cluster.nodes,
        ranks=source.cluster.size,
        layout=_layout_text(layout),
        pipeline=scenario.execution.pipeline,
        optimizer=scenario.execution.optimizer,
        batch_size=scenario.workload.batch_size,
    )


def _layout_text(layout: ResolvedLayout) -> str:
    if layout.replicas == 1:
        return f"global sharding over {layout.world_size} ranks"
    how = layout.layout
    every = f", sync_interval {how.sync_interval}" if how.sync == "weights" else ""
    sizes = " and ".join(str(part.layout.group_size) for part in layout.by_size())
    placement = how.placement if how.groups is None else "named one by one"
    synchronise = "are fully sharded" if how.sync == "fully_sharded" else f"synchronise {how.sync}{every}"
    return f"2D: {layout.replicas} replicas in sharding groups of {sizes}, {placement}; replicas {synchronise}"


def _breakdown(source: Prediction) -> Breakdown:
    """The slowest rank's step; where replicas synchronise every k steps, the average over k steps."""
    rank = slowest_rank(source.trace)
    shown = breakdown(source.trace, rank)
    interval = _interval(source)
    if interval == 1 or source.sync is None:
        return shown
    return shown.mixed(breakdown(source.sync.weights, rank), 1.0 / interval)


def _interval(source: Prediction) -> int:
    layout = source.scenario.layout
    return layout.sync_interval if source.sync is not None and layout.sync == "weights" else 1


def _collectives(source: Prediction, parts: Breakdown) -> tuple[CollectiveRow, ...]:
    rows = _rows(source.trace, parts)
    interval = _interval(source)
    if source.sync is not None and interval > 1:
        shown = {row.name for row in rows}
        rows += [row for row in _rows(source.sync.weights, parts, interval) if row.name not in shown]
    return tuple(rows)


def _rows(trace: StepTrace, parts: Breakdown, every: int = 1) -> list[CollectiveRow]:
    rows = []
    for index, op in enumerate(trace.ops):
        if op.collective is None:
            continue
        info = {name: getattr(op.collective, name) for name in op.collective.__slots__}
        wait = float(np.nanmax(trace.wait_s[index]))  # ranks without a part in it are NaN
        row = CollectiveRow(
            name=op.name, stage=op.stage, wait_s=wait, exposed_s=parts.exposed_s.get(op.name, 0.0), every=every, **info
        )
        tick = _RESOLUTION * max(trace.step_time_s, float(np.nanmax(trace.end_s[index])))
        if trace.source == "predicted" and row.time_s < row.bound_s * (1 - _ROUNDING) - tick:
            raise BoundViolationError(
                f"collective {op.name!r} takes {row.time_s} s, less than its lower bound of {row.bound_s} s: "
                "this is a bug in foreshard, please report it with the scenario"
            )
        rows.append(row)
    return rows


def _sync(source: Prediction) -> SyncReport | None:
    if source.sync is None:
        return None
    layout = source.scenario.layout
    return SyncReport(
        sync=layout.sync,
        sync_interval=layout.sync_interval,
        replicas=source.layout.replicas,
        plain_step_s=source.sync.plain.step_time_s,
        weights_step_s=source.sync.weights.step_time_s,
        gradients_step_s=source.sync.gradients.step_time_s,
        fully_sharded_step_s=source.sync.fully_sharded.step_time_s if layout.sync == "fully_sharded" else None,
        group_sizes=tuple(source.layout.sharding.sizes.tolist()),
    )


def _placements(source: Prediction, sync: SyncReport) -> PlacementReport | None:
    """The layout's placement beside the other one; None where both are the same or plan or groups forbid the other."""
    scenario, now = source.scenario, source.scenario.layout.placement
    if source.cluster.nodes == 1 or source.layout.group_size == 1 or scenario.layout.groups is not None:
        return None
    layout = replace(scenario.layout, placement="interleaved" if now == "contiguous" else "contiguous")
    try:
        other = _sync(Prediction(replace(scenario, layout=layout), source.cluster, source.profile))
    except InputError:
        return None
    assert other is not None
    both = (sync, other) if now == "contiguous" else (other, sync)
    return PlacementReport(contiguous=both[0], interleaved=both[1])


def advice_of(source: Prediction, memory: Memory | None = None) -> tuple[Advice, ...]:
    """Return the single changes after which the prediction's memory fits, each tried; empty if it fits already."""
    memory = memory or memory_of(source)
    if memory.fits:
        return ()
    evaluate = partial(_memory_after, source)
    sharded = source.sharded_for(memory.peak_rank)
    step_time = partial(_step_time_after, source)
    return memory_advice(source.scenario, sharded, source.layout, memory, evaluate, step_time)


def _step_time_after(source: Prediction, changed: Scenario) -> float:
    """Predicted step time of a changed scenario, or of the present one, in seconds; on the same cluster."""
    if changed is source.scenario:
        return source.step_time_s
    return Prediction(changed, source.cluster, source.profile).step_time_s


def _memory_after(source: Prediction, changed: Scenario) -> Memory:
    """Memory of a changed scenario, on the same cluster unless the change is in it."""
    same = changed.cluster == source.scenario.cluster
    after = Prediction(changed, source.cluster if same else None, source.profile if same else None)
    return _memory_with(after, after.memory_demand)


def _provenance(source: Prediction) -> tuple[tuple[str, str | int], ...]:
    """Version and content hashes of the inputs; no time and no place, so that equal inputs give equal bytes."""
    return (
        ("foreshard", foreshard_version()),
        ("numpy", np.__version__),
        ("scenario_sha256", _sha256(source.scenario)),
        ("cluster_sha256", _sha256(source.cluster.spec)),
        *((("profile_sha256", _sha256(source.profile)),) if source.profile is not None else ()),
        ("seed", source.scenario.execution.seed),
        ("events", source.trace.events),
    )


def _sha256(data: Any) -> str:
    text = json.dumps(asdict(data), sort_keys=True, default=dict, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
