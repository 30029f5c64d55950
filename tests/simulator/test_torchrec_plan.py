"""Plans come in from TorchRec's JSON, the planner's objects as JSON, and its printed report; contradictions told."""

import gzip
import json
import pickle

import numpy as np
import pytest

from foreshard.simulator.job.workload import Table
from foreshard.simulator.plans.placement import resolve_plan
from foreshard.simulator.torchrec.torchrec_plan import import_plan, import_plan_text
from foreshard.topologies.errors import InputError

GIB = 2**30


def shard(row, rows, column, columns, rank):
    placement = f"rank:{rank}/cuda:{rank % 4}"
    return {"shard_offsets": [row, column], "shard_sizes": [rows, columns], "placement": placement}


def entry(kind, *shards, **more):
    return {"sharding_type": kind, "compute_kernel": "fused", "ranks": None, "shards": list(shards), **more}


def serialized(**tables):
    return {"plan": {"model.ebc": tables}}


SERIALIZED = serialized(
    whole=entry("table_wise", shard(0, 100, 0, 64, 5)),
    columns=entry("column_wise", shard(0, 50, 128, 128, 2), shard(0, 50, 0, 128, 7)),
    rows=entry("row_wise", *[shard(13 * r, min(13, 100 - 13 * r), 0, 8, r) for r in range(8)]),
    node=entry("table_row_wise", *[shard(5 * r, 5, 0, 8, 4 + r) for r in range(4)]),
    grid=entry(
        "grid_shard", *[shard(5 * r, 5, 128 * c, 128, 4 * (1 - c) + r) for c in range(2) for r in range(4)]
    ),
    everywhere={"sharding_type": "data_parallel", "compute_kernel": "dense", "ranks": list(range(8)), "shards": None},
)  # fmt: skip
EVERYWHERE = Table(name="everywhere", num_embeddings=3, embedding_dim=8)


def told(document, tables=()):
    with pytest.raises(InputError) as caught:
        import_plan_text(document if isinstance(document, str) else json.dumps(document), tables)
    return str(caught.value)


# ---- ShardingPlan._serialize() ----


def imported(document, *tables):
    plan = import_plan_text(json.dumps(document), _completed(document, tables))
    return plan, dict(plan.plan.tables)


def _completed(document, tables):
    names = [name for module in document["plan"].values() for name in module]
    sizes = {"whole": (100, 64), "columns": (50, 256), "rows": (100, 8), "node": (20, 8), "grid": (20, 256)}
    found = {table.name: table for table in tables}
    return [
        found.get(name) or Table(name=name, num_embeddings=sizes[name][0], embedding_dim=sizes[name][1])
        for name in names
    ]


def test_every_kind_of_a_serialised_plan_keeps_its_shards():
    plan, how = imported(SERIALIZED, EVERYWHERE)
    assert how["whole"].ranks == (5,)
    assert how["columns"].ranks == (7, 2)
    assert how["rows"].ranks is None
    assert how["node"].ranks == (4, 5, 6, 7)
    assert how["grid"].ranks == (4, 5, 6, 7, 0, 1, 2, 3)
    assert how["everywhere"].sharding == "data_parallel"
    resolved = resolve_plan(plan.plan, plan.tables, 8, 4)
    given = SERIALIZED["plan"]["model.ebc"]
    for item in resolved:
        expected = {
            (*one["shard_offsets"], *one["shard_sizes"], int(one["placement"].split("/")[0][5:]))
            for one in given[item.table.name]["shards"] or ()
        }
        if expected:
            assert _shards_of(item) == expected
    assert dict(plan.modules)["whole"] == "model.ebc"


def _shards_of(item):
    return {
        (int(r0), int(c0), int(r1 - r0), int(c1 - c0), int(item.owners[c, r]))
        for c, (c0, c1) in enumerate(zip(item.col_bounds, item.col_bounds[1:], strict=False))
        for r, (r0, r1) in enumerate(zip(item.row_bounds, item.row_bounds[1:], strict=False))
    }


def test_without_a_table_list_sizes_come_from_shards_and_the_rest_is_noted():
    document = serialized(whole=entry("table_wise", shard(0, 100, 0, 64, 5)))
    plan = import_plan_text(json.dumps(document))
    assert (plan.tables[0].num_embeddings, plan.tables[0].embedding_dim) == (100, 64)
    assert any("only its size is known" in note for note in plan.notes)


