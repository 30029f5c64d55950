"""Any 2D layout, groups of different sizes included, against plain loops over rows, columns, ids and ranks."""

import json
import tomllib
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.files.document import to_toml
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.layout import Layout, resolve_layout
from foreshard.simulator.job.scenario import ClusterChoice, Comms, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Access, Dense, Table, Workload
from foreshard.simulator.lookups.plan_demand import exact_demand_of_plans, expected_demand_of_plans
from foreshard.simulator.lookups.sampling import SampledBatches
from foreshard.simulator.plans.placement import resolve_plan_by_size
from foreshard.simulator.plans.rows import part_finder
from foreshard.simulator.results.report import memory_of, report
from foreshard.simulator.step.memory import predict_memory
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import InputError

NODE = 4  # ranks of a node in the demand tests
RANK_KINDS = ["data_parallel", "table_wise", "column_wise", "row_wise"]
NODE_KINDS = ["table_row_wise", "table_column_wise", "grid_shard"]


@st.composite
def layouts(draw, world=8):
    """Contiguous, interleaved or explicit groups, the last ones of any sizes and in any order of ranks."""
    how = draw(st.sampled_from(["contiguous", "interleaved", "explicit", "explicit", "neighbours"]))
    if how in ("contiguous", "interleaved"):
        return Layout(sharding_group_size=draw(st.sampled_from([1, 2, 4, 8])), placement=how)
    ranks = draw(st.permutations(range(world))) if how == "explicit" else list(range(world))
    cuts = sorted(draw(st.sets(st.integers(1, world - 1), max_size=3)))
    bounds = [0, *cuts, world]
    return Layout(groups=tuple(tuple(ranks[a:b]) for a, b in pairwise(bounds)))


@st.composite
def jobs(draw, world=8):
    """(workload, layout, plans by size, node of each rank); kinds that need nodes only where every group has them."""
    layout = resolve_layout(draw(layouts(world)), world)
    node_of = np.arange(world) // NODE
    on_nodes = all(local >= 2 for _, local in layout.group_shapes(node_of))
    tables, named = [], []
    for number in range(draw(st.integers(1, 3))):
        tables.append(
            Table(
                name=f"t{number}",
                num_embeddings=draw(st.sampled_from([1, 3, 50, 331])),
                embedding_dim=draw(st.sampled_from([4, 256])),
                pooling_factor=draw(st.sampled_from([1.0, 3.0])),
                num_poolings=draw(st.sampled_from([1.0, 0.5])),
                pooling=draw(st.sampled_from(["sum", "none"])),
                access=Access(zipf=draw(st.sampled_from([0.0, 1.1]))),
            )
        )
        kind = draw(st.sampled_from(RANK_KINDS + (NODE_KINDS if on_nodes else [])))
        owner = draw(st.sampled_from(["range", "hash"])) if kind in ("row_wise", "table_row_wise") else "range"
        named.append((f"t{number}", TableSharding(sharding=kind, owner=owner)))
    workload = Workload(batch_size=draw(st.integers(1, 12)), tables=tuple(tables))
    return workload, layout, resolve_plan_by_size(Plan(tables=tuple(named)), workload.tables, layout, node_of), node_of


def holders_of(layout, plans):
    """Slow: {(table, row, column slice): the rank that holds it in each group}, and the width of each slice."""
    held, width = defaultdict(list), {}
    sizes = [part.layout.group_size for part in layout.by_size()]
    for group in layout.sharding.members:
        for cut in plans[sizes.index(len(group))]:
            if cut.sharding == "data_parallel":
                continue
            find = part_finder(cut)
            for row in range(cut.table.num_embeddings):
                part = int(find(np.array([row]))[0])
                for column in range(cut.col_parts):
                    held[cut.table.name, row, column].append(int(group[cut.owners[column, part]]))
                    width[cut.table.name, column] = int(cut.col_bounds[column + 1] - cut.col_bounds[column])
    return held, width


