"""The way of one id: its owners are those that routing finds, its links lead from rank to rank, its bytes add up."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.ids.access import Distribution
from foreshard.simulator.job.batches import jagged_batch
from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.program import STAGES
from foreshard.simulator.job.scenario import ClusterChoice, Comms, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Access, Table, Workload
from foreshard.simulator.lookups.routing import route
from foreshard.simulator.results.explain_guide import explain
from foreshard.simulator.results.explain_text import explanation_text
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cli import run
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import load_preset
from foreshard.topologies.units import format_bandwidth

KINDS = ["table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard"]
LAYOUTS = [
    Layout(),
    Layout(sharding_group_size=8),
    Layout(sharding_group_size=8, placement="interleaved", sync="gradients"),
    Layout(sharding_group_size=4, sync="fully_sharded"),
    Layout(groups=(tuple(range(4)), tuple(range(4, 16)))),
]


def source_of(table, how, layout, *, routing="expected", pipeline="base", dedup=False, nodes=2):
    return Prediction(
        Scenario(
            cluster=ClusterChoice(preset="dgx-a100", nodes=nodes),
            workload=Workload(batch_size=32, tables=(table, Table(name="other", num_embeddings=9, embedding_dim=4))),
            plan=Plan(default=TableSharding(sharding="row_wise"), tables=((table.name, how),)),
            layout=layout,
            comms=Comms(forward="fp16", backward="int8"),
            execution=Execution(routing=routing, pipeline=pipeline, dedup=dedup),
        )
    )


def table_of(pooling="sum", rows=1000, dim=256, **more):
    return Table(name="t", num_embeddings=rows, embedding_dim=dim, pooling=pooling, access=Access(zipf=1.0), **more)


@given(
    kind=st.sampled_from(KINDS),
    owner=st.sampled_from(["range", "hash"]),
    layout=st.sampled_from(LAYOUTS),
    row=st.integers(0, 999),
    rank=st.integers(0, 15),
    pooling=st.sampled_from(["sum", "none"]),
)
@settings(max_examples=50)
def test_owners_and_local_rows_are_those_that_routing_finds(kind, owner, layout, row, rank, pooling):
    how = TableSharding(sharding=kind, owner=owner if kind in ("row_wise", "table_row_wise", "grid_shard") else "range")
    source = source_of(table_of(pooling), how, layout)
    told = explain(source, "t", row, rank)
    for owner_told, column in zip(told.owners, range(len(told.owners)), strict=True):
        for holder in (owner_told.holder, *owner_told.replicas):
            members = source.layout.sharding.members[holder.group]
            (cut, _) = source.sharded_for(holder.rank)
            one = route(jagged_batch({"t": [[row]]}), (cut,), len(members))
            slot = next(number for number, slot in enumerate(one.slots) if slot.column == column)
            positions = np.flatnonzero(one.counts[:, slot])
            assert positions.tolist() == [holder.position]
            assert int(one.rows[np.flatnonzero(one.send == slot)[0]]) == holder.local_row
            assert int(members[holder.position]) == holder.rank
            assert int(source.cluster.node_of[holder.rank]) == holder.node
    assert rank in told.members
    assert {owner.holder.rank for owner in told.owners} <= set(told.members)
    assert sorted(holder.group for owner in told.owners[:1] for holder in owner.replicas) == [
        group for group in range(source.layout.replicas) if group != told.group
    ]


@given(
    kind=st.sampled_from([*KINDS, "data_parallel"]),
    layout=st.sampled_from(LAYOUTS),
    rank=st.integers(0, 15),
    pooling=st.sampled_from(["sum", "none"]),
    pipeline=st.sampled_from(["base", "sparse_dist"]),
    dedup=st.booleans(),
)
@settings(max_examples=40)
def test_seven_stages_whose_hops_join_asker_and_owners_link_by_link(kind, layout, rank, pooling, pipeline, dedup):
    """Routing goes to each owner, vectors come back from it and gradients return, each hop where the last one ended."""
    source = source_of(table_of(pooling), TableSharding(sharding=kind), layout, pipeline=pipeline, dedup=dedup)
    told = explain(source, "t", 789, rank)
    assert tuple(story.stage for story in told.stages) == STAGES
    stories = {story.stage: story for story in told.stages}
    for hop in (hop for story in told.stages for hop in story.hops):
        ends = [link.name.split("->") for link in hop.links]
        assert all(ends[i][1] == ends[i + 1][0] for i in range(len(ends) - 1))
        assert (hop.src == hop.dst) == (not hop.links)
    owners = [owner.holder.rank for owner in told.owners]
    routed = stories["lookup_routing"].hops
    assert [(hop.src, hop.dst, hop.nbytes) for hop in routed] == [(rank, owner, 8) for owner in owners]
    out, back = stories["vector_return"].hops, stories["sparse_gradient_return"].hops
    assert sorted((hop.src, hop.dst) for hop in out) == sorted((hop.dst, hop.src) for hop in back)
    each = len(out) // max(1, len(owners))
    for number, owner in enumerate(owners):
        way = [owner, *(end for hop in out[number * each : (number + 1) * each] for end in (hop.src, hop.dst)), rank]
        assert way[::2] == way[1::2]
    widths = [owner.width for owner in told.owners]
    assert sum(widths) == (0 if kind == "data_parallel" else 256)
    for hop in out:
        assert hop.nbytes in {2 * width for width in widths}
    for hop in back:
        sums = hop.what in ("reduce_scatter", "all_gather")  # which carry 16 bits, since rows of int8 cannot be summed
        assert hop.nbytes in {2 * width if sums else width + 8 for width in widths}
    assert json.loads(json.dumps(told.to_dict(), allow_nan=False))["stages"][6]["stage"] == "optimizer_update"
    assert all(f"{number} {stage}" in explanation_text(told) for number, stage in enumerate(STAGES, start=1))
    assert len(explanation_text(told).splitlines()) < 80
    spans = [span for story in told.stages for span in story.spans]
    assert spans
    assert all(span.start_s <= span.end_s for span in spans)


def test_spans_come_in_the_order_of_the_stages_for_the_batch_that_is_followed():
    """Under sparse_dist an id is copied and routed in the steps before the one that trains it."""
    source = source_of(table_of(), TableSharding(sharding="row_wise"), Layout(), pipeline="sparse_dist")
    told = explain(source, "t", 5, 3)
    ends = [max(span.end_s for span in story.spans) for story in told.stages if story.spans]
    assert ends == sorted(ends)
    assert told.stages[0].spans[0].start_s < -source.trace.step_time_s


def test_the_row_of_a_hot_id_is_expected_as_often_as_it_is_drawn():
    """Its chance times 32 samples of one id each; where batches are sampled it is counted in the very batch."""
    table = table_of(pooling_factor=1)
    chance = [Distribution.of(table).chance_of(row) for row in range(1000)]
    assert sum(chance) == pytest.approx(1)
    hottest = int(np.argmax(chance))
    source = source_of(table, TableSharding(sharding="row_wise"), Layout())
    assert explain(source, "t", hottest, 0).occurrences == pytest.approx(32 * chance[hottest])
    drawn = source_of(table, TableSharding(sharding="row_wise"), Layout(), routing="sampled")
    told = explain(drawn, "t", hottest, 7)
    assert told.counted
    assert told.occurrences == (drawn.batches()[7].ids("t") == hottest).sum()


def test_replicas_are_synchronised_by_the_bytes_of_the_row():
    """256 columns of fp32 with row-wise AdaGrad: averaged with its state, exchanged with its address, or in parts."""
    expected = {
        "weights": [("all_reduce", 1024 + 4)],
        "gradients": [("all_gather", 8 + 1024)],
        "fully_sharded": [("reduce_scatter", 1024), ("all_gather", 1024)],
    }
    for sync, wanted in expected.items():
        layout = Layout(sharding_group_size=8, sync=sync)
        told = explain(source_of(table_of(), TableSharding(sharding="row_wise"), layout), "t", 1, 2)
        assert [(hop.what, hop.nbytes) for hop in told.stages[5].hops] == wanted
        assert [item.rank for item in told.owners[0].replicas] == [8]


def test_a_partial_sum_crosses_nodes_from_the_equal_place_of_the_owners_node():
    """table_row_wise over two nodes: owner to the asker's local place on its node, then on to the asker."""
    how = TableSharding(sharding="table_row_wise", ranks=tuple(range(8)))
    told = explain(source_of(table_of(), how, Layout()), "t", 130, 13)
    assert told.owners[0].holder.rank == 1  # rows 125 to 249
    assert [(hop.what, hop.src, hop.dst) for hop in told.stages[2].hops] == [
        ("reduce_scatter", 1, 5),
        ("all_to_all", 5, 13),
    ]
    assert [(hop.what, hop.src, hop.dst) for hop in told.stages[4].hops] == [
        ("all_to_all", 13, 5),
        ("all_gather", 5, 1),
    ]


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
def test_a_row_in_host_memory_is_said_to_cross_the_host_link(optimizer):
    """125 of 1,000 rows lie on each rank of a node; a fifth of them, 25, is what its cache holds."""
    told = {}
    for kernel in ("fused", "fused_uvm", "fused_uvm_caching"):
        more = {"cache_load_factor": 0.2} if kernel == "fused_uvm_caching" else {}
        how = TableSharding(sharding="row_wise", compute_kernel=kernel, **more)
        scenario = replace(
            source_of(table_of(), how, Layout(), nodes=1).scenario, execution=Execution(optimizer=optimizer)
        )
        stages = explain(Prediction(scenario), "t", 1, 2).stages
        told[kernel] = (stages[2].told, stages[6].told)
    cluster = load_preset("dgx-a100")
    rates = [format_bandwidth(float(each[0])) for each in (
        cluster.host_to_device_bytes_per_s, cluster.device_to_host_bytes_per_s)]  # fmt: skip
    state = "the state too, uncached" if optimizer == "adam" else "the state stays in HBM"
    cached = "unless it is one of the 25 hottest rows of the shard, which an ideal cache holds in HBM"
    assert not any("host" in words for words in told["fused"])
    read, written = told["fused_uvm"]
    assert f"of it in host memory, over its host link at {rates[0]}, adds" in read
    assert written.endswith(f"; weights go back to host memory at {rates[1]}, {state}")
    read, written = told["fused_uvm_caching"]
    assert f"of it, fetched from host memory over its host link at {rates[0]} {cached}, adds" in read
    assert written.endswith(f"; weights go back to host memory at {rates[1]} {cached}, {state}")


