"""What to do when a plan does not fit: every suggestion is tried on the scenario first and given only if it is true."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from foreshard.simulator.job.codecs import FULL_BYTES
from foreshard.simulator.job.layout import ResolvedLayout
from foreshard.simulator.job.scenario import Scenario
from foreshard.simulator.job.sharding import CACHE_LOAD_FACTOR, Plan, ShardedTable, ShardingType, TableSharding
from foreshard.simulator.job.suggestions import toml_path
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, DataType, Table
from foreshard.simulator.lookups.tally import state_elements_per_row
from foreshard.simulator.step.memory import Memory, shard_weight_bytes
from foreshard.topologies.errors import InputError
from foreshard.topologies.units import format_bytes, format_ms

__all__ = ["Advice", "memory_advice"]

_NAMED = 4  # settings written out in an advice
_MOST_NODES = 1024  # doubling stops here
_SMALLER: tuple[DataType, ...] = ("fp16", "int8")
_OTHER_SHARDINGS: tuple[ShardingType, ...] = ("row_wise", "table_row_wise", "column_wise")


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One change after which every rank fits: what to set, the changed scenario, and the peak bytes it then uses.

    `overrides` are the settings as --set takes them; on a scenario file they do the same as `scenario` shows.
    `step_times_s`, predicted without and with the change, are told of changes that trade time for memory.
    """

    text: str
    overrides: tuple[str, ...]
    scenario: Scenario
    peak_bytes: float
    hbm_cap_bytes: float
    step_times_s: tuple[float, float] | None = None

    def sentence(self) -> str:
        """The advice with the memory, and where it was asked for the step times, that its own prediction found."""
        used = f"{format_bytes(self.peak_bytes)} of {format_bytes(self.hbm_cap_bytes)} on the peak rank"
        if self.step_times_s is None:
            return f"{self.text}: {used}"
        before, after = map(format_ms, self.step_times_s)
        return f"{self.text}: {used}; a step takes {after}, without the change {before} if it fitted"