@given(job=jobs())
def test_every_row_of_every_column_slice_has_one_owner_in_each_group(job):
    _, layout, plans, _ = job
    held, _ = holders_of(layout, plans)
    for ranks in held.values():
        assert sorted(layout.sharding.group_of[ranks].tolist()) == list(range(layout.replicas))


@given(job=jobs(), exact=st.booleans())
def test_look_ups_never_leave_the_sharding_group_and_lose_nothing(job, exact):
    """Each exchange covers every rank once, inside its group; what a group sends is what its owners look up."""
    workload, layout, plans, node_of = job
    demand = demand_of(workload, layout, plans, node_of, exact)
    for family in demand.families:
        for collective in (family.ids, family.lengths, *family.output):
            assert sorted(np.concatenate(collective.groups.members).tolist()) == list(range(8))
            for members in collective.groups.members:
                assert len(set(layout.sharding.group_of[members].tolist())) == 1
        for group, members in enumerate(family.ids.groups.members):
            sent = family.ids.traffic_of(group).to_matrix()
            assert sent.sum(axis=0) == pytest.approx(family.local.lookups[members])


def demand_of(workload, layout, plans, node_of, exact, **more):
    if exact:
        return exact_demand_of_plans(workload, plans, layout, node_of, SampledBatches(workload, 8, 5), **more)
    return expected_demand_of_plans(workload, plans, layout, node_of, **more)


@given(job=jobs())
@settings(max_examples=40)
def test_every_batch_gets_each_of_its_vectors_once(job):
    workload, layout, plans, node_of = job
    demand = demand_of(workload, layout, plans, node_of, False)
    for family in demand.families:
        mine = [t for cut in plans[0] if cut.sharding == family.sharding for t in [cut.table]]
        mine = [t for t in mine if (t.pooling != "none") == family.pooled]
        wanted = workload.batch_size * sum(t.vectors_per_sample * t.embedding_dim for t in mine)
        got, last = np.zeros(8), family.output[-1]
        for group, members in enumerate(last.groups.members):
            if last.kind == "all_to_all":
                got[members] = last.traffic_of(group).to_matrix().sum(axis=0)
            else:
                got[members] = last.nbytes_of(group) / len(members)
        assert got == pytest.approx(np.full(8, wanted))


@given(job=jobs(), exact=st.booleans(), optimizer=st.sampled_from(["sgd", "rowwise_adagrad", "adam"]))
def test_replicas_synchronise_each_piece_once_among_those_who_hold_it(job, exact, optimizer):
    """Round by round, the elements a set of ranks has in common are those of rows that exactly these ranks hold."""
    workload, layout, plans, node_of = job
    if layout.even:
        return  # whole shards, held to the plain formula elsewhere
    demand = demand_of(workload, layout, plans, node_of, exact, optimizer=optimizer)
    held, width = holders_of(layout, plans)
    elements, state = defaultdict(int), defaultdict(int)
    per_row = {"sgd": lambda _: 0, "rowwise_adagrad": lambda _: 1, "adam": lambda columns: 2 * columns}[optimizer]
    for (table, _, column), ranks in held.items():
        elements[frozenset(ranks)] += width[table, column]
        state[frozenset(ranks)] += per_row(width[table, column])
    seen = defaultdict(int)
    for one in demand.replica_rounds:
        assert sorted(np.concatenate(one.groups.members).tolist()) == list(range(8))
        for members in one.groups.members:
            who = frozenset(members.tolist())
            if len(who) < layout.replicas:
                assert one.weight_elements[members].tolist() == [0]
                continue
            seen[who] += 1
            assert one.weight_elements[members].tolist() == [elements[who]] * len(who)
            assert one.weight_bytes[members].tolist() == [4 * elements[who]] * len(who)
            assert one.state_elements[members].tolist() == [state[who]] * len(who)
    assert seen == dict.fromkeys(elements, 1)
    shards = sum((family.weight_elements for family in demand.families), np.zeros(8))
    assert demand.replica.weight_elements == pytest.approx(shards)


