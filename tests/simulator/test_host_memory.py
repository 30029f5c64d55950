"""Tables in host memory: what crosses the host link, what HBM and host memory hold, what it costs and what is said."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.ids.access import Distribution
from foreshard.simulator.job.demand import LocalDemand
from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.scenario import ClusterChoice, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, ShardingType, TableKernel, TableSharding
from foreshard.simulator.job.workload import Access, Dense, Table, Workload
from foreshard.simulator.lookups.host_rows import row_parts_of
from foreshard.simulator.plans.placement import resolve_plan
from foreshard.simulator.results.report import advice_of, memory_of, report
from foreshard.simulator.results.report_text import text_report
from foreshard.simulator.step.memory import Memory
from foreshard.simulator.step.prediction import Prediction
from foreshard.simulator.torchrec.plan_file import PlanFile, parse_plan_file, plan_file_text
from foreshard.simulator.torchrec.torchrec_export import torchrec_calls
from foreshard.simulator.torchrec.torchrec_plan import import_plan_text
from foreshard.topologies.errors import InputError

HEAVY = Workload(batch_size=8192, tables=(), dense=Dense(layers=((8, 4), (132, 1))))


def table(rows: int = 1_000_000, zipf: float = 0.0, **more: object) -> Table:
    return Table(name="t", num_embeddings=rows, embedding_dim=128, access=Access(zipf=zipf), **more)


def scenario(
    held: Table, kernel: TableKernel = "fused", load: float = 0.2, kind: ShardingType = "row_wise", **changes: object
) -> Scenario:
    load = load if kernel == "fused_uvm_caching" else 0.2
    how = TableSharding(sharding=kind, compute_kernel=kernel, cache_load_factor=load)
    workload = replace(HEAVY, tables=(held,))
    return Scenario(
        cluster=ClusterChoice(preset="p5.48xlarge"), workload=workload, plan=Plan(default=how), **changes
    )  # fmt: skip


def local(what: Scenario) -> LocalDemand:
    return Prediction(what).demand.families[0].local


def test_without_a_cache_every_lookup_and_every_updated_row_crosses_the_link() -> None:
    """8 x 8,192 samples of 20 ids of 512 bytes are read by 8 owners; each distinct row is read again and written."""
    found = local(scenario(table(pooling_factor=20.0), "fused_uvm"))
    assert found.host_reads == pytest.approx(8192 * 20 * 512)
    assert found.host_update_reads == pytest.approx(found.distinct_rows * 512)
    assert found.host_writes == pytest.approx(found.distinct_rows * 512)


def test_with_a_cache_the_distinct_rows_that_miss_cross_once_each_way() -> None:
    """Of a uniform table the cache misses the share of rows that it does not hold."""
    found = local(scenario(table(), "fused_uvm_caching", 0.25))
    assert found.host_reads == pytest.approx(0.75 * found.distinct_bytes)
    assert found.host_writes == pytest.approx(found.host_reads)
    assert not found.host_update_reads.any()


@pytest.mark.parametrize(("optimizer", "columns"), [("sgd", 0), ("rowwise_adagrad", 0), ("adagrad", 1), ("adam", 2)])
def test_state_that_is_not_row_wise_crosses_the_link_both_ways(optimizer: str, columns: int) -> None:
    found = local(scenario(table(), "fused_uvm_caching", 1.0, execution=Execution(optimizer=optimizer)))
    state = found.distinct_rows * 128 * 4 * columns
    assert found.host_reads == pytest.approx(0.0)
    assert found.host_update_reads == pytest.approx(state)
    assert found.host_writes == pytest.approx(state)


def misses_by_sorting(distribution: Distribution, bounds: np.ndarray, cached: np.ndarray) -> np.ndarray:
    """Every row one by one: its chance to be hit by 500 ids, without the `cached` most likely rows of its part."""
    ranks = np.arange(distribution.num_embeddings)
    chance = np.diff(distribution.law.mass_before(np.arange(len(ranks) + 1)))
    hit = -np.expm1(500 * np.log1p(-chance))
    part = np.searchsorted(bounds, distribution.rows_of(ranks), side="right") - 1
    shares = []
    for index, kept in enumerate(cached.astype(int)):
        own = hit[part == index]  # hottest first
        shares.append(own[kept:].sum() / own.sum())
    return np.array(shares)


@given(
    rows=st.integers(8, 6000), zipf=st.sampled_from([0.0, 0.6, 1.0, 1.3]), load=st.floats(0, 1),
    parts=st.sampled_from([1, 2, 4]), order=st.sampled_from(["scattered", "by_frequency"]),
)  # fmt: skip
def test_misses_are_those_of_sorting_every_row(rows: int, zipf: float, load: float, parts: int, order: str) -> None:
    """To rounding where all rows are counted; of rows behind the first 2,048 chance says in which part they are."""
    held = Table(name="t", num_embeddings=rows, embedding_dim=4, access=Access(zipf=zipf, order=order))
    distribution, bounds = Distribution.of(held), np.arange(parts + 1) * rows // parts
    split = distribution.row_ranges(bounds)
    cached = np.floor(load * np.diff(bounds))
    found = split.missed(cached, 500)
    known = (rows <= 2048 and zipf > 0) or order == "by_frequency" or parts == 1
    expected = misses_by_sorting(distribution, bounds, cached)
    assert found == pytest.approx(expected, abs=1e-6 if known else 0.03)


KINDS: list[ShardingType] = ["row_wise", "table_wise", "column_wise", "table_row_wise"]


@given(
    kind=st.sampled_from(KINDS), zipf=st.sampled_from([0.0, 1.05]),
    loads=st.lists(st.floats(0.01, 1), min_size=2, max_size=4).map(sorted),
)  # fmt: skip
def test_more_cache_means_fewer_bytes_over_the_link_and_more_in_hbm(
    kind: ShardingType, zipf: float, loads: list[float]
) -> None:
    each = [scenario(table(zipf=zipf), "fused_uvm_caching", load, kind) for load in loads]
    moved = [local(what).host_reads for what in each]
    hbm = [memory(what).items["cache"] for what in each]
    for less, more in pairwise(moved):
        assert np.all(more <= less * (1 + 1e-9))
    for less, more in pairwise(hbm):
        assert np.all(more >= less)


def memory(what: Scenario) -> Memory:
    return memory_of(Prediction(what))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("routing", ["expected", "sampled"])
def test_a_cache_for_every_row_costs_no_time(kind: ShardingType, routing: str) -> None:
    execution = Execution(routing=routing)
    held = table(rows=100_000)
    plain = Prediction(scenario(held, kind=kind, execution=execution))
    cached = Prediction(scenario(held, "fused_uvm_caching", 1.0, kind, execution=execution))
    assert cached.step_time_s == plain.step_time_s


@pytest.mark.parametrize("kernel", ["fused_uvm", "fused_uvm_caching"])
@pytest.mark.parametrize("kind", KINDS)
def test_counted_bytes_are_near_the_expected_ones(kernel: TableKernel, kind: ShardingType) -> None:
    """One sampled batch has 65,536 ids of a table, so counts lie within a few per cent of their expectation."""
    execution = Execution(optimizer="adam")
    expected = local(scenario(table(zipf=0.8), kernel, kind=kind, execution=execution))
    counted = local(scenario(table(zipf=0.8), kernel, kind=kind, execution=replace(execution, routing="sampled")))
    for name in ("host_reads", "host_update_reads", "host_writes"):
        assert getattr(counted, name) == pytest.approx(getattr(expected, name), rel=0.05)


def test_hot_rows_make_a_small_cache_nearly_as_fast_as_hbm_and_uniform_ones_do_not() -> None:
    def slowdown(zipf: float) -> float:
        held = table(rows=10_000_000, zipf=zipf, pooling_factor=20.0)
        times = [Prediction(scenario(held, kernel, 0.05)).step_time_s for kernel in ("fused", "fused_uvm_caching")]
        return times[1] / times[0]

    assert slowdown(1.6) < 1.05
    assert slowdown(0.0) > 2.0


def test_a_fetch_takes_its_bytes_over_the_host_link() -> None:
    """Before the lookup in HBM, no longer than with the batch's copy on the same links; updates write towards the
    host, which nothing else does."""
    held = table(rows=10_000_000, pooling_factor=20.0)
    plain, cached = (Prediction(scenario(held, kernel)) for kernel in ("fused", "fused_uvm_caching"))

    def copied(source: Prediction, name: str) -> np.ndarray:
        (index,) = [index for index, op in enumerate(source.trace.ops) if op.name == name]
        span = source.trace.end_s[index] - source.trace.start_s[index]
        assert (span >= source.trace.copied_s[index]).all()
        return np.asarray(source.trace.copied_s[index])

    demand, cluster = cached.demand.families[0].local, cached.cluster
    fetch = demand.host_reads / cluster.host_to_device_bytes_per_s
    back = demand.host_writes / cluster.device_to_host_bytes_per_s
    batch = copied(plain, "copy_batch_to_device")
    assert (copied(cached, "lookup.row_wise") >= fetch * (1 - 1e-9)).all()
    assert (copied(cached, "lookup.row_wise") <= (fetch + batch) * (1 + 1e-9)).all()
    assert copied(cached, "embedding_backward.row_wise") == pytest.approx(back)
    for name in ("lookup.row_wise", "embedding_backward.row_wise"):
        assert not copied(plain, name).any()


def test_items_by_hand() -> None:
    """1,000,000 rows x 512 bytes on 8 ranks; a quarter cached: 4 + 16 / 4 bytes a row tell which; state in HBM."""
    plain, uvm, cached = (
        memory(scenario(table(), kernel, load))
        for kernel, load in (("fused", 0.2), ("fused_uvm", 0.2), ("fused_uvm_caching", 0.25))
    )
    assert plain.items["weights_sharded"] == pytest.approx(64e6)
    assert not plain.host_bytes.any()
    for found in (uvm, cached):
        assert not found.items["weights_sharded"].any()
        assert found.host_bytes == pytest.approx(512e6)
        assert found.items["optimizer_sharded"] == pytest.approx(plain.items["optimizer_sharded"])
    assert not uvm.items["cache"].any()
    assert cached.items["cache"] == pytest.approx(125_000 * (0.25 * 512 + 4 + 16 * 0.25))
    moved = plain.per_rank_bytes - cached.per_rank_bytes
    assert moved == pytest.approx(64e6 - cached.items["cache"])


def test_state_that_is_not_row_wise_is_in_host_memory_too() -> None:
    found = memory(scenario(table(), "fused_uvm", execution=Execution(optimizer="adam")))
    assert found.host_bytes == pytest.approx(3 * 512e6)
    assert not found.items["optimizer_sharded"].any()


def test_what_does_not_fit_in_host_memory_is_said() -> None:
    """5e9 rows x 512 bytes are more than the 2 TiB of a node, and leave HBM almost empty."""
    prediction = Prediction(scenario(table(rows=5_000_000_000), "fused_uvm"))
    found = memory_of(prediction)
    assert found.fits_hbm
    assert not found.fits
    assert "DOES NOT FIT in host memory" in text_report(report(prediction))
    told = found.to_dict()
    assert (told["fits"], told["fits_hbm"], told["fits_host"]) == (False, True, False)
    for advice in advice_of(prediction):
        assert memory_of(Prediction(advice.scenario)).fits


def test_host_memory_is_advised_with_its_price_and_only_as_many_tables_as_needed() -> None:
    """Three tables of 300 GiB and five small ones on 640 GB: one large table in host memory is not enough, two are."""
    rows = round(300 * 2**30 / 512)
    tables = tuple(Table(name=f"big{i}", num_embeddings=rows, embedding_dim=128) for i in range(3))
    tables += tuple(Table(name=f"small{i}", num_embeddings=1000, embedding_dim=128) for i in range(5))
    dense = Dense(layers=((8, 4), (4 + 8 * 128, 1)))
    what = replace(scenario(table()), workload=Workload(batch_size=64, tables=tables, dense=dense))
    (found,) = [advice for advice in advice_of(Prediction(what)) if "host memory" in advice.text]
    moved = [name for name, how in found.scenario.plan.tables if how.compute_kernel == "fused_uvm_caching"]
    assert moved == ["big0", "big1"]
    fewer = replace(found.scenario, plan=replace(found.scenario.plan, tables=found.scenario.plan.tables[:1]))
    assert not memory(fewer).fits
    assert found.step_times_s == (Prediction(what).step_time_s, Prediction(found.scenario).step_time_s)
    assert found.sentence().count(" ms") == 2


def test_a_kernel_is_read_from_rules_tables_and_overrides() -> None:
    document = {
        "schema": 1,
        "cluster": {"preset": "p5.48xlarge"},
        "workload": {"batch_size": 64, "tables": [{"name": "t", "num_embeddings": 1000, "embedding_dim": 8}]},
        "plan": {"rules": [{"match": "t", "sharding": "row_wise", "compute_kernel": "fused_uvm"}]},
    }
    assert Prediction(read_scenario(document, ())).sharded[0].compute_kernel == "fused_uvm"
    given_by_name = ('plan.tables.t={ sharding = "row_wise", compute_kernel = "fused_uvm_caching" }',)
    found = read_scenario(document, (*given_by_name, "plan.tables.t.cache_load_factor=0.5"))
    (sharded,) = Prediction(found).sharded
    assert (sharded.compute_kernel, sharded.cache_load_factor) == ("fused_uvm_caching", 0.5)
    with pytest.raises(InputError, match="cache_load_factor"):
        read_scenario(document, (*given_by_name, "plan.tables.t.cache_load_factor=1.5"))


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"sharding": "data_parallel", "compute_kernel": "fused_uvm"}, "data_parallel tables live in HBM"),
        ({"sharding": "row_wise", "cache_load_factor": 0.5}, "has no cache"),
    ],
)
def test_contradictions_are_refused(how: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        resolve_plan(Plan(default=TableSharding(**how)), (table(),), 8, 8)


def test_replicas_of_tables_in_host_memory_are_refused_with_all_else() -> None:
    what = scenario(table(), "fused_uvm", layout=Layout(sharding_group_size=4))
    what = replace(what, plan=replace(what.plan, tables=(("absent", TableSharding(sharding="row_wise")),)))
    with pytest.raises(InputError) as refused:
        Prediction(what).plans  # noqa: B018
    assert "how replicas synchronise" in str(refused.value)
    assert "absent" in str(refused.value)


def test_parts_keep_their_own_hottest_rows() -> None:
    """A cache of all rows misses nothing, of none everything, part by part, ranges or hash."""
    for owner in ("range", "hash"):
        (sharded,) = resolve_plan(
            Plan(default=TableSharding(sharding="row_wise", owner=owner)), (table(zipf=1.1),), 8, 8
        )
        split = row_parts_of(sharded)
        assert split.missed(np.full(8, 1e6), 1000) == pytest.approx(0.0)
        assert split.missed(np.zeros(8), 1000) == pytest.approx(1.0)


def imported(kernel: str, kind: str = "table_wise") -> PlanFile:
    shards = [{"shard_sizes": [100, 64], "shard_offsets": [0, 0], "placement": "rank:1/cuda:1"}]
    entry = {"sharding_type": kind, "compute_kernel": kernel, "ranks": [1], "shards": shards}
    return import_plan_text(json.dumps({"plan": {"ebc": {"t": entry}}}))


def test_torchrec_plans_bring_their_kernels_and_take_them_back() -> None:
    """Only the cache's load factor is assumed, and said so; the export names the kernel."""
    cached, whole = imported("fused_uvm_caching"), imported("fused_uvm")
    ((_, how),) = cached.plan.tables
    assert (how.compute_kernel, how.cache_load_factor) == ("fused_uvm_caching", 0.2)
    assert any("cache_load_factor of 0.2" in note for note in cached.notes)
    assert not any("HBM" in note for note in (*cached.notes, *whole.notes))
    for plan, kernel in ((cached, "fused_uvm_caching"), (whole, "fused_uvm")):
        calls = torchrec_calls(resolve_plan(plan.plan, plan.tables, 2, 2), 2, 2)
        assert [str(call) for call in calls.values()] == [f"table_wise(rank=1, compute_kernel={kernel!r})"]
        assert parse_plan_file(json.loads(plan_file_text(plan)), where="again").plan == plan.plan


def test_kernels_that_torchrec_cannot_take_are_not_exported() -> None:
    how = TableSharding(sharding="table_row_wise", compute_kernel="fused_uvm")
    with pytest.raises(InputError, match="takes no compute kernel"):
        torchrec_calls(resolve_plan(Plan(default=how), (table(),), 8, 8), 8, 8)