def test_everything_that_does_not_exist_is_told_at_once(capsys):
    assert run(["explain", "mlperf-dcnv2-p5", "--table", "t_cat20", "--id", "-1", "--rank", "640"]) == 2
    told = capsys.readouterr().err
    assert "3 mistakes" in told
    assert "there is no table 't_cat20'; did you mean 't_cat_20'?" in told
    assert "id -1 is outside every table" in told
    assert "rank 640 is outside the world, whose ranks are 0 to 63" in told
    assert run(["explain", "mlperf-dcnv2-p5", "--table", "t_cat_20", "--id", "x", "--rank", "1.5"]) == 2
    told = capsys.readouterr().err
    assert "2 mistakes" in told
    assert "id 'x' is no whole number" in told


def test_an_id_past_the_table_is_refused_with_its_range():
    source = source_of(table_of(), TableSharding(sharding="row_wise"), Layout())
    with pytest.raises(InputError, match="id 1000 is outside table 't', whose ids are 0 to 999"):
        explain(source, "t", 1000, 0)


def test_the_command_prints_what_the_library_says():
    from foreshard.simulator.results.explain_command import explain_command

    arguments = ["mlperf-dcnv2-p5", "--table", "t_cat_0", "--id", "7", "--rank", "9", "--set", "cluster.nodes=2"]
    text = CliRunner().invoke(explain_command, arguments)
    assert text.exit_code == 0
    assert text.output.startswith("mlperf-dcnv2-p5: id 7 of table 't_cat_0', in the batch of rank 9 (node 1)")
    told = json.loads(CliRunner().invoke(explain_command, [*arguments, "--json"]).output)
    assert told["table"]["name"] == "t_cat_0"
    assert [story["stage"] for story in told["stages"]] == list(STAGES)
    assert told["owners"][0]["holder"]["rank"] in told["members"]
