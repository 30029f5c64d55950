"""From a scenario to a predicted step: resolve, demand, program, simulate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from foreshard.simulator.comms.collectives import LoweredGroups, lower
from foreshard.simulator.comms.measured_times import MeasuredCollectives
from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.demand import Demand
from foreshard.simulator.job.layout import ResolvedLayout, Sync, resolve_layout
from foreshard.simulator.job.program import Collective, Op, StepProgram
from foreshard.simulator.job.scenario import ClusterChoice, Scenario
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.trace import CollectiveInfo, OpInfo, StepTrace
from foreshard.simulator.lookups.plan_demand import exact_demand_of_plans, expected_demand_of_plans
from foreshard.simulator.lookups.rank_batches import WatchedBatches
from foreshard.simulator.lookups.recorded import RecordedBatches
from foreshard.simulator.lookups.sampling import SampledBatches
from foreshard.simulator.lookups.skew import CountedOwners, HotOwner, hot_owners
from foreshard.simulator.measured.profile import Profile
from foreshard.simulator.plans.placement import resolve_plan_by_size
from foreshard.simulator.step.constants import cost_constants, with_machine_constants
from foreshard.simulator.step.costs import CostModel
from foreshard.simulator.step.engine import Engine, Lowering, Timeline
from foreshard.simulator.step.inline import inlined
from foreshard.simulator.step.intervals import Draw, DrawnStep, draws, draws_for, interval_of, scatters
from foreshard.simulator.step.profiled_costs import ProfiledCosts
from foreshard.simulator.step.profiles import check_steps, constants_with, load_profile
from foreshard.simulator.step.steps import build_program
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import load_cluster_file
from foreshard.topologies.errors import InputError
from foreshard.topologies.machine import Sourced
from foreshard.topologies.presets import load_preset

FloatArray = NDArray[np.float64]

__all__ = ["Prediction", "SyncSteps", "busiest", "load_cluster", "predict", "simulate", "simulate_program"]


class SyncSteps:
    """Step traces of a 2D layout by what replicas do in the step; each is simulated when first asked for."""

    def __init__(self, step: Callable[[Sync | None], StepTrace]) -> None:
        self._step = step

    @cached_property
    def plain(self) -> StepTrace:
        """The step without any synchronisation of replicas."""
        return self._step(None)

    @cached_property
    def weights(self) -> StepTrace:
        """The step that averages whole shards over the replicas."""
        return self._step("weights")

    @cached_property
    def gradients(self) -> StepTrace:
        """The step that exchanges the gradients of the rows it touched."""
        return self._step("gradients")

    @cached_property
    def fully_sharded(self) -> StepTrace:
        """The step in which replicas hold parts of each other's weights."""
        return self._step("fully_sharded")

    def of(self, sync: Sync | None) -> StepTrace:
        """The step with one way to synchronise, None for none."""
        match sync:
            case None:
                return self.plain
            case "weights":
                return self.weights
            case "gradients":
                return self.gradients
            case "fully_sharded":
                return self.fully_sharded

    def average_weights_s(self, interval: int) -> float:
        """Mean step time in seconds when weights are averaged every `interval` steps."""
        if interval == 1:
            return self.weights.step_time_s
        return self.plain.step_time_s + (self.weights.step_time_s - self.plain.step_time_s) / interval