@given(job=jobs())
def test_touched_rows_of_uneven_groups_equal_a_loop_over_ids(job):
    """Distinct rows of each rank, and of all its replicas together, piece by piece, from the very ids of a batch."""
    workload, layout, plans, node_of = job
    if layout.even:
        return
    demand = demand_of(workload, layout, plans, node_of, True)
    held, _ = holders_of(layout, plans)
    batches = SampledBatches(workload, 8, 5)
    asked = [{t.name: set(batch.ids(t.name).tolist()) for t in workload.tables} for batch in batches]
    own, union = defaultdict(int), defaultdict(int)
    for (table, row, _), ranks in held.items():
        touched = [any(row in asked[peer][table] for peer in members) for members in layout.sharding.members]
        for rank, touches in zip(ranks, touched, strict=True):
            own[frozenset(ranks), rank] += touches
        union[frozenset(ranks)] += any(touched)
    for one in demand.replica_rounds:
        for members in one.groups.members:
            who = frozenset(members.tolist())
            if len(who) == layout.replicas:
                assert one.touched_rows[members].tolist() == [own[who, rank] for rank in members.tolist()]
                assert set(one.union_rows[members].tolist()) == {union[who]}


@given(job=jobs(), exact=st.booleans())
def test_rows_of_all_replicas_are_no_more_than_their_sum_and_no_fewer_than_the_most(job, exact):
    workload, layout, plans, node_of = job
    for one in demand_of(workload, layout, plans, node_of, exact).replica_rounds:
        for touched, union in ((one.touched_rows, one.union_rows), (one.touched_elements, one.union_elements)):
            for members in one.groups.members:
                both = union[members]
                assert both == pytest.approx(np.full(len(members), both[0]))
                assert touched[members].max() * (1 - 1e-9) <= both[0] <= touched[members].sum() * (1 + 1e-9)


@given(job=jobs())
@settings(max_examples=30)
def test_bags_rarer_than_samples_count_the_same_in_batches_and_in_expectation(job):
    """num_poolings: lengths and pooled vectors do not depend on the ids, so both demands agree to rounding."""
    workload, layout, plans, node_of = job
    expected, exact = (demand_of(workload, layout, plans, node_of, which) for which in (False, True))
    assert exact.batch_lengths == pytest.approx(expected.batch_lengths)
    for one, other in zip(expected.families, exact.families, strict=True):
        for group in range(len(one.lengths.groups)):
            assert one.lengths.traffic_of(group).to_matrix() == pytest.approx(
                other.lengths.traffic_of(group).to_matrix()
            )
        for hop, twin in zip(one.output, other.output, strict=True) if one.pooled else ():
            assert hop.kind == twin.kind
            for group in range(len(hop.groups)):
                if hop.kind == "all_to_all":
                    assert hop.traffic_of(group).to_matrix() == pytest.approx(twin.traffic_of(group).to_matrix())
                else:
                    assert hop.nbytes_of(group) == pytest.approx(twin.nbytes_of(group))


def test_expected_pieces_of_uneven_groups_are_the_mean_of_sampled_steps():
    """Touched and united rows, round by round and rank by rank, within 4.5 standard errors of 60 steps."""
    tables = (
        Table(name="r", num_embeddings=5000, embedding_dim=8, pooling_factor=5, access=Access(zipf=1.05)),
        Table(name="h", num_embeddings=700, embedding_dim=8, access=Access(zipf=0.8)),
    )
    workload = Workload(batch_size=20, tables=tables)
    plan = Plan(tables=(("h", TableSharding(sharding="row_wise", owner="hash")),))
    layout = resolve_layout(Layout(groups=((0, 5), (1, 3, 7), (2, 4, 6))), 8)
    plans = resolve_plan_by_size(plan, tables, layout, np.zeros(8, dtype=np.int64))
    expected = expected_demand_of_plans(workload, plans, layout, np.zeros(8, dtype=np.int64)).replica_rounds
    steps = [
        exact_demand_of_plans(workload, plans, layout, np.zeros(8, dtype=np.int64), SampledBatches(workload, 8, seed))
        for seed in range(60)
    ]
    for index, one in enumerate(expected):
        for name in ("touched_rows", "union_rows"):
            drawn = np.array([getattr(step.replica_rounds[index], name) for step in steps])
            # Which of the cold rows a hash puts in a piece counts as chance in the expectation: 2 % of them.
            allowed = 4.5 * drawn.std(axis=0) / np.sqrt(len(steps)) + 0.02 * drawn.mean(axis=0) + 1e-9
            assert (np.abs(drawn.mean(axis=0) - getattr(one, name)) <= allowed).all()