def memory_advice(
    scenario: Scenario,
    sharded: tuple[ShardedTable, ...],
    layout: ResolvedLayout,
    memory: Memory,
    evaluate: Callable[[Scenario], Memory],
    step_time: Callable[[Scenario], float] | None = None,
) -> tuple[Advice, ...]:
    """Return the single changes that make `scenario` fit, each found true by `evaluate`; empty if there is none.

    Tried in this order: the smallest larger sharding group, fully sharded replicas, another sharding of the table that
    weighs most on the peak rank of `memory`, less optimizer state, narrower weights, tables in host memory, more
    nodes. `sharded` are the tables in the sharding group of that rank; `step_time` predicts seconds.
    """
    trial = _Trial(evaluate, float(memory.hbm_cap_bytes.max()), layout.world_size // (scenario.cluster.nodes or 1))
    peak = float(memory.per_rank_bytes[memory.peak_rank])
    found = (
        trial.first(_larger_groups(scenario, layout), spread_from=peak),
        trial.first(_fully_sharded(scenario, layout)),
        trial.first(_other_sharding(scenario, sharded, layout, memory.peak_rank)),
        trial.first(_less_state(scenario)),
        trial.first(_narrower_weights(scenario)),
        _timed(trial.first(_in_host_memory(scenario, sharded, layout, trial)), scenario, step_time),
        trial.first(_more_nodes(scenario), spread_from=peak if layout.replicas == 1 else np.inf),
    )
    return tuple(advice for advice in found if advice is not None)


def _timed(advice: Advice | None, scenario: Scenario, step_time: Callable[[Scenario], float] | None) -> Advice | None:
    if advice is None or step_time is None:
        return advice
    return replace(advice, step_times_s=(step_time(scenario), step_time(advice.scenario)))


@dataclass(frozen=True, slots=True)
class _Change:
    """A changed scenario, the keys and values that make it out of the present one, and a remark."""

    scenario: Scenario
    settings: tuple[tuple[str, str], ...]
    remark: str

    @property
    def text(self) -> str:
        """What to set, and from what; of many tables the first few."""
        told = [f"{key} = {value}" for key, value in self.settings[:_NAMED]]
        rest = len(self.settings) - _NAMED
        more = [f"the same of {rest} more"] if rest > 0 else []
        *first, last = [*told, *more]
        return f"set {', '.join(first)}{' and ' if first else ''}{last} ({self.remark})"

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings as --set takes them."""
        return tuple(f"{key}={value}" for key, value in self.settings)


@dataclass(frozen=True, slots=True)
class _Trial:
    """Tries changed scenarios; those whose tables alone need more than `cap` bytes a rank are passed over untried."""

    evaluate: Callable[[Scenario], Memory]
    cap: float
    ranks_of_a_node: int

    def first(self, candidates: Iterator[_Change], *, spread_from: float | None = None) -> Advice | None:
        """The first candidate that fits; one that contradicts its plan or machine is passed over.

        Candidates that spread the tables ever further, from a peak of `spread_from` bytes, end where that no longer
        lowers the peak: exchange buffers grow with the group.
        """
        last = spread_from
        for change in candidates:
            memory = self.memory(change.scenario)
            if memory is None:
                continue
            rank = memory.peak_rank
            peak, cap = float(memory.per_rank_bytes[rank]), float(memory.hbm_cap_bytes[rank])
            if memory.fits:
                return Advice(
                    text=change.text, overrides=change.overrides, scenario=change.scenario, peak_bytes=peak,
                    hbm_cap_bytes=cap,
                )  # fmt: skip
            if last is not None and peak >= last:
                return None
            last = last and peak
        return None

    def memory(self, changed: Scenario) -> Memory | None:
        """Memory of a candidate; None where it cannot be, or cannot fit whatever the plan."""
        if self._least_bytes(changed) > self.cap:
            return None
        try:
            return self.evaluate(changed)
        except InputError:
            return None

    def _least_bytes(self, changed: Scenario) -> float:
        """Mean bytes of weights and optimizer state on the ranks of a sharding group: no peak is below."""
        optimizer, shardings, default = changed.execution.optimizer, dict(changed.plan.tables), changed.plan.default
        held = sum(
            table.nbytes + FULL_BYTES * table.num_embeddings * state_elements_per_row(optimizer, table.embedding_dim)
            for table in changed.workload.tables
            if shardings.get(table.name, default).compute_kernel == "fused"
        )
        largest = max(map(len, changed.layout.groups)) if changed.layout.groups else changed.layout.sharding_group_size
        return float(held / (largest or (changed.cluster.nodes or 1) * self.ranks_of_a_node))


def _larger_groups(scenario: Scenario, layout: ResolvedLayout) -> Iterator[_Change]:
    """Larger sharding groups, smallest first."""
    now = int(layout.sharding.sizes.min())
    told = f"from {now}" if scenario.layout.groups is None else "instead of layout.groups"
    for size in range(now + 1, layout.world_size + 1):
        if layout.world_size % size == 0:
            larger = replace(scenario.layout, sharding_group_size=size, groups=None)
            yield _Change(replace(scenario, layout=larger), (("layout.sharding_group_size", str(size)),), told)


def _fully_sharded(scenario: Scenario, layout: ResolvedLayout) -> Iterator[_Change]:
    """Replicas that hold a part of their shards while the dense model needs the memory."""
    if layout.replicas > 1 and layout.even and scenario.layout.sync != "fully_sharded":
        parted = replace(scenario.layout, sync="fully_sharded", sync_interval=1)
        settings = [("layout.sync", "fully_sharded")]
        if scenario.layout.sync_interval != 1:
            settings.append(("layout.sync_interval", "1"))
        yield _Change(replace(scenario, layout=parted), tuple(settings), f"from {scenario.layout.sync}")


def _other_sharding(
    scenario: Scenario, sharded: tuple[ShardedTable, ...], layout: ResolvedLayout, peak_rank: int
) -> Iterator[_Change]:
    """Another sharding for the table that weighs most on the fullest rank, then for every table."""
    position = int(layout.sharding.position_of[peak_rank])
    size = int(layout.sharding.sizes[layout.sharding.group_of[peak_rank]])
    weights = [float(shard_weight_bytes(table, size)[position]) for table in sharded]
    heaviest = sharded[int(np.argmax(weights))]
    name, now = heaviest.table.name, heaviest.sharding
    for sharding in _OTHER_SHARDINGS:
        if sharding != now:
            how = TableSharding(sharding=sharding)
            others = tuple(entry for entry in scenario.plan.tables if entry[0] != name)
            plan = replace(scenario.plan, tables=(*others, (name, how)))
            key = toml_path(("plan", "tables", name))
            yield _Change(replace(scenario, plan=plan), ((key, sharding),), f"it is {now}")
    for sharding in _OTHER_SHARDINGS:
        plan = Plan(default=TableSharding(sharding=sharding))
        if plan != scenario.plan:
            settings: list[tuple[str, str]] = [("plan.default", sharding)]
            if scenario.plan.tables:  # from [plan.tables] and [[plan.rules]], which go before the default
                settings += [("plan.tables", "{}"), ("plan.rules", "[]")]
            yield _Change(replace(scenario, plan=plan), tuple(settings), "every table the same way")


def _less_state(scenario: Scenario) -> Iterator[_Change]:
    now = scenario.execution.optimizer
    if now in ("adam", "adagrad"):
        execution = replace(scenario.execution, optimizer="rowwise_adagrad")
        settings = (("execution.optimizer", "rowwise_adagrad"),)
        yield _Change(replace(scenario, execution=execution), settings, f"from {now}")


def _narrower_weights(scenario: Scenario) -> Iterator[_Change]:
    """All wider tables in a narrower type, the widest narrower type first."""
    tables = scenario.workload.tables
    for data_type in _SMALLER:
        changed = tuple(_narrowed(table, data_type) for table in tables)
        if changed != tables:
            workload = replace(scenario.workload, tables=changed)
            wider = [table.name for table, new in zip(tables, changed, strict=True) if new != table]
            keys = [toml_path(("workload", "tables", name, "data_type")) for name in wider]
            if len(wider) == len(tables):
                keys = ["workload.all_tables.data_type"]
            settings = tuple((key, data_type) for key in keys)
            yield _Change(replace(scenario, workload=workload), settings, "narrower weights")


def _narrowed(table: Table, data_type: DataType) -> Table:
    wider = BYTES_PER_ELEMENT[table.data_type] > BYTES_PER_ELEMENT[data_type]
    return replace(table, data_type=data_type) if wider else table


def _in_host_memory(
    scenario: Scenario, sharded: tuple[ShardedTable, ...], layout: ResolvedLayout, trial: _Trial
) -> Iterator[_Change]:
    """The largest tables in host memory with a cache, as few of them as make HBM suffice: found by bisection."""
    movable = [item.table for item in sharded if not item.in_host_memory and item.sharding != "data_parallel"]
    if not movable or layout.replicas > 1:
        return
    movable.sort(key=lambda table: -table.nbytes)
    least, most = 1, len(movable)
    while least < most:
        middle = (least + most) // 2
        memory = trial.memory(_moved(scenario, movable[:middle]).scenario)
        if memory is not None and memory.fits_hbm:
            most = middle
        else:
            least = middle + 1
    yield _moved(scenario, movable[:least])


def _moved(scenario: Scenario, tables: list[Table]) -> _Change:
    """These tables in host memory, sharded as they are."""
    shardings = dict(scenario.plan.tables)
    for table in tables:
        how = shardings.get(table.name, scenario.plan.default)
        shardings[table.name] = replace(how, compute_kernel="fused_uvm_caching", cache_load_factor=CACHE_LOAD_FACTOR)
    plan = replace(scenario.plan, tables=tuple(shardings.items()))
    settings = [(toml_path(("plan", "tables", table.name)), _inline(shardings[table.name])) for table in tables]
    load = f"the largest in host memory, {CACHE_LOAD_FACTOR:.0%} of their rows cached in HBM"
    return _Change(replace(scenario, plan=plan), tuple(settings), load)


def _inline(how: TableSharding) -> str:
    """A sharding as an inline TOML table, without what is as usual."""
    plain = TableSharding(sharding=how.sharding)
    names = [
        item.name
        for item in fields(how)
        if item.name == "sharding" or getattr(how, item.name) != getattr(plain, item.name)
    ]
    return "{ " + ", ".join(f"{name} = {json.dumps(getattr(how, name))}" for name in names) + " }"


def _more_nodes(scenario: Scenario) -> Iterator[_Change]:
    """Twice, four times ... the nodes, sharded over all of them."""
    if scenario.cluster.file is not None and scenario.cluster.nodes is None:
        return  # the file says what nodes there are, perhaps of several kinds
    nodes = 2 * (scenario.cluster.nodes or 1)
    while nodes <= _MOST_NODES:
        cluster = replace(scenario.cluster, nodes=nodes)
        layout = replace(scenario.layout, sharding_group_size=None, groups=None)
        settings = (("cluster.nodes", str(nodes)), ("layout.sharding_group_size", "world"))
        yield _Change(
            replace(scenario, cluster=cluster, layout=layout),
            settings,
            f"from {scenario.cluster.nodes or 1}, sharded over all",
        )
        nodes *= 2
