"""The planner's printed report is read whole, in its raw and squeezed layouts, and a cut one is refused."""

import json

import pytest

from foreshard.simulator.files.document import to_document
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.scenario import ClusterChoice, Comms
from foreshard.simulator.plans.placement import resolve_plan
from foreshard.simulator.results.report import report as predicted
from foreshard.simulator.step.prediction import Prediction
from foreshard.simulator.torchrec.plan_file import parse_plan_file, plan_file_text
from foreshard.simulator.torchrec.planner_figures import figures_of, planner_figures
from foreshard.simulator.torchrec.torchrec_plan import import_plan, import_plan_text
from foreshard.topologies.errors import InputError
from foreshard.topologies.units import format_bytes

GIB = 2**30
BATCH, WORLD = 1024, 8

HEADER = [
    "FQN", "Sharding", "Compute Kernel", "Perf (ms)", "Storage (HBM, DDR)", "Cache Load Factor", "Sum Pooling Factor",
    "Sum Num Poolings", "Num Indices", "Output", "Weighted", "Sharder", "Features", "Emb Dim (CW Dim)", "Hash Size",
    "Ranks", "Batch Sizes",
]  # fmt: skip


def row(name, kind, dims, rows, ranks, *, hbm=0.1, pooling=1.0, poolings=1.0, features=1, output="pooled"):
    sharder = "EmbeddingBagCollectionSharder" if output == "pooled" else "EmbeddingCollectionSharder"
    return [
        f"model.ebc.{name}", kind, "fused", "3.5 (1,0.5,1,0.5,0)", f"({hbm} GB, 0.0 GB)", "None", str(pooling),
        str(poolings), str(round(pooling * poolings / features, 3)), output, "unweighted", sharder, str(features), dims,
        str(rows), ranks, "n/a",
    ]  # fmt: skip


def gib(rows, dim, element, ids, bags=1.0, shards=1, output=2):
    """What the planner counts for a whole-row table: weights, one state element per row, ids and vectors."""
    samples = BATCH * WORLD
    return round((rows * (dim + 1) * element + samples * (8 * ids * shards + bags * dim * output)) / GIB, 3)


TABLES = [
    row("whole", "TW", "64", 10_000_000, "5", hbm=gib(10_000_000, 64, 2, 20.0), pooling=20.0),
    row("columns", "CW", "256 (128)", 5_000_000, "2,2", hbm=gib(5_000_000, 256, 2, 3.5, shards=2), pooling=3.5),
    row("rows", "RW", "128", 8_000_000, "0-7", pooling=40.0, poolings=4.0, features=4, output="sequence"),
    row("node", "TWRW", "128", 1000, "4-7"),
    row("grid", "GS", "256 (128)", 1000, "0-7"),
    row("twice", "GS", "256 (128)", 1000, "4,4,5,5,6,6,7,7"),
    row("everywhere", "DP", "16", 10, "0-7"),
    row("rare", "TWCW", "128 (128)", 700, "1", pooling=0.75, poolings=0.004),
    row("never", "TW", "16", 700, "1", pooling=0.0),
]


def report(tables=TABLES, *, raw=False, prefix="", ranks=range(WORLD), count=None, header=HEADER):
    rank_rows = [
        [str(rank), "9.5 (72%)", "0.0 (0%)", "10.5 (1,2,3,4.5,0)", "1.5", "2.5", "RW: 1 TW: 2"] for rank in ranks
    ]
    lines = [
        ["--- Planner Statistics ---"],
        ["--- Evaluated 3 proposal(s), found 2 possible plan(s), ran for 48.19s ---"],
        ["-" * 60],
        ["Rank", "HBM (GB)", "DDR (GB)", "Perf (ms)", "Input (MB)", "Output (MB)", "Shards"],
        ["------"] * 7,
        *rank_rows,
        [],
        ["Perf: Total perf (Forward compute, Forward comms, Backward compute, Backward comms, Prefetch compute)"],
        [],
        ["Parameter Info:"],
        header,
        ["-----"] * len(header),
        *[cells[: len(header)] for cells in tables],
        [],
        [f"Batch Size: {BATCH}"],
        [],
        ["Compute Kernels Count:"],
        [f"   fused: {len(tables) if count is None else count}"],
        [],
        ["Maximum of Total Perf: 13.5 ms on rank 28"],
        ["Top Tier #5 Estimated Peak HBM Pressure: 99.983 GB on ranks 1-2"],
        ["Reserved Memory:"],
        ["   HBM: 46.0 GB"],
        ["   Percent of Total HBM: 25%"],
        ["Dense Storage (per rank):"],
        ["   HBM: 62.667 GB, DDR: 0.0 GB"],
    ]
    pad = "      " if raw else "   "
    width = 320
    bordered = [f"{prefix}# {pad.join(cells): <{width}}#" for cells in lines]
    border = prefix + "#" * (width + 3)
    return "\n".join([border, *bordered, border])


