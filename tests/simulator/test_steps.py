"""The step program against the collectives that were recorded from a real TorchRec step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.program import STAGES, Collective, Compute, StepProgram
from foreshard.simulator.job.scenario import ClusterChoice, Comms, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Dense, Table, Workload
from foreshard.simulator.results.report import report
from foreshard.simulator.step.prediction import Prediction

# The profiled job: 4 table-wise and 4 row-wise tables of dim 64, batch 1024, 10 ids a sample, 2 ranks, 338,241 dense
# parameters (torch profiler with record_shapes, TorchRec 1.9.2 on gloo).
TABLES = tuple(
    Table(name=f"t{i}", num_embeddings=100_000, embedding_dim=64, pooling_factor=10, pooling="sum") for i in range(8)
)
DENSE = Dense(parameters=338_241, forward_flops_per_sample=6e5)
PLAN = Plan(
    default=TableSharding(sharding="row_wise"),
    tables=tuple((f"t{i}", TableSharding(sharding="table_wise", ranks=(i % 2,))) for i in range(4)),
)


def program(pipeline: str, *, nodes: int = 1, sync: str | None = None, **more: object) -> StepProgram:
    fields = {
        "cluster": ClusterChoice(preset="dgx-a100", nodes=nodes),
        "workload": Workload(
            batch_size=1024, tables=TABLES, dense=Dense(parameters=338_241, forward_flops_per_sample=6e5)
        ),
        "plan": PLAN,
        "layout": Layout(sharding_group_size=2),
        "execution": Execution(pipeline=pipeline),
    } | more
    return Prediction(Scenario(**fields)).program(sync)


def collectives(of: StepProgram) -> list[tuple[str, str, float]]:
    """(name, kind, elements of rank 0 or bytes) of every collective in issue order."""
    found = []
    for op in of.ops:
        if isinstance(op.work, Collective):
            work = op.work
            size = work.traffic_of(0).to_matrix()[0].sum() if work.kind == "all_to_all" else work.nbytes_of(0)
            found.append((op.name, work.kind, size))
    return found


def test_the_base_pipeline_runs_the_recorded_collectives_in_order() -> None:
    """11 collectives with the recorded kinds and sizes: splits, lengths, values, vectors, gradients, dense."""
    assert collectives(program("base")) == [
        ("input_dist.splits.table_wise", "all_to_all", 6 * 8),
        ("input_dist.splits.row_wise", "all_to_all", 6 * 8),
        ("input_dist.lengths.table_wise", "all_to_all", 4_096 * 4),
        ("input_dist.values.table_wise", "all_to_all", pytest.approx(40_960 * 8)),
        ("input_dist.lengths.row_wise", "all_to_all", 8_192 * 4),
        ("input_dist.values.row_wise", "all_to_all", pytest.approx(40_960 * 8)),
        ("output_dist.table_wise", "all_to_all", 262_144 * 4),
        ("output_dist.row_wise", "reduce_scatter", 2_048 * 256 * 4),
        ("output_dist_backward.row_wise", "all_gather", 2_048 * 256 * 4),
        ("output_dist_backward.table_wise", "all_to_all", 262_144 * 4),
        ("dense_all_reduce", "all_reduce", 338_241 * 4),
    ]


def test_sparse_dist_fuses_the_splits_and_routes_the_next_batch_between_forward_and_backward() -> None:
    """10 collectives; lengths and values belong to the next batch and lie between vectors out and gradients back."""
    found = program("sparse_dist")
    names = [name for name, _, _ in collectives(found)]
    assert len(names) == 10
    assert collectives(found)[0] == ("input_dist.splits.fused", "all_to_all", 12 * 8)
    routed = [
        names.index(f"input_dist.{what}.{kind}")
        for what in ("lengths", "values")
        for kind in ("table_wise", "row_wise")
    ]
    assert max(names.index("output_dist.table_wise"), names.index("output_dist.row_wise")) < min(routed)
    assert max(routed) < names.index("output_dist_backward.row_wise")
    assert {op.batch for op in found.ops if op.name.startswith("input_dist")} == {1}


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist"])
def test_every_stage_has_its_operations(pipeline: str) -> None:
    """All seven stages occur in every pipeline."""
    assert {op.stage for op in program(pipeline).ops} == set(STAGES)


def test_replicas_average_weights_and_state_or_exchange_touched_rows() -> None:
    """sync = weights adds two all-reduces over replica groups, gradients two all-gathers and an update."""
    names = {sync: {op.name for op in program("base", sync=sync).ops} for sync in (None, "weights", "gradients")}
    assert names["weights"] - names[None] == {"replica_sync.weights", "replica_sync.state"}
    assert names["gradients"] - names[None] == {
        "replica_sync.counts", "replica_sync.rows", "embedding_optimizer.replicas",
    }  # fmt: skip


def test_lookups_of_the_next_step_wait_for_averaged_weights() -> None:
    """Averaging blocks: no lookup reads a row before its replicas agree on it."""
    lookups = [op for op in program("sparse_dist", sync="weights").ops if op.name.startswith("lookup.")]
    assert lookups
    assert all(("replica_sync.weights", 1) in {(d.op, d.steps_back) for d in op.deps} for op in lookups)


@pytest.mark.parametrize(
    ("precision", "width"), [("fp32", 4), ("fp16", 2), ("bf16", 2), ("fp8", 1 + 4 / 64), ("int8", 1 + 8 / 64)]
)
def test_codecs_change_the_bytes_and_add_their_kernels(precision: str, width: float) -> None:
    """Wire bytes follow the data type with its row scales; every codec but fp32 encodes before and decodes after."""
    found = program("base", comms=Comms(forward=precision))
    sizes = {name: size for name, _, size in collectives(found)}
    assert sizes["output_dist.table_wise"] == pytest.approx(262_144 * width)
    assert sizes["output_dist.row_wise"] == pytest.approx(2_048 * 256 * max(width // 1, 2))  # 16 bits at least: it sums
    assert sizes["output_dist_backward.table_wise"] == 262_144 * 4
    coded = {op.name for op in found.ops if ".encode." in op.name or ".decode." in op.name}
    assert len(coded) == (0 if precision == "fp32" else 4)


@given(
    batch_size=st.integers(1, 64),
    pipeline=st.sampled_from(["base", "sparse_dist"]),
    group=st.sampled_from([1, 2, 4, 8]),
)
def test_forward_never_starts_before_all_vectors_are_there(batch_size: int, pipeline: str, group: int) -> None:
    """On every rank the forward begins after the end of every vector return of its batch."""
    scenario = Scenario(
        cluster=ClusterChoice(preset="dgx-a100", nodes=1),
        workload=Workload(batch_size=batch_size, tables=TABLES, dense=Dense(layers=((64, 64, 1),))),
        layout=Layout(sharding_group_size=group),
        plan=Plan(default=TableSharding(sharding="row_wise"), tables=(("t0", TableSharding(sharding="table_wise")),)),
        execution=Execution(pipeline=pipeline),
    )
    trace = Prediction(scenario).trace
    index = {op.name: i for i, op in enumerate(trace.ops)}
    vectors = [i for name, i in index.items() if name.startswith("output_dist.")]
    assert (trace.start_s[index["forward"]] >= trace.end_s[vectors].max(axis=0)).all()


def test_a_tiny_batch_costs_its_launches() -> None:
    """With one sample the step lasts as long as the host needs to launch it, not as long as its bytes."""
    of = program("base", workload=Workload(batch_size=1, tables=TABLES, dense=Dense(layers=((13, 64, 1),))))
    host = sum(op.host_s for op in of.ops)
    work = sum(float(np.max(op.work.seconds)) for op in of.ops if isinstance(op.work, Compute))
    scenario = Scenario(
        cluster=ClusterChoice(preset="dgx-a100"),
        workload=Workload(batch_size=1, tables=TABLES, dense=Dense(layers=((13, 64, 1),))),
        plan=PLAN,
        layout=Layout(sharding_group_size=2),
    )
    step = Prediction(scenario).sync.plain.step_time_s
    assert step >= host
    assert work < host / 2


@pytest.mark.parametrize(
    ("optimizer", "numbers"), [("sgd", 0), ("rowwise_adagrad", 1 / 64), ("adagrad", 1), ("adam", 2)]
)
def test_replicas_also_average_what_the_optimizer_keeps(optimizer: str, numbers: float) -> None:
    """The state that is synchronised follows the optimizer: none, one number a row, one or two an element."""
    ops = program("base", sync="weights", execution=Execution(optimizer=optimizer)).ops
    moved = {op.name: op.work.nbytes[0] for op in ops if op.name.startswith("replica_sync")}
    assert moved.get("replica_sync.state", 0.0) == pytest.approx(numbers * moved["replica_sync.weights"], rel=0.02)


def test_hops_of_different_kinds_carry_what_they_can() -> None:
    """Of a two-hop exchange in fp8 the sum inside the node carries 16 bits, the way across nodes fp8, coded anew."""
    more = {
        "cluster": ClusterChoice(preset="dgx-a100", nodes=2),
        "layout": Layout(),
        "plan": Plan(default=TableSharding(sharding="table_row_wise")),
        "comms": Comms(forward="fp8"),
    }
    found = program("base", **more)
    full = {name: size for name, _, size in collectives(program("base", **{**more, "comms": Comms()}))}
    sizes = {name: size for name, _, size in collectives(found)}
    assert sizes["output_dist.table_row_wise.1"] == pytest.approx(full["output_dist.table_row_wise.1"] / 2)
    assert sizes["output_dist.table_row_wise.2"] == pytest.approx(
        full["output_dist.table_row_wise.2"] * (1 + 4 / 64) / 4
    )
    assert [op.name for op in found.ops if op.name.startswith("output_dist.") and isinstance(op.work, Compute)] == [
        "output_dist.encode.table_row_wise.1",
        "output_dist.encode.table_row_wise.2",
        "output_dist.decode.table_row_wise",
        "output_dist.join.table_row_wise",
    ]


@pytest.mark.parametrize("sharding", ["table_wise", "row_wise", "column_wise", "data_parallel"])
def test_every_sharding_pays_for_its_backward(sharding: str) -> None:
    """Whoever looks rows up must also sum and apply their gradients: no kind's backward is free."""
    found = program("base", plan=Plan(default=TableSharding(sharding=sharding)))
    seconds = {op.name: float(op.work.seconds.max()) for op in found.ops if isinstance(op.work, Compute)}
    assert seconds[f"embedding_backward.{sharding}"] > seconds[f"lookup.{sharding}"]