class Prediction:
    """Everything known about the predicted step of one scenario; the pieces are computed when first asked for."""

    def __init__(self, scenario: Scenario, cluster: Cluster | None = None, profile: Profile | None = None) -> None:
        self.scenario = scenario
        machine = cluster or load_cluster(scenario.cluster)
        self.profile = profile or load_profile(scenario.cluster, machine)
        check_steps(self.profile, scenario.comms)
        constants = constants_with(self.profile, scenario.constants)
        self.cluster = with_machine_constants(machine, constants)
        self.layout: ResolvedLayout = resolve_layout(scenario.layout, self.cluster.size)
        self.costs = _costs(self.cluster, cost_constants(constants), self.profile)
        self.measured = MeasuredCollectives(self.profile) if self.profile is not None else None

    def on(self, cluster: Cluster) -> Prediction:
        """The same scenario on a machine whose nodes and ranks are those of its own, but perhaps not its links."""
        other = Prediction(self.scenario, cluster, self.profile)
        for name in ("plans", "demand", "_counted"):  # none asks for a link
            if name in self.__dict__:
                other.__dict__[name] = self.__dict__[name]
        return other

    @property
    def local_group_size(self) -> int:
        """Ranks of a sharding group that share a node; of the first group where groups differ in size."""
        return self.layout.group_shapes(self.cluster.node_of)[0][1]

    @cached_property
    def plans(self) -> tuple[tuple[ShardedTable, ...], ...]:
        """Every table with its owners in sharding groups of each size, sizes in the order of `layout.by_size()`."""
        scenario = self.scenario
        plans = resolve_plan_by_size(scenario.plan, scenario.workload.tables, self.layout, self.cluster.node_of)
        if any(item.in_host_memory for item in plans[0]) and not self._host_links():
            raise InputError("tables are in host memory, but the machine has ranks without a path to it: use fused")
        return plans

    def _host_links(self) -> bool:
        """Whether every rank reaches host memory, both ways."""
        rates = (self.cluster.host_to_device_bytes_per_s, self.cluster.device_to_host_bytes_per_s)
        return all(bool(np.all(rate > 0)) for rate in rates)

    @property
    def sharded(self) -> tuple[ShardedTable, ...]:
        """Every table with its owners in the sharding group; in the first one where groups differ in size."""
        return self.plans[0]

    def sharded_for(self, rank: int) -> tuple[ShardedTable, ...]:
        """Every table with its owners in the sharding group of a rank."""
        return self.plans[self.layout.size_index(rank)]

    @cached_property
    def demand(self) -> Demand:
        """Ids, vectors and rows that one step asks of every rank."""
        return self._demand(count_rows=True)

    @cached_property
    def memory_demand(self) -> Demand:
        """The demand as far as memory depends on it: unless replicas exchange rows, distinct rows are left out."""
        exchanged = self.layout.replicas > 1 and self.scenario.layout.sync == "gradients"
        if exchanged or "demand" in self.__dict__ or self.scenario.execution.routing != "expected":
            return self.demand
        return self._demand(count_rows=False)

    def _demand(self, *, count_rows: bool) -> Demand:
        workload, execution = self.scenario.workload, self.scenario.execution
        layout, node_of = self.layout, self.cluster.node_of
        if execution.routing != "expected":
            return self._counted[0]
        return expected_demand_of_plans(
            workload, self.plans, layout, node_of, execution.optimizer, count_rows=count_rows, dedup=execution.dedup
        )

    @cached_property
    def _counted(self) -> tuple[Demand, CountedOwners]:
        """The demand of the very batches that ranks train on, and what those of the first group ask of each owner."""
        workload, execution = self.scenario.workload, self.scenario.execution
        owners = CountedOwners(self.sharded, dedup=execution.dedup)
        batches = WatchedBatches(self.batches(), self.layout.sharding.members[0].tolist(), owners.add)
        demand = exact_demand_of_plans(
            workload, self.plans, self.layout, self.cluster.node_of, batches,
            optimizer=execution.optimizer, dedup=execution.dedup,
        )  # fmt: skip
        return demand, owners

    def hot_owners(self) -> tuple[HotOwner, ...]:
        """Hot row shards of the first sharding group: expected ones, or those of the very ids that its ranks send."""
        execution = self.scenario.execution
        if execution.routing != "expected":
            return self._counted[1].hottest()
        return hot_owners(self.sharded, self.scenario.workload.batch_size, dedup=execution.dedup)

    def batches(self) -> Sequence[JaggedBatch]:
        """The batch of every rank, drawn or recorded."""
        workload, execution = self.scenario.workload, self.scenario.execution
        if execution.routing == "replayed":
            return RecordedBatches.of(workload, self.layout.world_size)
        return SampledBatches(workload, self.layout.world_size, execution.seed)

    def program(self, sync: Sync | None) -> StepProgram:
        """The step program with replicas synchronised by `sync`."""
        return build_program(self.scenario, self.layout, self.sharded, self.demand, self.costs, sync=sync)

    @cached_property
    def trace(self) -> StepTrace:
        """The step a reader wants to see: with its synchronisation if that happens every step, else without."""
        if self.sync is None:
            return self.simulated(None)
        return self.sync.of(self.shown_sync)

    @property
    def shown_sync(self) -> Sync | None:
        """How replicas synchronise in the step of `trace`; None where they do not, or not in every step."""
        layout = self.scenario.layout
        if self.layout.replicas == 1 or (layout.sync == "weights" and layout.sync_interval > 1):
            return None
        return layout.sync

    @cached_property
    def sync(self) -> SyncSteps | None:
        """The step with each way to synchronise replicas; None where there is one replica."""
        if self.layout.replicas == 1:
            return None
        return SyncSteps(self.simulated)

    def simulated(self, sync: Sync | None) -> StepTrace:
        """Simulate the step with replicas synchronised by `sync`, with collectives as the profile measured them."""
        lowering = lower if self.measured is None else self.measured.lower
        return simulate_program(self.program(sync), self.cluster, lowering, shares_cores=self._shares_cores)

    @property
    def _shares_cores(self) -> bool:
        """Whether it was measured how ranks and the threads that carry their collectives slow each other down."""
        return self.cluster.on_cpu and self.measured is not None and self.measured.beside_work

    @cached_property
    def drawn(self) -> tuple[DrawnStep, ...]:
        """Steps with times drawn from what the profile's measurements scattered, with the scenario's seed.

        Without a profile, or with one that knows of no spread, there are none.
        """
        if self.profile is None or self.measured is None or not scatters(self.profile):
            return ()
        programs = {sync: self.program(sync) for sync in self._synced}
        count = draws_for(self.cluster.size, sum(len(program.ops) for program in programs.values()))
        every = draws(self.profile, self.measured, count=count, seed=self.scenario.execution.seed)
        watched = tqdm(every, total=count, desc="interval", unit="draw", delay=2, leave=False, disable=None)
        return tuple(self._drawn(draw, programs) for draw in watched)

    def _drawn(self, draw: Draw, programs: Mapping[Sync | None, StepProgram]) -> DrawnStep:
        traces = {
            sync: simulate_program(draw.program(program), self.cluster, draw.lower, shares_cores=self._shares_cores)
            for sync, program in programs.items()
        }
        return DrawnStep(trace=traces[self.shown_sync], step_time_s=self._mean_step_s(traces))

    @property
    def _synced(self) -> tuple[Sync | None, ...]:
        """The ways to synchronise that the mean step time depends on."""
        averaged = self.layout.replicas > 1 and self.shown_sync is None
        return (None, "weights") if averaged else (self.shown_sync,)

    def _mean_step_s(self, traces: Mapping[Sync | None, StepTrace]) -> float:
        plain = traces[self.shown_sync].step_time_s
        if "weights" not in traces:
            return plain
        return plain + (traces["weights"].step_time_s - plain) / self.scenario.layout.sync_interval

    @property
    def interval(self) -> tuple[float, float] | None:
        """Seconds between which the mean step time lies with a probability of 80 %; None where nothing tells.

        Residuals of the profile's curves and fits and its noise, drawn and simulated again; see `intervals`.
        """
        return interval_of([step.step_time_s for step in self.drawn]) if self.drawn else None

    @property
    def step_time_s(self) -> float:
        """Predicted mean step time in seconds, synchronisation averaged over its interval."""
        layout = self.scenario.layout
        if self.sync is not None and layout.sync == "weights":
            return self.sync.average_weights_s(layout.sync_interval)
        return self.trace.step_time_s


