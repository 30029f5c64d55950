"""What to do when a plan does not fit: every suggestion is tried on the scenario first and given only if it is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from foreshard.simulator.job.codecs import FULL_BYTES
from foreshard.simulator.job.layout import ResolvedLayout
from foreshard.simulator.job.scenario import Scenario
from foreshard.simulator.job.sharding import Plan, ShardedTable, ShardingType, TableSharding
from foreshard.simulator.job.suggestions import toml_path
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, DataType, Table
from foreshard.simulator.lookups.tally import state_elements_per_row
from foreshard.simulator.step.memory import Memory, shard_weight_bytes
from foreshard.topologies.errors import InputError
from foreshard.topologies.units import format_bytes

__all__ = ["Advice", "memory_advice"]

_NAMED = 4  # settings written out in an advice
_MOST_NODES = 1024  # doubling stops here
_SMALLER: tuple[DataType, ...] = ("fp16", "int8")
_OTHER_SHARDINGS: tuple[ShardingType, ...] = ("row_wise", "table_row_wise", "column_wise")


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One change after which every rank fits: what to set, the changed scenario, and the peak bytes it then uses.

    `overrides` are the settings as --set takes them; on a scenario file they do the same as `scenario` shows.
    """

    text: str
    overrides: tuple[str, ...]
    scenario: Scenario
    peak_bytes: float
    hbm_cap_bytes: float

    def sentence(self) -> str:
        """The advice with the memory that its own prediction found."""
        return f"{self.text}: {format_bytes(self.peak_bytes)} of {format_bytes(self.hbm_cap_bytes)} on the peak rank"


def memory_advice(
    scenario: Scenario,
    sharded: tuple[ShardedTable, ...],
    layout: ResolvedLayout,
    memory: Memory,
    evaluate: Callable[[Scenario], Memory],
) -> tuple[Advice, ...]:
    """Return the single changes that make `scenario` fit, each found true by `evaluate`; empty if there is none.

    Tried in this order: the smallest larger sharding group, fully sharded replicas, another sharding of the table that
    weighs most on the peak rank of `memory`, less optimizer state, narrower weights, more nodes. `sharded` are the
    tables in the sharding group of that rank.
    """
    trial = _Trial(evaluate, float(memory.hbm_cap_bytes.max()), layout.world_size // scenario.cluster.nodes)
    peak = float(memory.per_rank_bytes[memory.peak_rank])
    found = (
        trial.first(_larger_groups(scenario, layout), spread_from=peak),
        trial.first(_fully_sharded(scenario, layout)),
        trial.first(_other_sharding(scenario, sharded, layout, memory.peak_rank)),
        trial.first(_less_state(scenario)),
        trial.first(_narrower_weights(scenario)),
        trial.first(_more_nodes(scenario), spread_from=peak if layout.replicas == 1 else np.inf),
    )
    return tuple(advice for advice in found if advice is not None)


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
            memory = self._memory(change.scenario)
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

    def _memory(self, changed: Scenario) -> Memory | None:
        """Memory of a candidate; None where it cannot be, or cannot fit whatever the plan."""
        if self._least_bytes(changed) > self.cap:
            return None
        try:
            return self.evaluate(changed)
        except InputError:
            return None

    def _least_bytes(self, changed: Scenario) -> float:
        """Mean bytes of weights and optimizer state on the ranks of a sharding group: no peak is below."""
        optimizer = changed.execution.optimizer
        held = sum(
            table.nbytes + FULL_BYTES * table.num_embeddings * state_elements_per_row(optimizer, table.embedding_dim)
            for table in changed.workload.tables
        )
        largest = max(map(len, changed.layout.groups)) if changed.layout.groups else changed.layout.sharding_group_size
        return float(held / (largest or changed.cluster.nodes * self.ranks_of_a_node))


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


def _more_nodes(scenario: Scenario) -> Iterator[_Change]:
    """Twice, four times ... the nodes, sharded over all of them."""
    nodes = 2 * scenario.cluster.nodes
    while nodes <= _MOST_NODES:
        cluster = replace(scenario.cluster, nodes=nodes)
        layout = replace(scenario.layout, sharding_group_size=None, groups=None)
        settings = (("cluster.nodes", str(nodes)), ("layout.sharding_group_size", "world"))
        yield _Change(
            replace(scenario, cluster=cluster, layout=layout),
            settings,
            f"from {scenario.cluster.nodes}, sharded over all",
        )
        nodes *= 2
