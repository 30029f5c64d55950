"""Deduplication in a predicted step: its operations, their order, and what a user reads and writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.demand import vector_width
from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.program import Compute, StepProgram
from foreshard.simulator.job.scenario import ClusterChoice, Execution, Scenario
from foreshard.simulator.job.workload import Access, Dense, Table, Workload
from foreshard.simulator.results.report import report
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import InputError

HOT = Access(zipf=1.3)
TABLES = (
    Table(name="pooled", num_embeddings=100_000, embedding_dim=64, pooling_factor=20, access=HOT),
    Table(name="sequence", num_embeddings=100_000, embedding_dim=64, pooling_factor=20, pooling="none", access=HOT),
)
SCENARIO = Scenario(
    cluster=ClusterChoice(preset="dgx-a100"),
    workload=Workload(batch_size=512, tables=TABLES, dense=Dense(parameters=1000, forward_flops_per_sample=1e4)),
    layout=Layout(sharding_group_size=8),
)


def deduplicated(scenario: Scenario = SCENARIO, **execution: object) -> Scenario:
    return replace(scenario, execution=Execution(dedup=True, **execution))


def order(program: StepProgram, *names: str) -> list[int]:
    names_of = [op.name for op in program.ops]
    return [names_of.index(name) for name in names]


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist"])
@pytest.mark.parametrize("family", ["row_wise", "row_wise.sequence"])
def test_ids_are_made_distinct_before_they_leave_and_vectors_pooled_after_they_came(pipeline: str, family: str) -> None:
    program = Prediction(deduplicated(pipeline=pipeline)).program(None)
    permuted = order(program, f"input_dist.dedup.{family}", f"input_dist.permute.{family}")
    returned = order(
        program, f"output_dist.{family}", f"output_dist.join.{family}", f"output_dist.pool.{family}", "forward"
    )
    sent_back = order(program, "backward", f"output_dist_backward.unpool.{family}", f"output_dist_backward.{family}")
    for positions in (permuted, returned, sent_back):
        assert positions == sorted(positions)


def test_the_forward_waits_for_the_pooling_and_gradients_for_the_summing() -> None:
    ops = {op.name: op for op in Prediction(deduplicated()).program(None).ops}
    assert "output_dist.pool.row_wise" in {dep.op for dep in ops["forward"].deps}
    assert "output_dist_backward.unpool.row_wise" in {dep.op for dep in ops["output_dist_backward.row_wise"].deps}


def test_the_work_of_the_batch_owner_by_hand() -> None:
    """512 samples x 20 ids: 8 B for each id, its vector of 64 fp32 read, 64 fp32 written a bag; at 64.7 % of HBM."""
    prediction = Prediction(deduplicated())
    ops = {op.name: op for op in prediction.program(None).ops}
    work = ops["output_dist.pool.row_wise"].work
    assert isinstance(work, Compute)
    moved = 512 * 20 * (8 + 64 * 4) + 512 * 64 * 4
    rate = prediction.cluster.gpu(0).hbm_bytes_per_s * 0.647
    assert work.seconds[0] == pytest.approx(max(moved / rate, 3e-6))


def test_without_deduplication_a_step_has_none_of_its_operations() -> None:
    names = {op.name for op in Prediction(SCENARIO).program(None).ops}
    assert not any(word in name for name in names for word in ("dedup", "pool.", "unpool"))


def test_deduplicated_sequences_move_less_in_both_ways_of_routing() -> None:
    """Zipf 1.3, 10,240 ids a rank: far fewer distinct vectors travel than ids were looked up."""
    for routing in ("expected", "sampled"):
        plain = Prediction(replace(SCENARIO, execution=Execution(routing=routing)))
        dedup = Prediction(deduplicated(routing=routing))
        rows = [
            {row.name: row.max_bytes_out for row in report(one, what_if=False).collectives} for one in (plain, dedup)
        ]
        for name in ("input_dist.values.row_wise.sequence", "output_dist.row_wise.sequence"):
            assert rows[1][name] < 0.5 * rows[0][name]
        assert rows[1]["input_dist.lengths.row_wise"] == pytest.approx(rows[0]["input_dist.lengths.row_wise"])


def test_the_report_says_whether_ids_are_deduplicated_and_how() -> None:
    for scenario, value, words in ((SCENARIO, "false", "row owners"), (deduplicated(), "true", "batch owner")):
        notes = {note.name: note for note in report(Prediction(scenario), what_if=False).assumptions}
        assert notes["execution.dedup"].value == value
        assert words in notes["execution.dedup"].source


def test_memory_holds_what_the_batch_owner_makes() -> None:
    """The way back of every id, and pooled vectors beside the distinct ones."""
    from foreshard.simulator.results.report import memory_of

    plain, dedup = (Prediction(one) for one in (SCENARIO, deduplicated()))
    family = next(family for family in dedup.demand.families if family.pooled)
    assert family.own is not None
    found = memory_of(dedup).items["output_forward"]
    assert (found >= family.own.outputs * 4).all()
    assert memory_of(dedup).weight_bytes.tolist() == memory_of(plain).weight_bytes.tolist()


def test_a_scenario_switches_it_on_and_a_wrong_value_is_one_sentence() -> None:
    read = read_scenario("mlperf-dcnv2-p5", ["execution.dedup=true"])
    assert read.execution.dedup
    assert read_scenario(read) == read
    with pytest.raises(InputError, match=r"execution\.dedup = 1: expected true or false"):
        read_scenario("mlperf-dcnv2-p5", ["execution.dedup=1"])


def test_quantised_rows_are_as_wide_as_the_distinct_vectors_that_travel() -> None:
    """Two pooled tables: 1 id a sample of 32 columns, 100 hot ids of 8: few distinct narrow rows, many wide ones."""
    narrow = Table(name="narrow", num_embeddings=10, embedding_dim=8, pooling_factor=100)
    wide = Table(name="wide", num_embeddings=10**6, embedding_dim=32)
    workload = Workload(batch_size=500, tables=(narrow, wide), dense=SCENARIO.workload.dense)
    prediction = Prediction(replace(deduplicated(), workload=workload, layout=Layout()))
    (family,) = prediction.demand.families
    assert vector_width(family, prediction.sharded) == pytest.approx((10 * 8 + 500 * 32) / 510, rel=1e-3)
    plain = Prediction(replace(SCENARIO, workload=workload, layout=Layout()))
    assert vector_width(plain.demand.families[0], plain.sharded) == 20
