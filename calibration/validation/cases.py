"""The steps that predictions are held against: jobs, and for each of them several ways to lay it out on a testbed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from foreshard.calibration.testbed.shape import BedShape
from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.scenario import ClusterChoice, Comms, Execution, Pipeline, Scenario
from foreshard.simulator.job.sharding import Plan, ShardingType, TableSharding
from foreshard.simulator.job.workload import Access, Dense, Table, Workload

__all__ = ["SEED", "Case", "cases_of"]

SEED = 7
"""Of the ids that a validation draws, unless another is given."""

_ROWS, _DIM, _TABLES = 5_000, 64, 8
_INTERVAL = 4  # steps between averages of replicas


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One configuration: the `job` it trains and the `way` it is laid out; the scenario lacks its machine."""

    job: str
    way: str
    scenario: Scenario

    @property
    def name(self) -> str:
        """Job and way in one."""
        return f"{self.job}/{self.way}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """A plan and a layout, and how the step is run."""

    name: str
    plan: Plan
    layout: Layout = field(default_factory=Layout)
    pipeline: Pipeline = "base"
    comms: Comms = field(default_factory=Comms)


def _all(kind: ShardingType, **details: int) -> Plan:
    return Plan(default=TableSharding(sharding=kind, **details))


_MIXED = Plan(
    default=TableSharding(sharding="row_wise"),
    tables=tuple((f"t{place}", TableSharding(sharding="table_wise")) for place in range(_TABLES // 2)),
)


def _jobs() -> Iterator[tuple[str, Workload]]:
    """Jobs that differ in batch, pooling, skew and the size of the dense model."""
    small, large = Dense(layers=((13, 64, 64), (576, 128, 1))), Dense(layers=((13, 256, 64), (576, 512, 256, 1)))
    for name, batch, pooling, zipf, dense in (
        ("even-512", 512, 8.0, 0.0, small),
        ("skewed-1024", 1024, 4.0, 1.1, small),
        ("deep-256", 256, 16.0, 0.8, large),
    ):
        tables = tuple(
            Table(
                name=f"t{place}", num_embeddings=_ROWS, embedding_dim=_DIM, pooling_factor=pooling,
                access=Access(zipf=zipf),
            )
            for place in range(_TABLES)
        )  # fmt: skip
        yield name, Workload(batch_size=batch, tables=tables, dense=dense, name=name)


def _ways(shape: BedShape) -> Iterator[_Way]:
    yield _Way(name="table_wise", plan=_all("table_wise"))
    yield _Way(name="row_wise", plan=_all("row_wise"))
    yield _Way(name="column_wise, sparse_dist", plan=_all("column_wise", column_shards=2), pipeline="sparse_dist")
    yield _Way(name="mixed, sparse_dist", plan=_MIXED, pipeline="sparse_dist")
    half = Comms(forward="fp16", backward="bf16")
    yield _Way(name="table_wise, 16 bits", plan=_all("table_wise"), comms=half)
    local = shape.ranks_per_node[0]
    if local == 1 or shape.nodes == 1:
        return
    yield _Way(name="table_row_wise", plan=_all("table_row_wise"))
    for placement in ("contiguous", "interleaved"):
        layout = Layout(
            sharding_group_size=local, placement=placement, sync="weights", sync_interval=_INTERVAL
        )  # fmt: skip
        yield _Way(name=f"2D {placement}, weights every {_INTERVAL}", plan=_all("table_wise"), layout=layout)
    gradients = Layout(sharding_group_size=local, sync="gradients")
    yield _Way(name="2D contiguous, gradients", plan=_MIXED, layout=gradients)


def cases_of(shape: BedShape, jobs: int, seed: int) -> list[Case]:
    """Return every way to lay out the first `jobs` jobs on a testbed; ids are drawn with `seed`."""
    return [
        Case(job=name, way=way.name, scenario=_scenario(workload, way, seed))
        for name, workload in list(_jobs())[:jobs]
        for way in _ways(shape)
    ]


def _scenario(workload: Workload, way: _Way, seed: int) -> Scenario:
    return Scenario(
        name=f"{workload.name}/{way.name}",
        cluster=ClusterChoice(file="cluster.toml"),
        workload=workload,
        plan=way.plan,
        layout=way.layout,
        comms=way.comms,
        execution=Execution(pipeline=way.pipeline, routing="sampled", seed=seed),
    )