def _costs(cluster: Cluster, constants: Mapping[str, Sourced], profile: Profile | None) -> CostModel:
    return CostModel(cluster, constants) if profile is None else ProfiledCosts(cluster, constants, profile.work)


def load_cluster(choice: ClusterChoice) -> Cluster:
    """Return the cluster a scenario names. Raises InputError for an unknown preset or a bad file."""
    if choice.file is not None:
        return load_cluster_file(choice.file, nodes=choice.nodes, degrade=dict(choice.degrade))
    return load_preset(choice.preset or "", nodes=choice.nodes or 1, degrade=dict(choice.degrade))


def predict(scenario: Scenario) -> Prediction:
    """Return the prediction of one training step of `scenario`. Raises InputError for contradictions."""
    prediction = Prediction(scenario)
    prediction.trace  # noqa: B018  simulate now, so that errors appear here
    return prediction


def simulate(scenario: Scenario) -> StepTrace:
    """Return the predicted StepTrace of one steady-state step of `scenario`."""
    return Prediction(scenario).trace


def simulate_program(
    program: StepProgram, cluster: Cluster, lowering: Lowering = lower, *, shares_cores: bool = False
) -> StepTrace:
    """Run the program past its warm-up and return its steady-state step, seconds from the step's start.

    The step time is the distance between the ends of the last compute operation, on the slowest rank, of two
    successive steps. Ranks on CPUs compute on their host thread (see `inline`).
    """
    if cluster.on_cpu:
        program = inlined(program)
    steps = program.warmup_steps + 1
    engine = Engine(program, cluster, steps, lowering, shares_cores=shares_cores)
    timeline = engine.run()
    marks = timeline.end[:, _last_compute(program)].max(axis=1)
    origin, idle = marks[-2], np.zeros(program.world_size)
    return StepTrace(
        source="predicted",
        ops=tuple(_describe(op, timeline, engine.lowered, index) for index, op in enumerate(program.ops)),
        start_s=timeline.start[-1] - origin,
        end_s=timeline.end[-1] - origin,
        wait_s=np.maximum(timeline.begun[-1] - timeline.start[-1], 0.0),
        launch_s=np.zeros_like(timeline.start[-1])
        if cluster.on_cpu
        else np.stack([_launch_waits(op, timeline, index) for index, op in enumerate(program.ops)]),
        copied_s=np.stack([timeline.copied_s.get(index, idle) for index in range(len(program.ops))]),
        host_s=0.0 if cluster.on_cpu else sum(op.host_s for op in program.ops),
        step_time_s=float(marks[-1] - origin),
        events=timeline.events,
        link_bytes=timeline.link_bytes / steps,
    )