def test_dense_gradients_of_replicated_tables_are_reduced_after_they_are_summed() -> None:
    """The dense all-reduce carries the gradients of data_parallel tables, so it waits for them."""
    found = program("base", plan=Plan(default=TableSharding(sharding="data_parallel")))
    [reduce] = [op for op in found.ops if op.name == "dense_all_reduce"]
    assert [dep.op for dep in reduce.deps] == ["embedding_backward.data_parallel"]


def test_exchanging_gradients_writes_rows_once() -> None:
    """With sync = gradients the owner only sums before the exchange; the rows are written after it."""
    summed, fused = (
        {op.name: float(op.work.seconds.max()) for op in program("base", sync=sync).ops if isinstance(op.work, Compute)}
        for sync in ("gradients", "weights")
    )
    assert summed["embedding_backward.row_wise"] < fused["embedding_backward.row_wise"]
    assert "embedding_optimizer.replicas" in summed


def test_launches_are_idle_time_not_compute() -> None:
    """A step that its host bounds says so: the device works for a part of it and waits for launches for the rest."""
    scenario = Scenario(
        cluster=ClusterChoice(preset="dgx-a100"),
        workload=Workload(batch_size=1, tables=TABLES, dense=Dense(layers=((13, 64, 1),))),
        plan=PLAN,
        layout=Layout(),
    )
    prediction = Prediction(scenario)
    told = report(prediction)
    work = sum(
        float(op.work.seconds.max())
        for op in prediction.program(None).ops
        if isinstance(op.work, Compute) and op.stream == "compute"
    )
    assert told.host_bound
    assert told.host_s == pytest.approx(prediction.trace.step_time_s, rel=0.01)
    assert told.breakdown.compute_s == pytest.approx(work, rel=0.05)
    assert told.breakdown.idle_s > 0.5 * told.step_time_s
    assert "THE HOST BOUNDS THE STEP" in told.to_text()
