"""`foreshard import-plan` and `export-plan`: a plan comes in, can be predicted, and goes out again."""

import json

import pytest
from click.testing import CliRunner

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.torchrec.plan_commands import export_plan_command, import_plan_command
from foreshard.simulator.torchrec.plan_file import read_plan_file
from foreshard.topologies.errors import InputError

SHARDS = [{"shard_offsets": [4 * r, 0], "shard_sizes": [4, 8], "placement": f"rank:{r}/cuda:{r}"} for r in range(8)]
PLAN = {"plan": {"ebc": {"user": {"sharding_type": "row_wise", "compute_kernel": "fused", "shards": SHARDS}}}}


@pytest.fixture
def torchrec_json(tmp_path):
    path = tmp_path / "torchrec.json"
    path.write_text(json.dumps(PLAN))
    return path


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)


def test_import_writes_a_plan_file_and_says_what_it_found(torchrec_json, tmp_path):
    result = run(import_plan_command, torchrec_json, "-o", tmp_path / "plan.json")
    assert result.exit_code == 0
    assert "1 tables, 1.0 KiB of weights" in result.output
    assert "sharding: 1 row_wise" in result.output
    assert "note: table 'user': only its size is known" in result.output
    assert read_plan_file(tmp_path / "plan.json").tables[0].num_embeddings == 32


def test_import_writes_a_scenario_that_reads_back(torchrec_json, tmp_path):
    bundle = tmp_path / "bundle.json"
    options = [
        {"fqn": "ebc.user", "sharding_type": "row_wise", "compute_kernel": "fused",
         "shards": [{"rank": r, "size": [4, 8], "offset": [4 * r, 0]} for r in range(8)]}
    ]  # fmt: skip
    tables = [{"name": "user", "num_embeddings": 32, "embedding_dim": 8, "pooling": "SUM", "data_type": "FP16"}]
    topology = {"world_size": 8, "local_world_size": 8}
    bundle.write_text(
        json.dumps({"options": options, "architecture": {"tables": tables}, "topology": topology, "batch_size": 64})
    )
    where = tmp_path / "scenario.toml"
    result = run(
        import_plan_command, bundle, "-o", tmp_path / "p.json", "--scenario", where, "--preset", "dgx-h100"
    )  # fmt: skip
    assert result.exit_code == 0
    scenario = read_scenario(where)
    assert (scenario.cluster.preset, scenario.cluster.nodes) == ("dgx-h100", 1)
    assert scenario.workload.batch_size == 64
    assert scenario.workload.tables[0].data_type == "fp16"
    assert scenario.plan.of("user").sharding == "row_wise"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--scenario", "s.toml"], "go together"),
        (["--scenario", "s.toml", "--preset", "dgx-h100"], "does not say its ranks"),
        (["--tables", "mlperf-dcnv2"], "does not shard"),
    ],
)
def test_what_cannot_be_done_is_an_input_error(torchrec_json, tmp_path, options, sentence, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence):
        run(import_plan_command, torchrec_json, "-o", tmp_path / "plan.json", *options)


def test_export_writes_torchrecs_calls(torchrec_json, tmp_path):
    run(import_plan_command, torchrec_json, "-o", tmp_path / "plan.json")
    sizes = ("--world-size", 8, "--local-world-size", 4)
    result = run(export_plan_command, tmp_path / "plan.json", "-o", tmp_path / "calls.py", *sizes)
    assert result.output == "1 tables written\n"
    assert "'user': row_wise()," in (tmp_path / "calls.py").read_text()


def test_export_needs_the_sizes_that_the_file_leaves_out(torchrec_json, tmp_path):
    run(import_plan_command, torchrec_json, "-o", tmp_path / "plan.json")
    with pytest.raises(InputError, match="--world-size"):
        run(export_plan_command, tmp_path / "plan.json", "-o", tmp_path / "calls.py")


def test_a_plan_given_for_a_scenario_is_told_how_to_become_one(torchrec_json, tmp_path):
    """Our plan file, TorchRec's JSON and the planner's report; other JSON is said to be JSON."""
    run(import_plan_command, torchrec_json, "-o", tmp_path / "plan.json")
    (tmp_path / "log.txt").write_text("INFO # --- Planner Statistics --- #\n", encoding="utf-8")
    for name in (torchrec_json, tmp_path / "plan.json", tmp_path / "log.txt"):
        with pytest.raises(InputError, match=r"is a plan, not a scenario: .* import-plan .* --scenario .* --preset "):
            read_scenario(name)
    (tmp_path / "other.json").write_text('{"a": 1}', encoding="utf-8")
    with pytest.raises(InputError, match="is JSON, not valid TOML"):
        read_scenario(tmp_path / "other.json")