# -- whole predictions -------------------------------------------------------------------------------------------

TABLES = (
    Table(name="a", num_embeddings=4000, embedding_dim=64, pooling_factor=4, access=Access(zipf=1.05)),
    Table(name="b", num_embeddings=1000, embedding_dim=128, pooling="none"),
    Table(name="c", num_embeddings=64, embedding_dim=16),
    Table(name="h", num_embeddings=3000, embedding_dim=32),
)
PLAN = Plan(
    tables=(
        ("b", TableSharding(sharding="table_wise")),
        ("c", TableSharding(sharding="data_parallel")),
        ("h", TableSharding(sharding="row_wise", owner="hash")),
    )
)


def scenario(layout, *, nodes=1, preset="dgx-a100", routing="expected", plan=PLAN, dense=None, **more):
    return Scenario(
        cluster=ClusterChoice(preset=preset, nodes=nodes),
        workload=Workload(batch_size=256, tables=TABLES, dense=dense or Dense(layers=((240, 64, 1),))),
        plan=plan,
        layout=layout,
        execution=Execution(routing=routing, **more),
        comms=Comms(forward="fp16", backward="bf16"),
    )


@pytest.mark.parametrize("routing", ["expected", "sampled"])
@pytest.mark.parametrize("placement", ["contiguous", "interleaved"])
@pytest.mark.parametrize("sync", ["weights", "gradients", "fully_sharded"])
def test_groups_named_one_by_one_equal_the_same_groups_by_size_to_the_byte(routing, placement, sync):
    """The whole report but for the words on the layout and the hash of the scenario."""
    by_size = scenario(Layout(sharding_group_size=4, placement=placement, sync=sync), nodes=2, routing=routing)
    members = resolve_layout(by_size.layout, 16).sharding.members
    named = scenario(Layout(groups=tuple(map(tuple, np.stack(members).tolist())), sync=sync), nodes=2, routing=routing)
    one, other = (Prediction(each) for each in (by_size, named))
    assert one.trace.start_s.tobytes() == other.trace.start_s.tobytes()
    assert one.trace.end_s.tobytes() == other.trace.end_s.tobytes()
    assert one.trace.link_bytes.tobytes() == other.trace.link_bytes.tobytes()
    told = [report(each, what_if=False).to_dict() for each in (one, other)]
    for each in told:
        each["scenario"].pop("layout")
        each["provenance"].pop("scenario_sha256")
    assert json.dumps(told[0]) == json.dumps(told[1])


def test_a_step_of_two_and_six_ranks_can_be_predicted_and_reported():
    """Every way to synchronise, on the ranks of one node; look-up groups of 2 and 6, replicas in rounds of pairs."""
    for sync in ("weights", "gradients"):
        told = report(Prediction(scenario(Layout(groups=((0, 1), (2, 3, 4, 5, 6, 7)), sync=sync))))
        assert told.sync.replicas == 2
        assert told.sync.plain_step_s < told.step_time_s
        rounds = [row for row in told.collectives if row.name.startswith("replica_sync")]
        assert len(rounds) >= 3
        assert {row.group_size for row in rounds} == {2}
        assert "weighs 3 x one of a group of 6" in told.to_text()
        assert "sharding groups of 2 and 6, named one by one" in told.to_text()


