"""The exact demand of a step is what a loop over ids counts, and sampled steps average to the closed expectation."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.ids.access import Distribution
from foreshard.simulator.job.batches import jagged_batch
from foreshard.simulator.job.layout import Layout, resolve_layout
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, Access, Table, Workload
from foreshard.simulator.lookups.exact_demand import exact_demand
from foreshard.simulator.lookups.expectation import expected_demand
from foreshard.simulator.lookups.sampling import SampledBatches, sampled_demand
from foreshard.simulator.plans.placement import resolve_plan
from foreshard.topologies.errors import InputError

LOCAL = ("lookups", "lookup_bytes", "outputs", "distinct_rows", "distinct_elements", "distinct_bytes")


def on_one_group(job):
    """Arguments of exact_demand for a job on a world of one sharding group."""
    workload = Workload(batch_size=1, tables=tuple(t.table for t in job.sharded))
    layout = resolve_layout(Layout(), job.members)
    return workload, job.sharded, layout, np.arange(job.members) // job.local, job.batches


def counted(job, home, family):
    """The oracle: every id of every rank walked to its homes, counting as LocalDemand and the collectives define."""
    ids, vectors = np.zeros((job.members, job.members)), np.zeros((job.members, job.members))
    local = {name: np.zeros(job.members) for name in LOCAL}
    touched = defaultdict(set)
    for t in family:
        homes, element = home(t), BYTES_PER_ELEMENT[t.table.data_type]
        for column, width in enumerate(np.diff(t.col_bounds).tolist()):
            for source, batch in enumerate(job.batches):
                for feature in t.table.features:
                    for value in batch.ids(feature).tolist():
                        owner, row = homes[column, value]
                        ids[source, owner] += 1
                        vectors[owner, source] += width * (t.table.pooling == "none")
                        local["lookups"][owner] += 1
                        local["lookup_bytes"][owner] += max(128, width * element)
                        touched[owner, t.table.name, column, width, element].add(row)
                    if t.table.pooling != "none":
                        for owner in {owner for (c, _), (owner, _) in homes.items() if c == column}:
                            vectors[owner, source] += batch.samples * width
    for (owner, _, _, width, element), rows in touched.items():
        local["distinct_rows"][owner] += len(rows)
        local["distinct_elements"][owner] += len(rows) * width
        local["distinct_bytes"][owner] += len(rows) * width * element
    local["outputs"] = vectors.sum(axis=1)
    return ids, vectors, local


@given(data=st.data())
def test_exact_demand_counts_what_a_loop_over_ids_counts(jobs, home, data):
    """Ids and vectors pair by pair, rows read and written owner by owner, in every family."""
    job = data.draw(jobs())
    demand = exact_demand(*on_one_group(job))
    for family in demand.families:
        tables = [t for t in job.family(family.sharding) if (t.table.pooling != "none") == family.pooled]
        ids, vectors, local = counted(job, home, tables)
        assert np.array_equal(family.ids.traffic_of(0).to_matrix(), ids)
        for name in LOCAL:
            assert getattr(family.local, name).tolist() == local[name].tolist(), name
        if len(family.output) == 1 and family.output[0].kind == "all_to_all":
            assert np.array_equal(family.output[0].traffic_of(0).to_matrix(), vectors)
    assert demand.batch_ids.tolist() == [len(batch.values) for batch in job.batches]


@given(data=st.data())
def test_what_is_sent_is_received_and_every_id_is_looked_up_once_per_column_part(jobs, data):
    job = data.draw(jobs())
    demand = exact_demand(*on_one_group(job))
    for family in demand.families:
        ids = family.ids.traffic_of(0).to_matrix()
        assert ids.sum(axis=0).tolist() == family.local.lookups.tolist()
        tables = [t for t in job.family(family.sharding) if (t.table.pooling != "none") == family.pooled]
        asked = [sum(len(b.ids(f)) * t.col_parts for t in tables for f in t.table.features) for b in job.batches]
        assert ids.sum(axis=1).tolist() == asked
    assert np.array_equal(demand.replica.touched_rows, demand.replica.union_rows)  # one replica is its own union


@given(data=st.data())
def test_pooled_row_kinds_reduce_and_send_every_pooled_column_of_every_sample(jobs, data):
    """A reduce_scatter holds all samples of its ranks; across nodes each sample gets each node's columns once."""
    job = data.draw(jobs(kinds=("row_wise", "table_row_wise", "grid_shard"), pooling=("sum",)))
    samples = np.array([batch.samples for batch in job.batches])
    for family in exact_demand(*on_one_group(job)).families:
        columns = sum(len(t.table.features) * t.table.embedding_dim for t in job.family(family.sharding))
        reduce, *across = family.output
        assert (reduce.kind, sum(reduce.nbytes)) == ("reduce_scatter", samples.sum() * columns)
        for collective in across:
            received = np.zeros(job.members)
            for group, members in enumerate(collective.groups.members):
                received[members] = collective.traffic_of(group).to_matrix().sum(axis=0)
            assert received.tolist() == (samples * columns).tolist()


