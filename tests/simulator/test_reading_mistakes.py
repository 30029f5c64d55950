"""Bad scenarios: each mistake is one clear sentence, all mistakes of a file come at once, none ends in a traceback."""

# ruff: noqa: E501  a message stays on one line

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from foreshard.simulator.files.reading import read_scenario
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import preset_text

GOOD: dict[str, Any] = {
    "schema": 1,
    "cluster": {"preset": "p5.48xlarge", "nodes": 2},
    "workload": {
        "batch_size": 1024,
        "tables": [
            {"name": "user_id", "num_embeddings": 1000, "embedding_dim": 64, "access": {"zipf": 1.05}},
            {
                "name": "item_id",
                "num_embeddings": 5000,
                "embedding_dim": 64,
                "feature_names": ["seen", "bought"],
                "pooling_factor": [3, 2.5],
            },
        ],
        "dense": {"layers": [[13, 64], [128, 1]]},
    },
    "plan": {"default": "row_wise", "tables": {"user_id": {"sharding": "table_wise", "ranks": [3]}}},
    "layout": {"sharding_group_size": 8},
    "comms": {"forward": "fp16"},
    "execution": {"pipeline": "base", "seed": 1},
}
DELETED = object()


def changed(*changes: tuple[str, Any]) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    for path, value in changes:
        *way, last = path.split("/")
        here: Any = document
        for key in way:
            here = here[int(key)] if isinstance(here, list) else here.setdefault(key, {})
        if isinstance(here, list):
            here[int(last)] = value
        elif value is DELETED:
            del here[last]
        else:
            here[last] = value
    return document


def written(folder: Path, document: dict[str, Any]) -> Path:
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(document), encoding="utf-8")
    return path


def problems_of(source: Any, overrides: tuple[str, ...] = ()) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        read_scenario(source, overrides)
    assert all("\n" not in problem for problem in caught.value.problems)
    return caught.value.problems


def test_the_unchanged_document_is_right(tmp_path: Path) -> None:
    assert read_scenario(written(tmp_path, GOOD)).workload.tables[1].pooling_factor == (3.0, 2.5)


