"""A plan file written by foreshard reads back equal, and its mistakes are told at once."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.job.scenario import ClusterChoice
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Access, Table
from foreshard.simulator.torchrec.plan_file import PlanFile, load_json, parse_plan_file, plan_file_text, read_plan_file
from foreshard.topologies.errors import InputError

names = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)


@st.composite
def plan_files(draw):
    chosen = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    tables = tuple(
        Table(
            name=name,
            num_embeddings=draw(st.integers(1, 10**9)),
            embedding_dim=draw(st.integers(1, 512)),
            pooling_factor=draw(st.floats(0.001, 100)),
            pooling=draw(st.sampled_from(["sum", "mean", "none"])),
            data_type=draw(st.sampled_from(["fp32", "fp16", "int8"])),
            access=Access(zipf=draw(st.sampled_from([0.0, 1.05]))),
        )
        for name in chosen
    )
    shardings = st.builds(
        TableSharding,
        sharding=st.sampled_from(["table_wise", "row_wise", "grid_shard"]),
        ranks=st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple),
        owner=st.sampled_from(["range", "hash"]),
    )
    return PlanFile(
        tables=tables,
        plan=Plan(default=draw(shardings), tables=tuple((name, draw(shardings)) for name in chosen)),
        source=draw(names),
        world_size=draw(st.none() | st.integers(1, 4096)),
        batch_size=draw(st.none() | st.integers(1, 65536)),
        optimizer=draw(st.none() | st.sampled_from(["sgd", "adam"])),
        modules=((chosen[0], "model.ebc"),),
        kernels=((chosen[0], "fused"),),
        planner={"ranks": [{"rank": 0, "hbm_bytes": 1.5}]},
        notes=tuple(draw(st.lists(names, max_size=2))),
    )


@settings(max_examples=40)
@given(plan=plan_files())
def test_a_written_plan_reads_back_equal(plan):
    assert parse_plan_file(load_json(plan_file_text(plan), where="plan"), where="plan") == plan


def document(**changes):
    table = {"name": "a", "num_embeddings": 10, "embedding_dim": 4}
    return {"format": "foreshard-plan", "schema": 1, "tables": [table], "plan": {"default": "row_wise"}, **changes}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"schema": 2}, '"schema": 1'),
        ({"format": "other"}, '"format": "foreshard-plan"'),
        ({"tables": None}, "tables is missing"),
        ({"tables": [{"name": "a", "num_embeddings": -1, "embedding_dim": 4}]}, "num_embeddings"),
        ({"plan": {"tables": {"b": "row_wise"}}}, "no table 'b'"),
        ({"batch_size": "many"}, "batch_size"),
        ({"optimizer": "lion"}, "optimizer"),
    ],
)
def test_a_mistake_is_named(changes, sentence):
    with pytest.raises(InputError) as caught:
        parse_plan_file(document(**changes), where="plan.json")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"), [('{"a": NaN}', "NaN"), ('{"a": ', "line 1"), ("[" * 100_000, "nested too deeply")]
)
def test_what_is_no_json_says_where(tmp_path, text, sentence):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_plan_file(path)


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_plan_file(tmp_path / "absent.json")


def test_a_scenario_of_a_plan_needs_a_batch_size():
    plan = parse_plan_file(document(), where="plan.json")
    with pytest.raises(InputError, match="batch size"):
        plan.scenario(ClusterChoice(preset="p5.48xlarge"))
    assert plan.scenario(ClusterChoice(preset="p5.48xlarge"), batch_size=7).workload.batch_size == 7


def test_dense_parameters_are_a_sixth_of_the_planners_dense_storage():
    plan = parse_plan_file(document(batch_size=8, planner={"dense_hbm_bytes": 2400.0}), where="plan.json")
    assert plan.scenario(ClusterChoice(preset="p5.48xlarge")).workload.dense.parameters == 100


def test_text_of_a_plan_is_json_with_its_tables():
    plan = parse_plan_file(document(), where="plan.json")
    assert [table["name"] for table in json.loads(plan_file_text(plan))["tables"]] == ["a"]
