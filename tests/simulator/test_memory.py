"""Memory: what each rank holds, item by item."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foreshard.simulator.job.layout import Layout, resolve_layout
from foreshard.simulator.job.scenario import ClusterChoice, Comms, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, Dense, Table, Workload
from foreshard.simulator.lookups.expectation import expected_demand
from foreshard.simulator.plans.placement import resolve_plan
from foreshard.simulator.step.memory import BATCHES_HELD, ITEMS, Memory, predict_memory
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.presets import load_preset

GB = 1e9
DENSE = Dense(layers=((4, 8), (40, 16, 1)))


@pytest.fixture(scope="module")
def node() -> Cluster:
    return load_preset("p5.48xlarge", nodes=1)


@pytest.fixture(scope="module")
def four_nodes() -> Cluster:
    return load_preset("p5.48xlarge", nodes=4)


def scenario(*tables: Table, plan: Plan | None = None, **changes: object) -> Scenario:
    workload = Workload(batch_size=32, tables=tables, dense=changes.pop("dense", DENSE))
    return Scenario(cluster=ClusterChoice(preset="p5.48xlarge"), workload=workload, plan=plan or Plan(), **changes)


def memory(what: Scenario, cluster: Cluster) -> Memory:
    layout = resolve_layout(what.layout, cluster.size)
    local = layout.local_group_size(cluster.node_of)
    sharded = resolve_plan(what.plan, what.workload.tables, layout.group_size, local)
    demand = expected_demand(what.workload, sharded, layout, cluster.node_of, what.execution.optimizer)
    return predict_memory(what, cluster, layout, sharded, demand)


def table_wise(**ranks: int) -> Plan:
    return Plan(
        tables=tuple((name, TableSharding(sharding="table_wise", ranks=(rank,))) for name, rank in ranks.items())
    )


BIG = Table(name="big", num_embeddings=1000, embedding_dim=16, pooling_factor=2.0)
SMALL = Table(name="small", num_embeddings=10, embedding_dim=8, data_type="fp16")


def test_items_are_those_named_and_sum_to_the_total(node: Cluster) -> None:
    found = memory(scenario(BIG, SMALL), node)
    assert list(found.items) == list(ITEMS)
    assert found.per_rank_bytes == pytest.approx(sum(values for values in found.items.values()))
    assert found.to_dict()["per_rank_bytes"][found.peak_rank] == pytest.approx(sum(found.to_dict()["items"].values()))


@given(
    rows=st.integers(1, 5000),
    dim=st.integers(1, 64),
    source=st.integers(0, 7),
    target=st.integers(0, 7),
    optimizer=st.sampled_from(["sgd", "rowwise_adagrad", "adagrad", "adam"]),
)
def test_moving_a_table_moves_exactly_its_bytes(
    node: Cluster, rows: int, dim: int, source: int, target: int, optimizer: str
) -> None:
    """Weights and state leave the one rank and arrive at the other; no other rank's tables change."""
    table = Table(name="t", num_embeddings=rows, embedding_dim=dim)
    run = Execution(optimizer=optimizer)
    before, after = (
        memory(scenario(table, BIG, plan=table_wise(t=rank, big=3), execution=run), node) for rank in (source, target)
    )
    state = {"sgd": 0, "rowwise_adagrad": 4 * rows, "adagrad": 4 * rows * dim, "adam": 8 * rows * dim}[optimizer]
    expected = {"weights_sharded": 4 * rows * dim, "optimizer_sharded": state}
    for item, nbytes in expected.items():
        change = after.items[item] - before.items[item]
        moved = np.zeros(8)
        np.add.at(moved, [source, target], [-nbytes, nbytes])
        assert change.tolist() == moved.tolist()