def test_groups_of_one_and_three_by_hand():
    """Rank 0 holds all 12 rows; ranks 1 to 3 hold four each, so three rounds of one pair with 4 rows x 4 columns."""
    table = Table(name="t", num_embeddings=12, embedding_dim=4)
    layout = resolve_layout(Layout(groups=((0,), (1, 2, 3))), 4)
    node_of = np.zeros(4, dtype=np.int64)
    plans = resolve_plan_by_size(Plan(), (table,), layout, node_of)
    demand = expected_demand_of_plans(Workload(batch_size=1, tables=(table,)), plans, layout, node_of)
    pairs = [[m.tolist() for m in one.groups.members if len(m) > 1] for one in demand.replica_rounds]
    assert pairs == [[[0, 1]], [[0, 2]], [[0, 3]]]
    for one in demand.replica_rounds:
        assert sorted(one.weight_elements.tolist()) == [0, 0, 16, 16]
    assert demand.replica.weight_elements.tolist() == [48, 16, 16, 16]
    # 12 rows, one id from rank 0, three from the others; a third of the latter falls on each of them
    assert demand.replica.touched_rows == pytest.approx([1, *[4 * (1 - (11 / 12) ** 3)] * 3])
    assert demand.replica.union_rows == pytest.approx([12 * (1 - (11 / 12) ** 4), *[4 * (1 - (11 / 12) ** 4)] * 3])


def test_node_kinds_use_the_nodes_of_each_group():
    """Groups of one whole node and of two: table_row_wise sums in a node, then crosses to the group's other nodes."""
    plan = Plan(default=TableSharding(sharding="table_row_wise"))
    what = scenario(Layout(groups=(tuple(range(8)), tuple(range(8, 24)))), nodes=3, plan=plan)
    source = Prediction(what)
    assert source.layout.group_shapes(source.cluster.node_of) == ((8, 8), (16, 8))
    pooled = next(family for family in source.demand.families if family.pooled)
    inside, across = pooled.output
    assert {len(members) for members in inside.groups.members} == {8}
    assert sorted(len(members) for members in across.groups.members) == [1] * 8 + [2] * 8
    assert source.trace.step_time_s > 0


@pytest.mark.parametrize("sync", ["weights", "gradients", "fully_sharded"])
@pytest.mark.parametrize("groups", [None, ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 1), (2, 3, 4, 5, 6, 7))])
def test_memory_without_distinct_rows_is_the_memory(sync, groups):
    """What advice tries leaves out distinct rows where memory does not depend on them."""
    if sync == "fully_sharded" and groups is not None and len(groups[0]) == 2:
        return
    what = scenario(Layout(groups=groups, sync=sync))
    whole, lean = Prediction(what), Prediction(what)
    parts = (what, whole.cluster, whole.layout, whole.sharded)
    told = predict_memory(*parts, whole.demand), predict_memory(*parts, lean.memory_demand)
    assert told[0].per_rank_bytes.tobytes() == told[1].per_rank_bytes.tobytes()


# -- fully sharded -----------------------------------------------------------------------------------------------


def fully(dense=None, size=4, **more):
    return Prediction(scenario(Layout(sharding_group_size=size, sync="fully_sharded"), nodes=2, dense=dense, **more))