@given(data=st.data())
def test_deduplication_asks_for_each_distinct_id_once(jobs, data):
    """Ids fall to the distinct ids of (rank, table), times column parts; distinct rows at the owners stay."""
    job = data.draw(jobs())
    plain, dedup = exact_demand(*on_one_group(job)), exact_demand(*on_one_group(job), dedup=True)
    for before, after in zip(plain.families, dedup.families, strict=True):
        tables = [t for t in job.family(before.sharding) if (t.table.pooling != "none") == before.pooled]
        distinct = [
            sum(len({v for f in t.table.features for v in b.ids(f).tolist()}) * t.col_parts for t in tables)
            for b in job.batches
        ]
        assert after.ids.traffic_of(0).to_matrix().sum(axis=1).tolist() == distinct
        assert after.local.distinct_rows.tolist() == before.local.distinct_rows.tolist()
        assert [collective.kind for collective in after.output] == ["all_to_all"]
        assert np.array_equal(after.lengths.traffic_of(0).to_matrix(), before.lengths.traffic_of(0).to_matrix())


@given(data=st.data())
def test_deduplication_returns_one_vector_for_each_id_sent_and_the_batch_owner_makes_the_rest(jobs, data):
    """Vectors sent are the ids that came, column part by column part; each own id is gathered, each bag written."""
    job = data.draw(jobs())
    for family in exact_demand(*on_one_group(job), dedup=True).families:
        tables = [t for t in job.family(family.sharding) if (t.table.pooling != "none") == family.pooled]
        sent = np.zeros(job.members)
        for t in tables:
            for source, batch in enumerate(job.batches):
                distinct = {v for f in t.table.features for v in batch.ids(f).tolist()}
                sent[source] += len(distinct) * t.table.embedding_dim
        assert family.output[0].traffic_of(0).to_matrix().sum(axis=0).tolist() == sent.tolist()
        assert family.local.outputs.sum() == sent.sum()
        for source, batch in enumerate(job.batches):
            ids = [sum(len(batch.ids(f)) for f in t.table.features) for t in tables]
            bags = [
                len(t.table.features) * batch.samples if family.pooled else n for t, n in zip(tables, ids, strict=True)
            ]
            assert family.own.ids[source] == sum(ids)
            assert family.own.gathered[source] == sum(
                n * t.table.embedding_dim for t, n in zip(tables, ids, strict=True)
            )
            assert family.own.outputs[source] == sum(
                n * t.table.embedding_dim for t, n in zip(tables, bags, strict=True)
            )