FIRST, SECOND = "workload/tables/0", "workload/tables/1"
MISTAKES: dict[str, tuple[str, Any, str]] = {
    "schema missing": ("schema", DELETED, "schema is missing: begin the file with schema = 1"),
    "schema too new": ("schema", 2, "schema = 2: expected 1: it was written for a newer foreshard, update yours"),
    "schema a word": ("schema", "one", 'schema = "one": expected 1'),
    "unknown section": ("wrkload", {"a": 1}, "wrkload: unknown key; did you mean 'workload'?"),
    "no cluster": (
        "cluster", DELETED, 'cluster is missing: give [cluster] with preset = "p5.48xlarge" or file, and nodes',
    ),
    "no workload": ("workload", DELETED, "workload is missing: give [workload] with batch_size and tables"),
    "section no table": ("layout", 8, "layout = 8: expected a table with the keys sharding_group_size, groups, placement, sync, sync_interval"),
    "misspelt preset": (
        "cluster/preset", "p5.48xlrge", "cluster.preset = \"p5.48xlrge\": no such machine; did you mean 'p5.48xlarge'?",
    ),
    "no machine": ("cluster/preset", DELETED, "cluster: give preset or file"),
    "two machines": ("cluster/file", "own.toml", "cluster: both preset and file are given: keep one"),
    "no nodes": ("cluster/nodes", 0, "cluster.nodes = 0: expected a whole number of at least 1"),
    "half a node": ("cluster/nodes", 1.5, "cluster.nodes = 1.5: expected a whole number of at least 1"),
    "true nodes": ("cluster/nodes", True, "cluster.nodes = true: expected a whole number of at least 1"),
    "a billion nodes": ("cluster/nodes", 10**9, "cluster.nodes = 1000000000: expected at most 65536"),
    "unknown cluster key": ("cluster/node", 2, "cluster.node: unknown key; did you mean 'nodes'?"),
    "degrade above one": (
        "cluster/degrade", {"node0/nic0->*": 2},
        'cluster.degrade."node0/nic0->*" = 2: expected a factor from 0 (missing) to 1 (whole)',
    ),
    "degrade no table": ("cluster/degrade", 0.5, "cluster.degrade = 0.5: expected a table of link patterns"),
    "degrade of no link": ("cluster/degrade", {"nod0/x": 0.5}, "cluster: cluster 'p5.48xlarge': degrade.\"nod0/x\": no link has this name"),
    "no batch size": ("workload/batch_size", DELETED, "workload.batch_size is missing: give a whole number of at least 1"),
    "negative batch": ("workload/batch_size", -8, "workload.batch_size = -8: expected a whole number of at least 1"),
    "batch in words": ("workload/batch_size", "8k", 'workload.batch_size = "8k": expected a whole number of at least 1'),
    "unknown workload key": ("workload/batchsize", 8, "workload.batchsize: unknown key; did you mean 'batch_size'?"),
    "no tables": (
        "workload/tables", DELETED,
        'workload.tables is missing: give a set such as "mlperf-dcnv2", or [[workload.tables]]',
    ),
    "empty tables": (
        "workload/tables", [], 'workload.tables = []: give a set such as "mlperf-dcnv2", or [[workload.tables]]',
    ),
    "table not a table": (
        FIRST, 5,
        "workload.tables[0] = 5: expected a table with the keys name, num_embeddings, embedding_dim, pooling_factor, "
        "pooling, data_type, feature_names, access",
    ),
    "table without name": (f"{SECOND}/name", DELETED, "workload.tables[1].name is missing: give text in quotes of at least 1 character"),
    "table with empty name": (f"{SECOND}/name", "", 'workload.tables[1].name = "": expected text in quotes of at least 1 character'),
    "table without rows": (
        f"{SECOND}/num_embeddings", DELETED,
        "workload.tables.item_id.num_embeddings is missing: give a whole number of at least 1",
    ),
    "negative rows": (
        f"{SECOND}/num_embeddings", -5,
        "workload.tables.item_id.num_embeddings = -5: expected a whole number of at least 1",
    ),
    "rows with a unit": (
        f"{SECOND}/num_embeddings", "40M",
        'workload.tables.item_id.num_embeddings = "40M": expected a whole number of at least 1',
    ),
    "dim of zero": (
        f"{SECOND}/embedding_dim", 0, "workload.tables.item_id.embedding_dim = 0: expected a whole number of at least 1",
    ),
    "unknown table key": (f"{SECOND}/num_embedings", 5, "workload.tables.item_id.num_embedings: unknown key; did you mean 'num_embeddings'?"),
    "unknown pooling": (
        f"{SECOND}/pooling", "men",
        'workload.tables.item_id.pooling = "men": expected one of "sum", "mean", "none"; did you mean \'mean\'?',
    ),
    "unknown data type": (
        f"{SECOND}/data_type", "float",
        'workload.tables.item_id.data_type = "float": expected one of "fp32", "fp16", "bf16", "fp8", "int8"',
    ),
    "pooling not a number": (
        f"{SECOND}/pooling_factor", math.nan,
        "workload.tables.item_id.pooling_factor = nan: expected a number above 0, or a list, each a number above 0, and finite",
    ),
    "pooling infinite": (
        f"{SECOND}/pooling_factor", math.inf,
        "workload.tables.item_id.pooling_factor = inf: expected a number above 0, or a list, each a number above 0, and finite",
    ),
    "pooling list with zero": (
        f"{SECOND}/pooling_factor", [1.0, 0.0],
        "workload.tables.item_id.pooling_factor = [1.0, 0.0]: expected a number above 0, or a list, each a number above 0",
    ),
    "pooling for another number of features": (
        f"{SECOND}/pooling_factor", [1.0],
        "workload.tables.item_id.pooling_factor has 1 entries but the table has 2 features: give one number, or one per feature name",
    ),
    "zipf not a number": (f"{FIRST}/access/zipf", math.nan, "workload.tables.user_id.access.zipf = nan: expected a number of at least 0 and of at most 8, and finite"),
    "zipf true": (f"{FIRST}/access/zipf", True, "workload.tables.user_id.access.zipf = true: expected a number of at least 0 and of at most 8"),
    "zipf negative": (f"{FIRST}/access/zipf", -1, "workload.tables.user_id.access.zipf = -1: expected a number of at least 0 and of at most 8"),
    "unknown access key": (f"{FIRST}/access/zip", 1, "workload.tables.user_id.access.zip: unknown key; did you mean 'zipf'?"),
    "access a number": (
        f"{FIRST}/access", 1.05,
        "workload.tables.user_id.access = 1.05: expected a table with the keys zipf, shift, heavy_hitters, locality, order, histogram, histogram_rows, histogram_ids",
    ),
    "heavy hitter above one": (
        f"{FIRST}/access/heavy_hitters", [0.5, 1.5],
        "workload.tables.user_id.access.heavy_hitters[1] = 1.5: expected a number above 0 and of at most 1",
    ),
    "heavy hitters above all": (
        f"{FIRST}/access/heavy_hitters", [0.6, 0.6],
        "workload.tables.user_id.access.heavy_hitters sum to 1.2: shares of all lookups sum to at most 1",
    ),
    "two tables of a name": (
        f"{SECOND}/name", "user_id", "workload.tables: 2 tables are named 'user_id': give each table its own name",
    ),
    "a feature of two tables": (
        f"{FIRST}/feature_names", ["seen"],
        "workload.tables: feature 'seen' is used 2 times, by 'user_id' and 'item_id': it has one table",
    ),
    "a feature twice in a table": (
        f"{SECOND}/feature_names", ["seen", "seen"],
        "workload.tables: feature 'seen' is used 2 times, by 'item_id': it has one table",
    ),
    "layer of one width": (
        "workload/dense/layers", [[13]], "workload.dense.layers[0] = [13]: expected at least two widths, inputs and outputs",
    ),
    "layers not lists": (
        "workload/dense/layers", [13],
        "workload.dense.layers[0] = 13: expected a list, each a whole number of at least 1",
    ),
    "flops without parameters": (
        "workload/dense", {"forward_flops_per_sample": 1e9},
        "workload.dense: forward_flops_per_sample is given without parameters: give both (0 if there are none), or layers",
    ),
    "parameters without flops": (
        "workload/dense", {"parameters": 1000},
        "workload.dense: parameters is given without forward_flops_per_sample: give both (0 if there are none), or layers",
    ),
    "kernels alone": (
        "workload/dense", {"kernels": 10},
        "workload.dense: kernels is given without forward_flops_per_sample and parameters: give all three, or layers",
    ),
    "layers and totals": (
        "workload/dense", {"layers": [[13, 64, 1]], "parameters": 5, "forward_flops_per_sample": 1},
        "workload.dense: layers and forward_flops_per_sample and parameters both say how large the model is: "
        "give layers, or forward_flops_per_sample and parameters",
    ),
    "gradients now and then": (
        "layout", {"sharding_group_size": 8, "sync": "gradients", "sync_interval": 10},
        'layout.sync = "gradients" exchanges gradients in every step, so sync_interval = 10 contradicts it: '
        'set sync_interval = 1, or use sync = "weights"',
    ),
    "schema with a point": ("schema", 1.0, "schema = 1.0: expected 1"),
    "tables a number": (
        "workload/tables", 7, 'workload.tables = 7: give a set such as "mlperf-dcnv2", or [[workload.tables]]'
    ),
    "rules a word": (
        "plan/rules", "x", 'plan.rules = "x": expected a list, each entry written under [[plan.rules]]',
    ),
    "plan tables a word": (
        "plan/tables", "x", 'plan.tables = "x": expected a table per table name, as in [plan.tables.user_id]',
    ),
    "a feature without a name": (
        f"{FIRST}/feature_names", [""],
        'workload.tables.user_id.feature_names[0] = "": expected text in quotes of at least 1 character',
    ),
    "control characters in a name": (
        "name", "a\x1b[31m", 'name: holds the control character "\\x1b": a text here is plain, in one line',
    ),
    "a NUL in a description": (
        "description", "a\0b", 'description: holds the control character "\\x00": a text here is plain, in one line',
    ),
    "a table set file that is missing": (
        "workload/tables", "nowhere.toml",
        "workload.tables: no such file: give the path of a table set file or a shipped name "
        "(`foreshard presets` lists them)",
    ),
    "unknown sharding": (
        "plan/default", "row-wise",
        'plan.default.sharding = "row-wise": expected one of "data_parallel", "table_wise", "column_wise", "row_wise", '
        '"table_row_wise", "table_column_wise", "grid_shard"; did you mean \'row_wise\'?',
    ),
    "unknown plan key": ("plan/defaults", "row_wise", "plan.defaults: unknown key; did you mean 'default'?"),
    "plan for an absent table": (
        "plan/tables/usr_id", {"sharding": "row_wise"},
        "plan.tables.usr_id: the workload has no table 'usr_id'; did you mean 'user_id'?",
    ),
    "plan names an absent rank": (
        "plan/tables/user_id/ranks", [8],
        "table 'user_id': ranks [8] do not exist: a sharding group has ranks 0 to 7 (positions in the group, not global ranks)",
    ),
    "plan names a negative rank": (
        "plan/tables/user_id/ranks", [-1],
        "plan.tables.user_id.ranks[0] = -1: expected a whole number of at least 0",
    ),
    "plan without sharding": (
        "plan/tables/user_id/sharding", DELETED,
        'plan.tables.user_id.sharding is missing: give one of "data_parallel", "table_wise", "column_wise", "row_wise", '
        '"table_row_wise", "table_column_wise", "grid_shard"',
    ),
    "rows split wrongly": (
        "plan/tables/user_id", {"sharding": "row_wise", "row_splits": [100] * 8},
        "table 'user_id': row_splits sum to 800 rows but the table has 1000: they must agree",
    ),
    "rule for no table": (
        "plan/rules", [{"sharding": "row_wise"}],
        "plan.rules[0] says for no table: give match, min_num_embeddings or max_num_embeddings",
    ),
    "unknown rule key": (
        "plan/rules", [{"match": "u*", "sharding": "row_wise", "max_embeddings": 5}],
        "plan.rules[0].max_embeddings: unknown key; did you mean 'max_num_embeddings'?",
    ),
    "group does not divide the world": (
        "layout/sharding_group_size", 7,
        "layout.sharding_group_size = 7 does not divide the world of 16 ranks: use one of [1, 2, 4, 8, 16]",
    ),
    "group of zero": (
        "layout/sharding_group_size", 0,
        'layout.sharding_group_size = 0: expected a whole number of at least 1, or "world"',
    ),
    "misspelt world": (
        "layout/sharding_group_size", "wrld",
        'layout.sharding_group_size = "wrld": expected a whole number of at least 1, or "world"',
    ),
    "unknown placement": (
        "layout/placement", "contigous",
        'layout.placement = "contigous": expected one of "contiguous", "interleaved"; did you mean \'contiguous\'?',
    ),
    "no sync interval": ("layout/sync_interval", 0, "layout.sync_interval = 0: expected a whole number of at least 1"),
    "unknown codec": (
        "comms/forward", "fp4", 'comms.forward = "fp4": expected one of "fp32", "fp16", "bf16", "fp8", "int8"; did you mean \'fp8\'?',
    ),
    "unknown pipeline": (
        "execution/pipeline", "sparse", 'execution.pipeline = "sparse": expected one of "base", "sparse_dist"; did you mean \'sparse_dist\'?',
    ),
    "negative seed": ("execution/seed", -1, "execution.seed = -1: expected a whole number of at least 0"),
    "assumption without source": (
        "assumptions", [{"name": "a", "value": 1}], "assumptions[0].source is missing: give text in quotes",
    ),
    "all tables of one name": (
        "workload/all_tables", {"name": "x"}, "workload.all_tables.name: cannot be the same in every table",
    ),
    "all tables, unknown key": (
        "workload/all_tables", {"dim": 3}, "workload.all_tables.dim: unknown key",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(name: str, tmp_path: Path) -> None:
    path, value, message = MISTAKES[name]
    problems = problems_of(written(tmp_path, changed((path, value))))
    assert len(problems) == 1
    assert problems[0].startswith(message)


def test_a_table_larger_than_the_whole_cluster_is_a_mistake(tmp_path: Path) -> None:
    document = changed((f"{FIRST}/num_embeddings", 10**12))
    (problem,) = problems_of(written(tmp_path, document))
    assert problem.startswith("workload.tables.user_id needs 232.8 TiB but all 16 GPUs together have ")


def test_all_mistakes_of_a_file_come_at_once(tmp_path: Path) -> None:
    apart = [
        "schema too new", "unknown section", "unknown cluster key", "negative batch", "unknown table key",
        "unknown pooling", "zipf negative", "layer of one width", "unknown plan key", "plan for an absent table",
        "no sync interval", "unknown codec", "negative seed", "assumption without source",
    ]  # fmt: skip
    problems = problems_of(written(tmp_path, changed(*(MISTAKES[name][:2] for name in apart))))
    for name in apart:
        assert any(problem.startswith(MISTAKES[name][2]) for problem in problems), name
    assert len(problems) == len(apart)


def test_contradictions_between_sections_come_with_the_mistakes_in_them(tmp_path: Path) -> None:
    together = ["group does not divide the world", "two tables of a name", "negative batch"]
    problems = problems_of(written(tmp_path, changed(*(MISTAKES[name][:2] for name in together))))
    assert sorted(problems) == sorted(MISTAKES[name][2] for name in together)


def test_a_plan_is_checked_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    apart = ["plan for an absent table", "plan names an absent rank", "unknown plan key", "rule for no table"]
    problems = problems_of(written(tmp_path, changed(*(MISTAKES[name][:2] for name in apart))))
    assert sorted(problems) == sorted(MISTAKES[name][2] for name in apart)


def test_a_table_whose_own_sharding_is_misspelt_is_not_held_to_the_default(tmp_path: Path) -> None:
    default = {"sharding": "row_wise", "row_splits": [625] * 8}  # right for item_id, wrong for user_id
    document = changed(("plan/default", default), ("plan/tables/user_id", {"sharding": "row_wse"}))
    (problem,) = problems_of(written(tmp_path, document))
    assert problem.startswith('plan.tables.user_id.sharding = "row_wse"')


def test_one_mistake_of_the_default_is_not_told_for_every_table(tmp_path: Path) -> None:
    document = changed(("plan", {"default": {"sharding": "data_parallel", "ranks": [0]}}))
    (problem,) = problems_of(written(tmp_path, document))
    assert problem == "table 'user_id' and 1 more (plan.default): data_parallel tables are on every rank: drop ranks"


def test_a_data_type_without_a_figure_is_told_with_the_other_mistakes(tmp_path: Path) -> None:
    """What only the machine shows to be wrong is found while reading, not when the step is predicted."""
    document = changed(("cluster/preset", "p4d.24xlarge"), ("workload/dense/data_type", "fp8"), ("layout/synk", 1))
    problems = problems_of(written(tmp_path, document))
    assert any(problem.startswith('workload.dense.data_type = "fp8": ') for problem in problems)
    assert any("A100" in problem and "use one of bf16, fp16, fp32" in problem for problem in problems)
    assert any(problem.startswith("layout.synk") for problem in problems)


def test_links_that_are_all_missing_are_two_mistakes(tmp_path: Path) -> None:
    """No way inside nodes and none between them: one sentence each, however many GPUs there are."""
    inside, outside = problems_of(written(tmp_path, changed(("cluster/degrade", {"*": 0}))))
    assert "ranks 0-15: no route inside the node to some or all" in inside
    assert "no route to a NIC" in outside


def test_a_pattern_that_meets_no_link_is_told_with_names_that_are_there_once(tmp_path: Path) -> None:
    document = changed(("cluster", {"preset": "p5.48xlarge", "nodes": 1, "degrade": {"nodeX/*": 0.5}}))
    (problem,) = problems_of(written(tmp_path, document))
    names = (
        problem.partition("; ")[2].replace("?", "").replace("did you mean ", "").replace("known: ", "").split(" or ")
    )
    assert names
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", ["scenario", "table set", "cluster"])
def test_an_integer_of_too_many_digits_is_told_without_advice_on_python(kind: str, tmp_path: Path) -> None:
    """Whichever file holds it."""
    (tmp_path / "long.toml").write_text("schema = " + "9" * 10_000)
    changes = {
        "scenario": [],
        "table set": [("workload/tables", "long.toml")],
        "cluster": [("cluster", {"file": "long.toml"})],
    }
    source = tmp_path / "long.toml" if kind == "scenario" else written(tmp_path, changed(*changes[kind]))
    (problem,) = problems_of(source)
    assert "an integer has more digits than can be read" in problem
    assert "set_int_max_str_digits" not in problem


@pytest.mark.parametrize(
    "path",
    ["name", "description", f"{FIRST}/name", f"{FIRST}/feature_names", "workload/name", "plan/tables", "assumptions"],
)
@pytest.mark.parametrize("character", ["\0", "\x1b", "\r", "\x7f", "\u2028", "\u202e"])
def test_no_text_that_is_printed_holds_a_control_character(path: str, character: str, tmp_path: Path) -> None:
    text = f"a{character}b"
    value: Any = {
        f"{FIRST}/feature_names": [text],
        "plan/tables": {text: "row_wise"},
        "assumptions": [{"name": text, "value": 1, "source": "b"}],
    }.get(path, text)
    problems = problems_of(written(tmp_path, changed((path, value))))
    assert any("holds the control character" in problem for problem in problems)
    assert not any(character in problem for problem in problems)


def test_an_untidy_description_may_have_lines(tmp_path: Path) -> None:
    scenario = read_scenario(written(tmp_path, changed(("description", "one\n\ttwo"), ("name", "é\u200c"))))
    assert scenario.description == "one\n\ttwo"


def test_an_unknown_table_set_is_one_mistake(tmp_path: Path) -> None:
    document = changed(("workload/tables", "mlperf-dcn"))
    (problem,) = problems_of(written(tmp_path, document))
    assert problem.startswith("workload.tables: unknown table set \"mlperf-dcn\"; did you mean 'mlperf-dcnv2'?")


def test_a_line_break_in_a_name_does_not_break_the_message(tmp_path: Path) -> None:
    document = changed((f"{SECOND}/name", "a\nb\x1b[31m"), (f"{SECOND}/embedding_dim", -1))
    first, second = problems_of(written(tmp_path, document))
    assert first.startswith(r'workload.tables."a\nb\x1b[31m".name: holds the control character "\n"')
    assert second.startswith(r'workload.tables."a\nb\x1b[31m".embedding_dim = -1')


def test_a_cluster_file_with_an_ambiguous_unit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(preset_text("p5.48xlarge").replace('"2 TiB"', '"2 Tb"'))
    document = changed(("cluster", {"file": "own.toml", "nodes": 2}))
    (problem,) = problems_of(written(tmp_path, document))
    assert problem.startswith("cluster: ")
    assert "'2 Tb' is ambiguous (bits or bytes?)" in problem


@pytest.mark.parametrize("layout", [{"sharding_group_size": 7}, {"sharding_group_siz": 8}, {"placement": "nowhere"}])
def test_a_wrong_layout_hides_no_mistake_of_the_plan_that_stands_in_any_layout(
    layout: dict[str, Any], tmp_path: Path
) -> None:
    """Rank 77 exists in no group of 16 ranks; rank 12 is right in one of 16 ranks, which 7 may be a slip for."""

    def told(rank: int) -> list[str]:
        owner = {"tables": {"user_id": {"sharding": "table_wise", "ranks": [rank]}}}
        return list(problems_of(written(tmp_path, changed(("layout", layout), ("plan", owner)))))

    (wrong,) = (problem for problem in told(77) if "77" in problem)
    assert wrong.startswith("table 'user_id': ranks [77] do not exist")
    assert wrong.endswith("[in any layout]")
    assert len(told(77)) == 2
    assert len(told(12)) == 1