def test_fully_sharded_replicas_scatter_after_the_lookup_and_gather_before_the_update():
    """meta-pytorch/torchrec 1.9.2: one reduce_scatter and one all_gather of a family's weights over its replicas."""
    source = fully()
    program = source.program("fully_sharded")
    ops = {op.name: op for op in program.ops}
    for family in source.demand.families:
        name = family.sharding if family.pooled else f"{family.sharding}.sequence"
        scatter, gather = ops[f"replica_sync.reduce_scatter.{name}"], ops[f"replica_sync.all_gather.{name}"]
        assert (scatter.work.kind, gather.work.kind) == ("reduce_scatter", "all_gather")
        for work in (scatter.work, gather.work):
            for group, members in enumerate(work.groups.members):
                assert members.tolist() == source.layout.replica.members[group].tolist()
                assert set(family.weight_bytes[members].tolist()) == {work.nbytes_of(group)}
        assert [dep.op for dep in scatter.deps] == [f"lookup.{name}"]
        assert scatter.name in [dep.op for dep in ops["forward"].deps]
        assert [dep.op for dep in ops[f"embedding_backward.{name}"].deps] == [gather.name]
    assert not any("state" in name for name in ops if name.startswith("replica_sync"))


def test_fully_sharded_replicas_move_what_averaging_weights_moves():
    """A reduce_scatter and an all_gather of n bytes send what an all_reduce of n bytes sends: 2 (R - 1) / R n."""

    def sent(source, sync):
        rows = [op for op in source.sync.of(sync).ops if op.collective and op.name.startswith("replica_sync")]
        return sum(op.collective.max_bytes_out for op in rows if "state" not in op.name)

    source = fully(plan=Plan(default=TableSharding(sharding="row_wise")))
    assert sent(source, "fully_sharded") == pytest.approx(sent(source, "weights"))


@given(width=st.sampled_from([1, 100, 10_000]), size=st.sampled_from([2, 4, 8]), kind=st.sampled_from(RANK_KINDS))
@settings(max_examples=24)
def test_memory_of_fully_sharded_replicas_is_the_larger_of_tables_in_use_and_activations(width, size, kind):
    """Shard / replicas always; the whole shard and the activations take turns."""
    dense = Dense(layers=((240, width, 1),))
    plan = Plan(default=TableSharding(sharding=kind))
    parted = fully(dense, size, plan=plan)
    whole = Prediction(scenario(Layout(sharding_group_size=size), nodes=2, dense=dense, plan=plan))
    before, after = memory_of(whole), memory_of(parted)
    shards, activations = before.items["weights_sharded"], before.items["activations"]
    assert after.items["weights_sharded"] == pytest.approx(shards / parted.layout.replicas)
    change = after.per_rank_bytes - before.per_rank_bytes
    turns = shards / parted.layout.replicas + np.maximum(shards, activations)
    assert change == pytest.approx(turns - shards - activations)


def test_weights_that_do_not_divide_are_copied_to_be_padded():
    """15 elements over 2 replicas: TorchRec pads a copy of all weights, in time and in memory."""
    table = Table(name="t", num_embeddings=5, embedding_dim=3)
    what = Scenario(
        cluster=ClusterChoice(preset="dgx-a100"),
        workload=Workload(batch_size=4, tables=(table,)),
        plan=Plan(default=TableSharding(sharding="table_wise", ranks=(1,))),
        layout=Layout(sharding_group_size=4, sync="fully_sharded"),
    )
    source = Prediction(what)
    names = [op.name for op in source.program("fully_sharded").ops]
    assert "replica_sync.pad.table_wise" in names
    items = memory_of(source).items
    assert items["weights_gathered"].tolist() == [0, 2 * 60, 0, 0] * 2
    assert items["weights_sharded"].tolist() == [0, 30, 0, 0] * 2