def test_lookups_stay_in_the_sharding_group_and_replicas_unite_their_rows():
    """By hand: 2 x 2 ranks, one table by rows; group 0 asks for rows 0, 1, 3 and group 1 for rows 1, 3, 3."""
    table = Table(name="t", num_embeddings=4, embedding_dim=8)
    workload = Workload(batch_size=1, tables=(table,))
    for placement, groups in (("contiguous", [[0, 1], [2, 3]]), ("interleaved", [[0, 2], [1, 3]])):
        layout = resolve_layout(Layout(sharding_group_size=2, placement=placement), 4)
        sharded = resolve_plan(Plan(), (table,), 2, 1)
        ids = dict(zip([rank for group in groups for rank in group], ([0, 1], [3], [1], [3, 3]), strict=True))
        batches = [jagged_batch({"t": [ids[rank]]}) for rank in range(4)]
        demand = exact_demand(workload, sharded, layout, np.zeros(4, np.int64), batches)
        family = demand.families[0]
        assert [members.tolist() for members in family.ids.groups.members] == groups
        assert family.ids.traffic_of(0).to_matrix().tolist() == [[2, 0], [0, 1]]
        assert family.ids.traffic_of(1).to_matrix().tolist() == [[1, 0], [0, 2]]
        first, second = groups
        assert family.local.distinct_rows[first].tolist() == [2, 1]
        assert family.local.distinct_rows[second].tolist() == [1, 1]
        assert demand.replica.union_rows[first].tolist() == [2, 1]
        assert demand.replica.union_rows[second].tolist() == [2, 1]


def mixed_job(owner="range"):
    """Every kind, pooled and sequence, on two sharding groups of 4 ranks over nodes of 2; `owner` of row shards."""
    tables, plan = [], []
    kinds = (
        "data_parallel",
        "table_wise",
        "column_wise",
        "row_wise",
        "table_row_wise",
        "table_column_wise",
        "grid_shard",
    )
    for index, kind in enumerate(kinds):
        for pooling in ("sum", "none"):
            name = f"{kind}_{pooling}"
            tables.append(
                Table(name=name, num_embeddings=3000 + 500 * index, embedding_dim=64, pooling=pooling,
                      feature_names=(f"{name}.a", f"{name}.b"), pooling_factor=(2.5, 1.0), access=Access(zipf=1.05))
            )  # fmt: skip
            columns = 2 if kind in ("column_wise", "table_column_wise", "grid_shard") else None
            by_rows = kind in ("row_wise", "table_row_wise", "grid_shard")
            how = TableSharding(sharding=kind, column_shards=columns, owner=owner if by_rows else "range")
            plan.append((name, how))
    workload = Workload(batch_size=64, tables=tuple(tables))
    layout = resolve_layout(Layout(sharding_group_size=4), 8)
    return workload, resolve_plan(Plan(tables=tuple(plan)), workload.tables, 4, 2), layout, np.arange(8) // 2


def numbers(demand):
    """Every array of a demand by its path, collectives as dense matrices or sizes."""
    for family in demand.families:
        if family.own is not None:
            for name in ("ids", "gathered", "outputs"):
                yield f"{family.sharding}.{family.pooled}.own.{name}", getattr(family.own, name)
    yield "batch_ids", demand.batch_ids
    yield "batch_lengths", demand.batch_lengths
    for name in ("weight_bytes", "weight_elements", "state_elements", "touched_rows", "touched_elements",
                 "union_rows", "union_elements"):  # fmt: skip
        yield f"replica.{name}", getattr(demand.replica, name)
    locals_ = [("data_parallel", demand.data_parallel)]
    for family in demand.families:
        key = f"{family.sharding}.{family.pooled}"
        locals_.append((key, family.local))
        for number, collective in enumerate((family.ids, family.lengths, *family.output)):
            for group in range(len(collective.groups)):
                whole = collective.traffic_of(group).to_matrix() if collective.traffic else collective.nbytes_of(group)
                yield f"{key}.{number}.{collective.kind}.{group}", np.asarray(whole)
    for key, local in locals_:
        for name in (*LOCAL, "tables"):
            yield f"{key}.{name}", getattr(local, name)


def placement_error(sharded):
    """Largest relative deviation of a row shard's true share from the expected one: 4 of its standard deviations."""
    shares = [
        Distribution.of(t.table).share_deviation(t.row_parts, hashed=t.owner == "hash") * t.row_parts
        for t in sharded
        if t.row_parts > 1
    ]
    return 4 * max(shares)