def _last_compute(program: StepProgram) -> int:
    return max(index for index, op in enumerate(program.ops) if op.stream == "compute")


def _launch_waits(op: Op, timeline: Timeline, index: int) -> FloatArray:
    """Seconds of a compute span beyond its copies and its work: the device waits for launches, [ranks]; none in a
    collective."""
    if isinstance(op.work, Collective):
        return np.zeros(timeline.end.shape[-1])
    busy = op.work.seconds + timeline.copied_s.get(index, 0.0)
    waited: FloatArray = np.maximum(timeline.end[-1, index] - timeline.begun[-1, index] - busy, 0.0)
    return waited


def _describe(op: Op, timeline: Timeline, lowered: Callable[[Op], LoweredGroups], index: int) -> OpInfo:
    """The operation as the trace keeps it; of a collective, the group that took longest."""
    info = None
    if isinstance(op.work, Collective):
        info = _collective_info(op.work, lowered(op), timeline.end[-1, index] - timeline.begun[-1, index])
    return OpInfo(name=op.name, label=op.label, stage=op.stage, stream=op.stream, batch=op.batch, collective=info)


def _collective_info(work: Collective, groups: LoweredGroups, durations: FloatArray) -> CollectiveInfo:
    slowest = int(work.groups.group_of[int(np.argmax(durations))])
    out, into = busiest(work)
    sizes = work.groups.sizes
    joined = sizes[sizes > 1] if sizes.max() > 1 else sizes
    return CollectiveInfo(
        kind=work.kind,
        algorithm=groups[slowest].algorithm,
        group_size=int(joined.max()),
        groups=len(joined),
        max_bytes_out=out,
        max_bytes_in=into,
        time_s=float(durations.max()),
        bound_s=groups[slowest].bound_s,
        bottleneck=groups[slowest].bottleneck,
        group_sizes=tuple(np.unique(joined).tolist()),
        peers=int(groups.peers.max()),
    )


def busiest(work: Collective) -> tuple[float, float]:
    """Most bytes that any rank of a collective must send to others and receive from others, whatever the algorithm.

    With n members: reduce_scatter and all_gather (n - 1)/n of the size, all_reduce both after one another.
    """
    if work.kind == "all_to_all":
        return (
            max(float(pairs.bytes_out().max()) for pairs in work.traffic),
            max(float(pairs.bytes_in().max()) for pairs in work.traffic),
        )
    rounds = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 1}[work.kind]
    moved = max(
        rounds * work.nbytes_of(group) * (size - 1) / size for group, size in enumerate(work.groups.sizes.tolist())
    )
    return moved, moved