def test_a_data_parallel_table_needs_the_table_list():
    document = serialized(everywhere=SERIALIZED["plan"]["model.ebc"]["everywhere"])
    assert "no shards to tell its size: give the tables" in told(document)


def test_uneven_row_shards_become_row_splits():
    document = serialized(
        rows=entry("row_wise", shard(0, 70, 0, 8, 0), shard(70, 0, 0, 8, 1), shard(70, 30, 0, 8, 2)),
    )
    _, how = imported(document)
    assert how["rows"].row_splits == (70, 0, 30)


def test_global_ranks_of_a_strided_2d_group_are_read_as_positions():
    document = serialized(
        rows=entry("row_wise", *[shard(25 * i, 25, 0, 8, 1 + 2 * i) for i in range(4)]),
        whole=entry("table_wise", shard(0, 100, 0, 64, 5)),
    )
    plan, how = imported(document)
    assert how["rows"].ranks is None
    assert how["whole"].ranks == (2,)
    assert any("one 2D sharding group of 4" in note for note in plan.notes)


def test_two_modules_may_name_a_table_alike():
    one = entry("table_wise", shard(0, 100, 0, 64, 0))
    plan = import_plan_text(json.dumps({"plan": {"a": {"t": one}, "b": {"t": one}}}))
    assert [table.name for table in plan.tables] == ["a.t", "b.t"]


def test_kernels_that_do_not_keep_rows_in_hbm_are_noted():
    document = serialized(whole=entry("table_wise", shard(0, 100, 0, 64, 5), compute_kernel="fused_uvm_caching"))
    plan, _ = imported(document)
    assert any("fused_uvm_caching" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"plan": {}}, "expected a table of modules"),
        ({"plan": {"m": 3}}, "expected a table of tables"),
        ({"other": 1}, 'expected "plan"'),
        (serialized(t=entry("diagonal_wise", shard(0, 1, 0, 1, 0))), "diagonal_wise"),
        (serialized(t=entry("table_wise")), "table_wise without shards"),
        (serialized(t=entry("table_wise", shard(0, 5, 0, 4, 0), shard(5, 5, 0, 4, 1))), "table_wise with 2 shards"),
        (serialized(t=entry("row_wise", shard(0, 5, 0, 4, 0), shard(6, 5, 0, 4, 1))), "do not tile"),
        (serialized(t=entry("row_wise", shard(0, 5, 0, 4, 0), shard(4, 6, 0, 4, 1))), "do not tile"),
        (serialized(t=entry("row_wise", shard(-1, 5, 0, 4, 0))), "shard_offsets"),
        (serialized(t=entry("table_wise", {"shard_offsets": [0, 0], "shard_sizes": [1, 1]})), "neither a placement"),
        (serialized(t=entry("table_wise", shard(0, 5, 0, 4, 0), ranks=[1])), "ranks = [1] contradict the placements"),
        (serialized(t=entry("row_wise", shard(0, 5, 0, 4, 0), shard(5, 5, 0, 4, 1), ranks=[1, 0])), "on ranks [0, 1]"),
        (serialized(t=entry("row_wise", shard(0, 5, 0, 4, 0), shard(5, 5, 0, 4, 1), ranks=[0])), "ranks = [0] contra"),
        (serialized(t=entry("table_wise", shard(0, 5, 0, 4, -3))), '"rank:-3/cuda:1" names no rank'),
        (serialized(t=entry("table_wise", {**shard(0, 5, 0, 4, 0), "placement": "nowhere"}, ranks=[0])),
         'the placement "nowhere" names no rank'),
    ],
)  # fmt: skip
def test_a_broken_serialised_plan_is_refused(document, sentence):
    assert sentence in told(document)


def test_every_tables_contradictions_are_listed():
    text = told(serialized(
        a=entry("table_wise", shard(0, 5, 0, 4, 0), ranks=[1]),
        b=entry("table_wise", {**shard(0, 5, 0, 4, 0), "placement": "nowhere"}),
        c=entry("table_wise", shard(0, 5, 0, 4, -3)),
    ))  # fmt: skip
    assert [name in text for name in ("table 'a'", "table 'b'", "table 'c'")] == [True] * 3