@pytest.mark.parametrize(("owner", "dedup"), [("range", False), ("hash", False), ("hash", True)])
def test_expectation_is_the_mean_of_sampled_steps(owner, dedup):
    """40 sampled steps: every mean lies within 5 standard errors, 0.5 % and the rows' chance placement of its form.

    Student's t with 39 degrees of freedom exceeds 5 with a chance of 1e-5; the job has some 1,500 numbers. Where the
    rows behind a table's exact head sit is chance and the same in every step: its standard deviation is stated by
    `share_deviation`, 0.06 % of a shard's ids with ranges here and 0.25 % with hash, of which 4 are allowed.
    """
    job = mixed_job(owner)
    placed = placement_error(job[1])
    assert placed < 0.011
    expected = dict(numbers(expected_demand(*job, dedup=dedup)))
    sampled = [dict(numbers(sampled_demand(*job, seed=9, step=step, dedup=dedup))) for step in range(40)]
    assert all(list(one) == list(expected) for one in sampled)
    for key, wanted in expected.items():
        drawn = np.stack([one[key] for one in sampled])
        error = drawn.std(axis=0, ddof=1) / np.sqrt(len(sampled))
        assert np.all(np.abs(drawn.mean(axis=0) - wanted) <= 5 * error + (0.005 + placed) * np.abs(wanted) + 1e-9), key


def test_batches_depend_on_seed_step_and_rank_only():
    workload = mixed_job()[0]
    four, eight = SampledBatches(workload, 4, seed=5), SampledBatches(workload, 8, seed=5)
    later = eight[3]
    for rank in (3, 0):
        assert np.array_equal(four[rank].values, eight[rank].values)
    assert np.array_equal(later.values, eight[3].values)
    assert np.array_equal(later.values, eight[-5].values)
    others = [eight[2], SampledBatches(workload, 8, seed=6)[3], SampledBatches(workload, 8, seed=5, step=1)[3]]
    assert not any(np.array_equal(later.values[:50], other.values[:50]) for other in others)
    assert len(eight[1:4]) == 3
    with pytest.raises(IndexError):
        four[4]


@settings(max_examples=20)
@given(pooling_factor=st.floats(0.05, 20), seed=st.integers(0, 99))
def test_sampled_lengths_have_the_pooling_factor_as_their_mean(pooling_factor, seed):
    table = Table(name="t", num_embeddings=7, embedding_dim=4, pooling_factor=pooling_factor)
    lengths = SampledBatches(Workload(batch_size=4000, tables=(table,)), 1, seed)[0].lengths
    assert set(np.unique(lengths)) <= {int(pooling_factor), int(pooling_factor) + 1}
    assert lengths.mean() == pytest.approx(pooling_factor, abs=5 * 0.5 / np.sqrt(4000))


def test_one_batch_a_rank_is_required():
    workload, sharded, layout, node_of = mixed_job()
    with pytest.raises(InputError, match="3 batches are given for 8 ranks"):
        exact_demand(workload, sharded, layout, node_of, list(SampledBatches(workload, 3)))


def test_a_hot_row_shows_at_its_owner_with_ranges_and_with_hash():
    """One row takes half of all lookups: its owner gets more than half, every other rank about a sixteenth."""
    table = Table(name="t", num_embeddings=100_000, embedding_dim=8, access=Access(heavy_hitters=(0.5,)))
    workload = Workload(batch_size=2000, tables=(table,))
    layout = resolve_layout(Layout(), 8)
    for owner in ("range", "hash"):
        plan = Plan(default=TableSharding(sharding="row_wise", owner=owner))
        sharded = resolve_plan(plan, workload.tables, 8, 8)
        lookups = sampled_demand(workload, sharded, layout, np.zeros(8, np.int64)).families[0].local.lookups
        share = np.sort(lookups / lookups.sum())
        assert share[-1] == pytest.approx(0.5 + 0.5 / 8, abs=0.02)
        assert share[:-1] == pytest.approx(0.5 / 8, abs=0.02)