# -- what cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        (Layout(groups=((0, 1), (2, 3, 4))), ["ranks 5, 6, 7 are in no group"]),
        (Layout(groups=((0, 1, 2, 3), (4, 5, 6, 7, 8))), ["rank 8 is not in this world, whose ranks are 0 to 7"]),
        (Layout(groups=((0, 1, 2, 3), (3, 4, 5, 6, 7))), ["rank 3 is named more than once"]),
        (Layout(groups=((0, 1, 2, 3), (), (4, 5, 6, 7))), ["a group without ranks"]),
        (Layout(groups=()), ["a group without ranks"]),
        (Layout(groups=(tuple(range(8)),), sharding_group_size=8), ["both say the sharding groups"]),
        (Layout(groups=(tuple(range(8)),), placement="interleaved"), ["layout.placement means nothing"]),
        (Layout(groups=((0,), tuple(range(1, 8))), sync="fully_sharded"), ["groups of different sizes do not have"]),
        (Layout(sync="fully_sharded", sync_interval=4), ["averages weights in every step"]),
        (Layout(sharding_group_size=3, sync="fully_sharded", sync_interval=4), ["does not divide", "every step"]),
        (Layout(groups=((0, 0), (9,))), ["rank 9 is not", "rank 0 is named more", "ranks 1, 2, 3, 4, 5, 6, 7 are"]),
    ],
)  # fmt: skip
def test_groups_that_contradict_the_world_are_refused_with_every_mistake(layout, told):
    with pytest.raises(InputError) as refused:
        resolve_layout(layout, 8)
    assert len(refused.value.problems) == len(told)
    for problem, words in zip(refused.value.problems, told, strict=True):
        assert words in problem


def test_a_plan_that_fits_some_groups_only_is_refused_with_their_sizes():
    """Rank 3 exists in groups of 6; a node holds two ranks of each group, but a table on given nodes needs four."""
    layout = Layout(groups=((0, 1), (2, 3, 4, 5, 6, 7)))
    tables = (
        ("a", TableSharding(sharding="table_wise", ranks=(3,))),
        ("b", TableSharding(sharding="column_wise", column_shards=999)),
    )
    with pytest.raises(InputError) as refused:
        _ = Prediction(scenario(layout, plan=Plan(tables=tables))).plans
    problems = refused.value.problems
    assert any("ranks [3] do not exist" in told and told.endswith("[in sharding groups of 2]") for told in problems)
    assert any("999 column shards" in told and "in sharding groups" not in told for told in problems)
    assert len(problems) == 2


def document(**layout):
    return {
        "schema": 1,
        "cluster": {"preset": "dgx-a100"},
        "workload": {"batch_size": 8, "tables": [{"name": "t", "num_embeddings": 64, "embedding_dim": 8}]},
        "plan": {"default": "row_wise"},
        "layout": layout,
    }


def test_groups_of_a_file_are_read_written_and_replaced_by_a_group_size():
    groups = [[0, 1], [2, 3, 4, 5, 6, 7]]
    read = read_scenario(document(groups=groups, sync="gradients"))
    assert read.layout == Layout(groups=((0, 1), (2, 3, 4, 5, 6, 7)), sync="gradients")
    assert read_scenario(tomllib.loads(to_toml(read))) == read
    sized = read_scenario(read, ["layout.sharding_group_size=4"])
    assert sized.layout == Layout(sharding_group_size=4, sync="gradients")
    assert read_scenario(sized, [f"layout.groups={groups}"]) == read


def test_plan_and_layout_mistakes_of_a_file_are_told_together():
    what = document(groups=[[0, 1], [2, 3, 4, 5, 6, 7]], sync="fully_sharded")
    what["plan"]["tables"] = {"t": {"sharding": "table_wise", "ranks": [5]}}
    with pytest.raises(InputError) as refused:
        read_scenario(what)
    sync, plan = refused.value.problems
    assert "groups of different sizes do not have" in sync
    assert "ranks [5] do not exist" in plan


def test_interleaved_groups_and_replicas_are_torchrecs_in_this_order():
    """Group g of G is {g, g + G, ...}, replicas of position p are {pG, ..., pG + G - 1}, G = world / group size.

    DMPCollection in meta-pytorch/torchrec 1.9.2, distributed/model_parallel.py: a group's peers are a step of G apart.
    """
    layout = resolve_layout(Layout(sharding_group_size=4, placement="interleaved"), 12)
    assert [group.tolist() for group in layout.sharding.members] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert [group.tolist() for group in layout.replica.members] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert layout.sharding.group_of[:4].tolist() == [0, 1, 2, 0]