@given(
    rows=st.integers(1, 300),
    dim=st.sampled_from([4, 16, 256, 260]),
    data_type=st.sampled_from(["fp32", "fp16", "int8"]),
    sharding=st.sampled_from(["table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel"]),
    group=st.sampled_from([1, 4, 8, 32]),
    placement=st.sampled_from(["contiguous", "interleaved"]),
)
def test_weights_equal_a_rank_by_rank_count(
    four_nodes: Cluster, rows: int, dim: int, data_type: str, sharding: str, group: int, placement: str
) -> None:
    """A slow count over ranks, tables and shards gives the same bytes, and each replica holds the whole table."""
    table = Table(name="t", num_embeddings=rows, embedding_dim=dim, data_type=data_type)
    layout = resolve_layout(Layout(sharding_group_size=group, placement=placement), 32)
    assume(sharding != "table_row_wise" or layout.local_group_size(four_nodes.node_of) > 1)
    how = Plan(default=TableSharding(sharding=sharding))
    what = scenario(table, plan=how, layout=layout.layout)
    found = memory(what, four_nodes)
    (cut,) = resolve_plan(how, (table,), group, layout.local_group_size(four_nodes.node_of))
    expected = [0] * 32
    for rank in range(32):
        for column in range(cut.col_parts):
            for row in range(cut.row_parts):
                if cut.owners[column, row] in (-1, layout.sharding.position_of[rank]):
                    height = int(cut.row_bounds[row + 1] - cut.row_bounds[row])
                    width = int(cut.col_bounds[column + 1] - cut.col_bounds[column])
                    expected[rank] += height * width * BYTES_PER_ELEMENT[data_type]
    assert found.weight_bytes.tolist() == expected
    if sharding != "data_parallel":
        assert found.weight_bytes.sum() == table.nbytes * (32 // group)


def test_sharded_weights_are_those_that_replicas_average(four_nodes: Cluster) -> None:
    what = scenario(BIG, SMALL, layout=Layout(sharding_group_size=8))
    layout = resolve_layout(what.layout, 32)
    sharded = resolve_plan(what.plan, what.workload.tables, 8, 8)
    demand = expected_demand(what.workload, sharded, layout, four_nodes.node_of)
    found = predict_memory(what, four_nodes, layout, sharded, demand)
    assert found.items["weights_sharded"].tolist() == demand.replica.weight_bytes.tolist()
    assert found.items["optimizer_sharded"].tolist() == (4 * demand.replica.state_elements).tolist()


def test_replicated_tables_pay_for_whole_gradients(node: Cluster) -> None:
    found = memory(scenario(BIG, plan=Plan(default=TableSharding(sharding="data_parallel"))), node)
    assert found.items["weights_sharded"].sum() == 0
    assert set(found.items["weights_replicated"]) == {4.0 * 16_000}
    assert set(found.items["gradients_replicated"]) == {4.0 * 16_000}
    assert set(found.items["gradient_buckets"]) == {4.0 * (16_000 + DENSE.num_parameters)}


def test_a_pipelined_batch_costs_one_more_batch_and_one_more_received(node: Cluster) -> None:
    base, pipelined = (memory(scenario(BIG, execution=Execution(pipeline=pipe)), node) for pipe in BATCHES_HELD)
    batch = 32 * (2 * 8 + 4) + 32 * 4 * 4  # ids, one length a sample, four dense features
    assert set(base.items["input_batches"]) == {2.0 * batch}
    assert set(pipelined.items["input_batches"]) == {3.0 * batch}
    sent = 32 * 2 * 8 + 8 * 32 * 4  # row_wise sends every feature's lengths to all 8 owners
    assert base.items["input_dist"].sum() == pytest.approx(8 * 2 * sent)
    assert pipelined.items["input_dist"].sum() == pytest.approx(8 * 3 * sent)


def test_codecs_add_their_encoded_copies(node: Cluster) -> None:
    plain = memory(scenario(BIG), node)
    coded = memory(scenario(BIG, comms=Comms(forward="fp16", backward="fp32")), node)
    assert coded.items["output_forward"] == pytest.approx(1.5 * plain.items["output_forward"])
    assert coded.items["output_backward"].tolist() == plain.items["output_backward"].tolist()


def test_activations_are_chain_inputs_and_layer_outputs(node: Cluster) -> None:
    assert set(memory(scenario(BIG), node).items["activations"]) == {32 * 4.0 * (4 + 8 + 40 + 16 + 1)}


def test_gradient_exchange_between_replicas_needs_room_and_averaging_weights_does_not(four_nodes: Cluster) -> None:
    weights = memory(scenario(BIG, layout=Layout(sharding_group_size=8, sync="weights")), four_nodes)
    gradients = memory(scenario(BIG, layout=Layout(sharding_group_size=8, sync="gradients")), four_nodes)
    assert weights.items["replica_sync"].sum() == 0
    assert np.all(gradients.items["replica_sync"] > 0)


def test_one_rank_has_no_collective_buffers_and_eight_have_what_was_measured(node: Cluster) -> None:
    """1.1 GB of context alone; 4.38 GB with all-to-all among the 8 GPUs of a node."""
    eight = memory(scenario(BIG), node)
    alone = memory(scenario(BIG, layout=Layout(sharding_group_size=1)), node)
    assert eight.items["runtime_reserve"] == pytest.approx(1.1e9 + 3.28e9)
    assert alone.items["runtime_reserve"] == pytest.approx(1.1e9 + 2 * 688e6)


def capacity(total_bytes: float, **changes: object) -> Scenario:
    """Tables of that many bytes in fp32 rows of 128, in groups of one node of 8 GPUs."""
    rows = round(total_bytes / (16 * 512))
    tables = tuple(Table(name=f"t{i}", num_embeddings=rows, embedding_dim=128) for i in range(16))
    return scenario(*tables, layout=Layout(sharding_group_size=8), **changes)


def test_640_gb_fit_one_node_only_before_overhead_and_1_tb_does_not(node: Cluster) -> None:
    """640 GB on 8 x 80 GB is 80 GB of 84.9 a rank, before optimizer state, buffers and the runtime's reserve."""
    tight, over = memory(capacity(640 * GB), node), memory(capacity(1000 * GB), node)
    assert (tight.fits_before_overhead, tight.fits) == (True, False)
    assert (over.fits_before_overhead, over.fits) == (False, False)
    assert tight.weight_bytes == pytest.approx(80 * GB, rel=1e-6)


def test_four_nodes_hold_four_replicas_of_what_one_node_holds(node: Cluster, four_nodes: Cluster) -> None:
    one, four = memory(capacity(320 * GB), node), memory(capacity(320 * GB), four_nodes)
    assert one.weight_bytes.tolist() * 4 == four.weight_bytes.tolist()
    assert four.fits


def test_an_override_of_a_constant_is_used(node: Cluster) -> None:
    what = scenario(BIG)
    layout = resolve_layout(what.layout, 8)
    sharded = resolve_plan(what.plan, what.workload.tables, 8, 8)
    demand = expected_demand(what.workload, sharded, layout, node.node_of)
    shipped = predict_memory(what, node, layout, sharded, demand)
    from foreshard.simulator.step.costs import default_constants

    known = default_constants()["context_reserve"]
    changed = predict_memory(
        what, node, layout, sharded, demand, {"context_reserve": replace(known, value=known.value + 1e9)}
    )
    assert changed.per_rank_bytes - shipped.per_rank_bytes == pytest.approx(1e9)