def test_ranks_that_agree_with_the_placements_are_no_mistake():
    _, how = imported(serialized(whole=entry("table_wise", shard(0, 100, 0, 64, 5), ranks=[5])))
    assert how["whole"].ranks == (5,)


def test_a_table_list_that_contradicts_the_shards_is_refused():
    document = serialized(whole=entry("table_wise", shard(0, 100, 0, 64, 5)))
    tables = [Table(name="whole", num_embeddings=99, embedding_dim=64), EVERYWHERE]
    text = told(document, tables)
    assert "cover 100 rows x 64 columns, but it has 99 x 64" in text
    assert "does not shard everywhere" in text


# ---- the bundle ----


def option(name, kind, *shards):
    return {
        "fqn": f"model.ebc.{name}",
        "sharding_type": kind,
        "compute_kernel": "fused",
        "shards": [
            {"rank": rank, "size": [rows, cols], "offset": [row, col], "hbm_bytes": 1000, "ddr_bytes": 0,
             "ssd_bytes": 0, "perf_total": 0.5}
            for row, rows, col, cols, rank in shards
        ],
        "total_hbm_bytes": 1000 * len(shards), "total_perf": 0.5 * len(shards),
    }  # fmt: skip


def arch(name, rows, dim, features=("f",), **more):
    table = {"name": name, "num_embeddings": rows, "embedding_dim": dim, "feature_names": list(features)}
    return {**table, "pooling": "SUM", "data_type": "FP16", "sharder_type": "EmbeddingBagCollectionSharder", **more}


def bundle(**changes):
    return {
        "options": [
            option("user", "row_wise", *[(13 * r, min(13, 100 - 13 * r), 0, 8, r) for r in range(8)]),
            option("item", "table_wise", (0, 50, 0, 16, 3)),
        ],
        "pooling_factors": {"model.ebc.user": [2.5, 4.0], "model.ebc.item": [1.0]},
        "batch_size": 512,
        "topology": {"world_size": 8, "local_world_size": 4, "compute_device": "cuda", "hbm_cap": 80 * GIB,
                     "hbm_mem_bw": 897 * GIB / 1000, "intra_host_bw": 600 * GIB / 1000,
                     "inter_host_bw": 12.5 * GIB / 1000},
        "architecture": {
            "tables": [arch("user", 100, 8, ("u", "v")), arch("item", 50, 16)],
            "sharder_types": ["EmbeddingBagCollectionSharder"],
            "sharders": [{"sharder_type": "EmbeddingBagCollectionSharder", "optimizer": "exact_row_wise_adagrad",
                          "learning_rate": 0.1}],
        },
        **changes,
    }  # fmt: skip


def test_a_bundle_gives_tables_plan_sizes_and_the_planners_own_costs():
    plan = import_plan_text(json.dumps(bundle()))
    user, item = plan.tables
    assert user.pooling_factor == (2.5, 4.0)
    assert user.feature_names == ("u", "v")
    assert (item.data_type, item.pooling) == ("fp16", "sum")
    assert (plan.world_size, plan.local_world_size, plan.batch_size) == (8, 4, 512)
    assert plan.optimizer == "rowwise_adagrad"
    assert plan.planner["tables"]["user"] == {"hbm_bytes": 8000, "ddr_bytes": 0, "perf_ms": 4.0}
    assert plan.planner["intra_host_bw_bytes_per_s"] == pytest.approx(600 * GIB)
    assert plan.notes == ()
    resolve_plan(plan.plan, plan.tables, 8, 4)


def test_bandwidths_given_per_second_are_flagged_and_kept_per_second():
    topology = {**bundle()["topology"], "intra_host_bw": 450e9, "inter_host_bw": 25e9, "hbm_mem_bw": 3.35e12}
    plan = import_plan_text(json.dumps(bundle(topology=topology)))
    assert plan.planner["intra_host_bw_bytes_per_s"] == 450e9
    assert plan.planner["inter_host_bw_bytes_per_s"] == 25e9
    assert plan.planner["hbm_mem_bw_bytes_per_s"] == 3.35e12
    flagged = [note for note in plan.notes if "bytes per millisecond" in note]
    assert len(flagged) == 3
    assert "topology.intra_host_bw = 4.5e+11 means 450 TB/s" in flagged[1]


