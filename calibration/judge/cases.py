"""TorchRec's jobs that are predicted: plans, pipelines and batch sizes of one model on a testbed."""

from __future__ import annotations

from foreshard.calibration.testbed.shape import BedShape
from foreshard.calibration.validation.cases import Case
from foreshard.simulator.job.scenario import ClusterChoice, Execution, Pipeline, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Dense, Table, Workload

__all__ = ["judged_cases", "timed_alone"]

_TABLES, _ROWS, _DIM, _POOLING = 8, 5_000, 64, 8.0
_BATCH = 512
_DENSE = Dense(layers=((13, 64, 64), (576, 128, 1)))

_WISE = TableSharding(sharding="table_wise")
_ROW = TableSharding(sharding="row_wise")
_PLANS = {
    "table_wise": Plan(default=_WISE),
    "row_wise": Plan(default=_ROW),
    "column_wise": Plan(default=TableSharding(sharding="column_wise", column_shards=2)),
    "table_row_wise": Plan(default=TableSharding(sharding="table_row_wise")),
    "mixed": Plan(default=_ROW, tables=tuple((f"t{place}", _WISE) for place in range(_TABLES // 2))),
}


def timed_alone(seed: int) -> Case:
    """The one job that a single process runs, to learn what TorchRec's host and kernels take."""
    return _case("table_wise", "base", _BATCH, seed)


def judged_cases(shape: BedShape, seed: int) -> list[Case]:
    """Return the cases of a bed; table_row_wise only where there are several ranks in each of several nodes."""
    plans = [name for name in _PLANS if name != "table_row_wise" or (shape.nodes > 1 and shape.ranks_per_node[0] > 1)]
    found = [_case(plan, "base", _BATCH, seed) for plan in plans]
    found += [_case(plan, "sparse_dist", _BATCH, seed) for plan in ("table_wise", "mixed")]
    return [*found, _case("table_wise", "base", 2 * _BATCH, seed), _case("row_wise", "base", _BATCH // 2, seed)]


def _case(plan: str, pipeline: Pipeline, batch: int, seed: int) -> Case:
    tables = tuple(
        Table(name=f"t{place}", num_embeddings=_ROWS, embedding_dim=_DIM, pooling_factor=_POOLING)
        for place in range(_TABLES)
    )
    scenario = Scenario(
        name=f"torchrec-{plan}",
        cluster=ClusterChoice(file="cluster.toml"),
        workload=Workload(batch_size=batch, tables=tables, dense=_DENSE),
        plan=_PLANS[plan],
        execution=Execution(pipeline=pipeline, optimizer="rowwise_adagrad", routing="sampled", seed=seed),
    )
    return Case(job="torchrec", way=f"{plan}, {pipeline}, batch {batch}", scenario=scenario)