def told(text):
    with pytest.raises(InputError) as caught:
        import_plan_text(text)
    return str(caught.value)


@pytest.fixture(scope="module")
def plan():
    return import_plan_text(report())


@pytest.mark.parametrize(
    "layout", [{"raw": True}, {"prefix": "I1129 10:00:00 7 stats.py:330] "}, {"prefix": "[rank0]:"}], ids=str
)
def test_raw_columns_and_log_prefixes_change_nothing(layout, plan):
    assert import_plan_text(report(**layout)) == plan


def test_ranks_become_owners(plan):
    how = dict(plan.plan.tables)
    assert how["whole"].ranks == (5,)
    assert how["columns"].ranks == (2, 2)
    assert how["rows"].ranks is None
    assert how["node"].ranks == (4, 5, 6, 7)
    assert how["grid"].ranks == (0, 1, 2, 3, 4, 5, 6, 7)
    assert how["twice"].ranks == (4, 5, 6, 7, 4, 5, 6, 7)
    assert how["everywhere"].sharding == "data_parallel"
    assert (plan.world_size, plan.local_world_size, plan.batch_size) == (8, 4, 1024)
    assert len(resolve_plan(plan.plan, plan.tables, 8, 4)) == len(TABLES)


def test_pooling_is_kept_over_features_and_bags(plan):
    tables = {table.name: table for table in plan.tables}
    assert tables["rows"].ids_per_sample == pytest.approx(40.0)
    assert tables["rows"].vectors_per_sample == pytest.approx(40.0)
    assert len(tables["rows"].features) == 4
    assert tables["rare"].ids_per_sample == pytest.approx(0.003)
    assert tables["rare"].vectors_per_sample == pytest.approx(0.004)
    assert tables["never"].ids_per_sample == pytest.approx(0.0005)
    assert any("1 tables print 0.0 ids per sample" in note for note in plan.notes)


def test_data_types_and_optimizer_are_read_off_the_printed_storage(plan):
    tables = {table.name: table for table in plan.tables}
    assert tables["whole"].data_type == "fp16"
    assert plan.optimizer == "rowwise_adagrad"
    assert tables["node"].data_type == "fp16"  # as most


def test_a_report_without_telling_storage_is_taken_as_fp32():
    plan = import_plan_text(report([row("tiny", "TW", "16", 10, "0", hbm=55.0)]))
    assert plan.tables[0].data_type == "fp32"
    assert any("fp32 is assumed" in note for note in plan.notes)


def test_vectors_of_two_bytes_travel_as_fp16_and_the_planners_figures_reach_the_scenario():
    """The slowest rank's rating and the fullest rank's HBM, as printed, survive the scenario file."""
    features = "\n# KJT Storage (per rank):  #\n#    HBM: 1.5 GB, DDR: 0.0 GB  #\n"
    plan = import_plan_text(report(TABLES[:2]).replace("62.667", "2.5") + features)
    assert plan.comms == Comms(forward="fp16", backward="fp16")
    scenario = read_scenario(to_document(plan.scenario(ClusterChoice(preset="p5.48xlarge"))))
    assert scenario.comms == plan.comms
    own = figures_of(scenario.assumptions)
    assert (own.rating_s, own.hbm_bytes) == (0.0135, 9.5 * GIB)
    assert parse_plan_file(json.loads(plan_file_text(plan)), where="plan") == plan
    told = predicted(Prediction(scenario), planner=True)
    assert told.to_dict()["planner"]["own"]["rating_s"] == 0.0135
    (line,) = (line for line in told.to_text().splitlines() if line.strip().startswith("as it said itself "))
    assert "13.5" in line
    assert "5.5 GiB" in line  # 9.5 less 2.5 of dense tensors and 1.5 of features
    assert own.shards_hbm_bytes == 5.5 * GIB
    (ours,) = (line for line in told.to_text().splitlines() if "default constants" in line)
    assert ours.split("  fits")[0].rstrip().endswith(format_bytes(told.planner.default.budget_bytes))