def test_once_one_rate_is_flagged_those_that_are_not_are_suspect():
    """A slow network per second looks like a fast one per ms: 1.25e9 is 10 Gb/s or 1.25 TB/s."""
    topology = {**bundle()["topology"], "intra_host_bw": 450e9, "inter_host_bw": 1.25e9, "hbm_mem_bw": 3.35e12}
    plan = import_plan_text(json.dumps(bundle(topology=topology)))
    (suspect,) = (note for note in plan.notes if "given the topology's others so, too" in note)
    assert "inter_host_bw = 1.25e+09, 1250.0 GB/s if per ms and 1.2 GB/s if per second" in suspect
    assert "hbm_mem_bw" not in suspect
    assert plan.planner["inter_host_bw_bytes_per_s"] == 1.25e12


@pytest.mark.parametrize(
    ("name", "bytes_per_s"),
    [("hbm_mem_bw", 8e12), ("intra_host_bw", 900e9), ("inter_host_bw", 100e9), ("inter_host_bw", 12.5e9)],
)
def test_the_fastest_real_machines_in_the_right_unit_are_not_flagged(name, bytes_per_s):
    plan = import_plan_text(json.dumps(bundle(topology={**bundle()["topology"], name: bytes_per_s / 1e3})))
    assert not plan.notes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"options": []}, "options: expected a list"),
        ({"architecture": {}}, "architecture.tables"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"topology": {"world_size": 4, "local_world_size": 4}}, "rank 7 holds a shard, but the world has ranks"),
        ({"topology": {"world_size": -1, "local_world_size": 4}}, "topology.world_size"),
        ({"pooling_factors": {"model.ebc.user": [1.0]}}, "one positive number for each of its features"),
        ({"options": [option("user", "table_wise", (0, 100, 0, 8, None))]}, "has no rank"),
    ],
)  # fmt: skip
def test_a_broken_bundle_is_refused(changes, sentence):
    assert sentence in told(bundle(**changes))


def test_what_a_bundle_leaves_out_is_noted():
    architecture = {"tables": [arch("user", 100, 8, pooling=None, data_type=None), arch("item", 50, 16)]}
    plan = import_plan_text(json.dumps(bundle(architecture=architecture, pooling_factors={})))
    text = "\n".join(plan.notes)
    for part in ("no pooling factor is given", "no pooling is given", "data type None is read as fp32"):
        assert part in text


# ---- files ----


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_refused_unread(tmp_path, protocol):
    path = tmp_path / "plan.pkl"
    path.write_bytes(pickle.dumps(SERIALIZED, protocol=protocol))
    with pytest.raises(InputError, match=r"a pickle .* runs code"):
        import_plan(path)


def test_archives_of_torch_save_are_refused_unread(tmp_path):
    path = tmp_path / "plan.pt"
    path.write_bytes(b"PK\x03\x04" + b"\0" * 100)
    with pytest.raises(InputError, match=r"torch\.save"):
        import_plan(path)


def test_files_may_be_gzipped(tmp_path):
    path = tmp_path / "bundle.json.gz"
    path.write_bytes(gzip.compress(json.dumps(bundle()).encode()))
    assert len(import_plan(path).tables) == 2


@pytest.mark.parametrize("data", [b"", b"hello", b"\xff\xfe\x00", b"\x1f\x8bcut"])
def test_what_is_no_plan_is_refused(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(InputError):
        import_plan(path)


def test_importing_own_plan_files_keeps_them():
    from foreshard.simulator.torchrec.plan_file import plan_file_text

    plan = import_plan_text(json.dumps(bundle()))
    assert import_plan_text(plan_file_text(plan)) == plan
    assert np.isfinite(plan.planner["hbm_cap_bytes"])


@pytest.mark.parametrize(("widths", "told"), [((64, 192), True), ((192, 64), True), ((128, 128), False)])
def test_column_shards_of_unequal_widths_are_said_to_be_taken_as_equal(widths, told):
    document = serialized(t=entry("column_wise", shard(0, 5, 0, widths[0], 0), shard(0, 5, widths[0], widths[1], 1)))
    plan = import_plan_text(json.dumps(document))
    sentence = f"table 't': column shards that begin at [0, {widths[0]}] are taken as 2 equal ones"
    assert (sentence in plan.notes) == told
