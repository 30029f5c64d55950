"""Scenario files: every documented key works as written, overrides change it, what is written reads back equal."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.files.document import parse_override, save_scenario, to_toml
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.files.shipped import shipped_names
from foreshard.simulator.files.tablesets import load_table_set, load_tables
from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.scenario import Assumption, ClusterChoice, Comms, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Access, Dense, Table, Workload
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import preset_text

AS_DOCUMENTED = """
schema = 1
[cluster]
preset = "p5.48xlarge"
nodes = 8
[workload]
batch_size = 8192
[[workload.tables]]
name = "user_id"
num_embeddings = 1_000_000
embedding_dim = 128
pooling_factor = 20
pooling = "mean"
data_type = "fp16"
feature_names = ["user", "author"]
access = { zipf = 1.05 }
[[workload.tables]]
name = "action"
num_embeddings = 5_000
embedding_dim = 64
pooling = "none"
[workload.dense]
forward_flops_per_sample = 1e9
parameters = 1_000_000
data_type = "bf16"
[plan]
default = "row_wise"
[plan.tables.user_id]
sharding = "table_wise"
ranks = [3]
[layout]
sharding_group_size = 8
placement = "interleaved"
sync = "weights"
sync_interval = 4
[comms]
forward = "fp8"
backward = "bf16"
[execution]
pipeline = "sparse_dist"
seed = 7
"""


def job(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_documented_key_means_what_it_says(tmp_path: Path) -> None:
    assert read_scenario(job(tmp_path, AS_DOCUMENTED)) == Scenario(
        name="job",
        cluster=ClusterChoice(preset="p5.48xlarge", nodes=8),
        workload=Workload(
            batch_size=8192,
            tables=(
                Table(
                    name="user_id",
                    num_embeddings=1_000_000,
                    embedding_dim=128,
                    pooling_factor=20.0,
                    pooling="mean",
                    data_type="fp16",
                    feature_names=("user", "author"),
                    access=Access(zipf=1.05),
                ),
                Table(name="action", num_embeddings=5_000, embedding_dim=64, pooling="none"),
            ),
            dense=Dense(forward_flops_per_sample=1e9, parameters=1_000_000, data_type="bf16"),
        ),
        plan=Plan(
            default=TableSharding(sharding="row_wise"),
            tables=(("user_id", TableSharding(sharding="table_wise", ranks=(3,))),),
        ),
        layout=Layout(sharding_group_size=8, placement="interleaved", sync="weights", sync_interval=4),
        comms=Comms(forward="fp8", backward="bf16"),
        execution=Execution(pipeline="sparse_dist", seed=7),
    )


def test_sections_left_out_are_the_defaults(tmp_path: Path) -> None:
    text = 'schema = 1\ncluster.preset = "p5.48xlarge"\nworkload = { batch_size = 8, tables = "avazu" }'
    scenario = read_scenario(job(tmp_path, text))
    assert (scenario.layout, scenario.comms, scenario.execution) == (Layout(), Comms(), Execution())
    assert scenario.plan == Plan()
    assert scenario.layout.sharding_group_size is None


def test_a_table_set_is_its_tables_and_its_assumptions(tmp_path: Path) -> None:
    text = 'schema = 1\ncluster.preset = "p5.48xlarge"\nworkload = { batch_size = 8, tables = "avazu" }'
    scenario = read_scenario(job(tmp_path, text))
    chosen = load_table_set("avazu")
    assert scenario.workload.tables == chosen.tables == load_tables("avazu")
    assert scenario.workload.name == "avazu"
    assert scenario.assumptions == chosen.assumptions


OVERRIDES = {
    "cluster.nodes=4": lambda s: s.cluster.nodes == 4,
    "layout.sharding_group_size=16": lambda s: s.layout.sharding_group_size == 16,
    "layout.sharding_group_size=world": lambda s: s.layout.sharding_group_size is None,
    'layout.placement="contiguous"': lambda s: s.layout.placement == "contiguous",
    "layout.placement=contiguous": lambda s: s.layout.placement == "contiguous",
    "cluster.preset=p4d.24xlarge": lambda s: s.cluster.preset == "p4d.24xlarge",
    'cluster.degrade."node0/nic3<->*"=0.5': lambda s: s.cluster.degrade == (("node0/nic3<->*", 0.5),),
    "workload.tables.action.num_embeddings=77": lambda s: s.workload.tables[1].num_embeddings == 77,
    "workload.tables.user_id.access.zipf=0.9": lambda s: s.workload.tables[0].access.zipf == 0.9,
    "workload.all_tables.embedding_dim=32": lambda s: {t.embedding_dim for t in s.workload.tables} == {32},
    "workload.dense.layers=[[13, 64, 1]]": lambda s: s.workload.dense.layers == ((13, 64, 1),),
    "plan.default=column_wise": lambda s: s.plan.default == TableSharding(sharding="column_wise"),
    "plan.default.owner=hash": lambda s: s.plan.default == TableSharding(sharding="row_wise", owner="hash"),
    "plan.tables.action=data_parallel": lambda s: s.plan.of("action").sharding == "data_parallel",
    "plan.tables.user_id.ranks=[5]": lambda s: s.plan.of("user_id").ranks == (5,),
    "execution.seed = 11": lambda s: s.execution.seed == 11,
    "name=a try": lambda s: s.name == "a try",
}


@pytest.mark.parametrize("assignment", OVERRIDES)
def test_an_override_changes_its_key_and_nothing_else_need_be_said(assignment: str, tmp_path: Path) -> None:
    assert OVERRIDES[assignment](read_scenario(job(tmp_path, AS_DOCUMENTED), (assignment,)))


def test_a_key_with_odd_characters_is_quoted_as_in_toml() -> None:
    assert parse_override('plan.tables."user id=1".sharding=row_wise') == (
        ("plan", "tables", "user id=1", "sharding"),
        "row_wise",
    )


def test_overrides_may_replace_the_tables_and_then_reach_into_them(tmp_path: Path) -> None:
    text = AS_DOCUMENTED.replace('[plan.tables.user_id]\nsharding = "table_wise"\nranks = [3]', "")
    changes = ("workload.tables.cat_1.access.zipf=0.5".replace("cat_1", "t_cat_1"), "workload.tables=avazu")
    scenario = read_scenario(job(tmp_path, text), changes)
    assert len(scenario.workload.tables) == 13
    assert [table.access.zipf for table in scenario.workload.tables[:2]] == [1.15, 0.5]
    assert scenario.workload.name == "avazu"


def test_a_machine_chosen_by_override_takes_the_place_of_the_files_own(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(preset_text("p5.48xlarge"))
    text = AS_DOCUMENTED.replace('preset = "p5.48xlarge"', 'file = "own.toml"')
    assert read_scenario(job(tmp_path, text), ("cluster.preset=p4d.24xlarge",)).cluster.file is None


def test_a_cluster_file_is_found_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(preset_text("p5.48xlarge"))
    text = AS_DOCUMENTED.replace('preset = "p5.48xlarge"', 'file = "own.toml"')
    assert read_scenario(job(tmp_path, text)).cluster.file == str((tmp_path / "own.toml").resolve())


def test_a_table_set_of_ones_own_is_found_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'schema = 1\n[defaults]\nembedding_dim = 8\n[[tables]]\nname = "a"\nnum_embeddings = 5\n'
        '[[tables]]\nname = "b"\nnum_embeddings = 6\nembedding_dim = 4\n'
    )
    text = 'schema = 1\ncluster.preset = "p5.48xlarge"\nworkload = { batch_size = 8, tables = "mine.toml" }'
    workload = read_scenario(job(tmp_path, text)).workload
    assert workload.name == "mine"
    assert [(table.name, table.embedding_dim) for table in workload.tables] == [("a", 8), ("b", 4)]


RULES = """
schema = 1
cluster.preset = "p5.48xlarge"
[workload]
batch_size = 8
[workload.all_tables]
embedding_dim = 8
[[workload.tables]]
name = "user_id"
num_embeddings = 100
[[workload.tables]]
name = "user_age"
num_embeddings = 5
[[workload.tables]]
name = "item_id"
num_embeddings = 9
[[workload.tables]]
name = "big"
num_embeddings = 1000
[plan]
default = "column_wise"
[plan.tables]
user_age = "table_wise"
[[plan.rules]]
max_num_embeddings = 10
sharding = "data_parallel"
[[plan.rules]]
match = "user_*"
sharding = "row_wise"
owner = "hash"
[[plan.rules]]
min_num_embeddings = 100
max_num_embeddings = 100
sharding = "table_wise"
[[plan.rules]]
match = "usr_*"
sharding = "row_wise"
"""


def test_the_first_rule_that_covers_a_table_shards_it_unless_the_table_has_its_own_entry(tmp_path: Path) -> None:
    plan = read_scenario(job(tmp_path, RULES)).plan
    assert {name: plan.of(name).sharding for name in ("user_id", "user_age", "item_id", "big")} == {
        "user_id": "row_wise",
        "user_age": "table_wise",
        "item_id": "data_parallel",
        "big": "column_wise",
    }
    assert plan.of("user_id").owner == "hash"


def test_a_rule_without_effect_is_told_not_ignored(tmp_path: Path) -> None:
    told = {note.name: note.source for note in read_scenario(job(tmp_path, RULES)).assumptions}
    assert told == {
        "plan.rules[2] (min_num_embeddings = 100, max_num_embeddings = 100)": (
            "every table it covers falls under an earlier rule"
        ),
        'plan.rules[3] (match = "usr_*")': "it covers no table",
    }


def test_what_an_override_sets_is_not_assumed_any_more() -> None:
    def names(*overrides: str) -> set[str]:
        return {note.name for note in read_scenario("mlperf-dcnv2-p5", overrides).assumptions}

    assert {"workload.all_tables.access", "execution.optimizer"} <= names()
    assert "workload.all_tables.access" not in names("workload.all_tables.access.zipf=1.2")
    assert "execution.optimizer" not in names("execution.optimizer=sgd")
    assert "workload.all_tables.access" in names("execution.optimizer=sgd")
    assert "workload.all_tables.embedding_dim" in names("workload.tables=avazu")


@pytest.mark.parametrize("name", shipped_names("scenarios"))
def test_a_shipped_scenario_reads_and_says_what_it_assumes(name: str) -> None:
    scenario = read_scenario(name)
    assert scenario.name == name
    assert scenario.description
    assert all(note.source for note in scenario.assumptions)
    assert read_scenario(scenario) == scenario


def test_the_shipped_scenarios_and_table_sets_are_those_promised() -> None:
    assert {"mlperf-dcnv2-p5", "pinterest-like", "capacity-640gb"} <= set(shipped_names("scenarios"))
    assert {"mlperf-dcnv2", "criteo-kaggle", "criteo-1tb", "avazu", "production-like"} <= set(shipped_names("tables"))


# tables, rows, ids per sample and GiB: mlcommons/training, facebookresearch/dlrm, hpcaitech/CachedEmbedding, FBGEMM
PUBLISHED = {
    "mlperf-dcnv2": (26, 204_184_588, 214, 97.36),
    "criteo-kaggle": (26, 33_762_577, 26, 33_762_577 * 16 * 4 / 2**30),
    "criteo-1tb": (26, 187_767_399, 26, 89.53),
    "avazu": (13, 9_445_823, 13, 9_445_823 * 128 * 4 / 2**30),
    "production-like": (28, 91_394_530, 560, 21.79),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shipped_table_set_has_the_published_totals(name: str) -> None:
    chosen = load_table_set(name)
    count, rows, ids, gib = PUBLISHED[name]
    assert len(chosen.tables) == count
    assert sum(table.num_embeddings for table in chosen.tables) == rows
    assert sum(table.ids_per_sample for table in chosen.tables) == ids
    assert sum(table.nbytes for table in chosen.tables) / 2**30 == pytest.approx(gib, abs=0.005)
    assert chosen.source
    assert {note.name for note in chosen.assumptions} >= {"workload.all_tables.access"}


def test_capacity_640gb_is_640_gb_and_its_variant_is_one_terabyte() -> None:
    def total(*overrides: str) -> int:
        return sum(table.nbytes for table in read_scenario("capacity-640gb", overrides).workload.tables)

    assert total() == 640 * 10**9
    assert total("workload.all_tables.num_embeddings=195_312_500") == 10**12


def test_mlperf_dense_layers_are_the_reference_model() -> None:
    dense = read_scenario("mlperf-dcnv2-p5").workload.dense
    cross = 3 * 2 * 3456 * 512
    bottom = 13 * 512 + 512 * 256 + 256 * 128
    top = 3456 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    assert dense.flops_per_sample == 2 * (cross + bottom + top)


# --- written and read back ---------------------------------------------------------------------------------------

printable = st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])
words = st.text(printable, min_size=1, max_size=8)
plain_words = st.text(string.ascii_lowercase, min_size=1, max_size=8)
counts = st.integers(1, 10**6)
shares = st.floats(0.0, 1.0, allow_nan=False)
accesses = st.builds(
    Access,
    zipf=st.floats(0, 8),
    shift=st.floats(0, 1e6),
    locality=shares,
    order=st.sampled_from(["scattered", "by_frequency"]),
)
factors = st.floats(0.001, 1e4)


@st.composite
def tables(draw: st.DrawFn, name: str) -> Table:
    features = draw(st.integers(0, 3))
    return Table(
        name=name,
        num_embeddings=draw(counts),
        embedding_dim=draw(st.integers(1, 256)),
        pooling_factor=draw(st.one_of(factors, st.tuples(*[factors] * max(features, 1)))),
        pooling=draw(st.sampled_from(["sum", "mean", "none"])),
        data_type=draw(st.sampled_from(["fp32", "fp16", "bf16", "fp8", "int8"])),
        feature_names=tuple(f"{name}/{index}" for index in range(features)),
        access=draw(accesses),
    )


shardings = st.one_of(
    st.builds(TableSharding, sharding=st.just("table_wise"), ranks=st.none() | st.tuples(st.integers(0, 3))),
    st.builds(TableSharding, sharding=st.just("row_wise"), owner=st.sampled_from(["range", "hash"])),
    st.builds(TableSharding, sharding=st.just("data_parallel")),
)
denses = st.one_of(
    st.builds(Dense),
    st.builds(Dense, layers=st.lists(st.tuples(counts, counts), min_size=1).map(tuple), kernels=st.none() | counts),
    st.builds(Dense, forward_flops_per_sample=factors, parameters=st.integers(0, 10**9), kernels=st.none() | counts),
)
numbers = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.text(printable, max_size=5))
assumptions = st.builds(Assumption, name=words, value=numbers, unit=st.text(printable, max_size=3), source=words)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    names = draw(st.lists(words, min_size=1, max_size=4, unique=True))
    exceptions = draw(st.lists(st.sampled_from(names), unique=True))
    return Scenario(
        name=draw(words),
        description=draw(st.text(printable, max_size=20)),
        cluster=ClusterChoice(
            preset=draw(st.sampled_from(["p5.48xlarge", "dgx-a100"])),
            nodes=draw(st.integers(1, 2)),
            degrade=draw(st.sampled_from([(), (("node0/nic*->*", 0.5),)])),
        ),
        workload=Workload(
            name=draw(words),
            batch_size=draw(counts),
            tables=tuple(draw(tables(name)) for name in names),
            dense=draw(denses),
        ),
        plan=Plan(
            default=draw(shardings), tables=tuple((name, draw(shardings)) for name in names if name in exceptions)
        ),
        layout=Layout(sharding_group_size=draw(st.sampled_from([None, 4, 8])), sync_interval=draw(counts)),
        comms=Comms(forward=draw(st.sampled_from(["fp32", "fp8"]))),
        execution=Execution(seed=draw(st.integers(0, 2**40)), routing=draw(st.sampled_from(["expected", "sampled"]))),
        assumptions=draw(st.lists(assumptions).map(tuple)),
    )


@given(scenario=scenarios())
def test_a_scenario_written_and_read_back_is_equal(
    scenario: Scenario, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("written") / "job.toml"
    save_scenario(scenario, path)
    assert read_scenario(path) == scenario
    assert read_scenario(scenario) == scenario


def test_saving_writes_the_file_whole_or_not_at_all(tmp_path: Path) -> None:
    scenario = read_scenario("capacity-640gb")
    path = tmp_path / "job.toml"
    save_scenario(scenario, path)
    assert path.read_text(encoding="utf-8") == to_toml(scenario)
    assert os.listdir(tmp_path) == ["job.toml"]
    with pytest.raises(InputError, match="does not exist"):
        save_scenario(scenario, tmp_path / "absent" / "job.toml")