def test_a_plan_without_figures_has_no_line_of_its_own():
    assert figures_of(()) is None
    assert list(planner_figures({"ranks": [{"perf_ms": 3}, 4], "max_perf_ms": "fast"}, "x")) == []


def test_the_planners_own_numbers_stand_beside(plan):
    assert plan.planner["ranks"][3]["hbm_bytes"] == 9.5 * GIB
    assert plan.planner["ranks"][3]["output_bytes"] == 2.5 * 2**20
    assert plan.planner["ranks"][3]["perf_ms"]["bwd_comms"] == 4.5
    assert plan.planner["tables"]["whole"]["perf_ms"]["total"] == 3.5
    assert plan.planner["dense_hbm_bytes"] == 62.667 * GIB
    assert plan.planner["reserved_hbm_bytes"] == 46.0 * GIB
    assert plan.planner["reserved_percent"] == 25.0
    assert plan.planner["max_perf_ms"] == 13.5


def test_reports_of_older_versions_without_batch_sizes_are_read():
    assert len(import_plan_text(report(header=HEADER[:-1])).tables) == len(TABLES)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (report(count=12), "counts 12 tables but 9 rows are there"),
        (report(ranks=[0, 1, 2, 4, 5, 6, 7]), "rows of some ranks are missing"),
        (report(header=[*HEADER[:-3], "Ranks"]), "the columns Hash Size are missing"),
        (report([row("t", "XW", "16", 10, "0")]), "unknown sharding 'XW'"),
        (report([row("t", "CW", "256 (128)", 10, "0,1,2")]), "3 ranks for 2 column shards"),
        (report([row("t", "TW", "16", 10, "9")]), "rank 9 holds a shard"),
        (report([row("t", "TW", "16", 10, "None")]), "table_wise without shards"),
        (report([row("t", "TW", "16", 10, "0", output="vector")]), "output 'vector'"),
        (report([row("t", "TW", "16", "many", "0")]), "many"),
        (report([row("t", "TW", "16", 10, "0")[:9]]), "9 columns where the header has 17"),
        ("# --- Planner Statistics --- #", 'no "Parameter Info" table'),
    ],
)
def test_a_broken_report_is_refused(text, sentence):
    assert sentence in told(text)


def test_a_report_cut_after_its_tables_is_read_with_a_note():
    text = report().split("# Batch Size")[0]
    assert any("ends before its table count" in note for note in import_plan_text(text).notes)


def test_a_production_report_of_1935_tables_on_96_ranks_imports_whole(specimens):
    """The figures of a real report, which the planner itself printed."""
    folder = specimens / "tables" / "planner_stats"
    plan = import_plan(folder / "torchrec_planner_stats_full_blanks_squeezed.txt.gz")
    assert len(plan.tables) == 1935
    assert (plan.world_size, plan.batch_size, plan.optimizer) == (96, 2560, "rowwise_adagrad")
    assert sum(table.num_embeddings * table.embedding_dim for table in plan.tables) == pytest.approx(325.7e9, rel=1e-3)
    kinds = [how.sharding for _, how in plan.plan.tables]
    assert (kinds.count("column_wise"), kinds.count("row_wise")) == (1933, 2)
    assert {table.data_type for table in plan.tables} == {"fp16"}
    resolved = resolve_plan(plan.plan, plan.tables, 96, 8)
    assert max(item.owners.max() for item in resolved) == 95
    printed = [(rank["rank"], rank["perf_ms"]["total"]) for rank in plan.planner["ranks"]]
    assert max(printed, key=lambda pair: pair[1])[0] == 28
