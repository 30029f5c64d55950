"""Recorded samples drive a prediction: rows of a small file or a trace of ids, sample by sample, exactly or refused."""

# ruff: noqa: E501  a message stays on one line

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.files.shipped import shipped_folder
from foreshard.simulator.job.batches import JaggedBatch, jagged_batch, samples_of
from foreshard.simulator.job.workload import Access
from foreshard.simulator.lookups.batch_files import write_batch
from foreshard.simulator.lookups.recorded import RecordedBatches, counted_access
from foreshard.simulator.plans.rows import part_finder
from foreshard.simulator.results.report import report
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies import cli
from foreshard.topologies.errors import InputError

ROWS = shipped_folder("scenarios") / "product-rows.csv"


def rows_of_file() -> list[dict[str, str]]:
    with ROWS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# ---- samples ----


@given(data=st.data())
def test_chosen_samples_are_those_of_a_loop(data: st.DataObject) -> None:
    """Any samples in any order, some more than once: ids, weights and lengths of each stay together."""
    samples, features = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    lengths = rng.integers(0, 4, (features, samples))
    ids = rng.integers(0, 100, lengths.sum())
    batch = JaggedBatch(features=tuple("abc"[:features]), lengths=lengths, values=ids, weights=ids / 2)
    chosen = data.draw(st.lists(st.integers(0, samples - 1), max_size=8))
    found = samples_of(batch, np.array(chosen, dtype=np.int64))
    for index, feature in enumerate(batch.features):
        cells = np.split(batch.ids(feature), np.cumsum(lengths[index])[:-1])
        wanted = [value for sample in chosen for value in cells[sample].tolist()]
        assert found.ids(feature).tolist() == wanted
    assert found.weights is not None
    assert np.array_equal(found.weights, found.values / 2)
    assert found.lengths.tolist() == lengths[:, chosen].tolist()


@given(recorded=st.integers(1, 30), size=st.integers(1, 5), ranks=st.integers(1, 6))
def test_ranks_take_the_samples_in_order_and_begin_anew_where_allowed(recorded: int, size: int, ranks: int) -> None:
    samples = jagged_batch({"f": [[number] for number in range(recorded)]})
    if recorded < size * ranks:
        with pytest.raises(InputError, match=f"{ranks} ranks x batch_size {size} need {size * ranks}"):
            RecordedBatches(samples, size, ranks)
    batches = RecordedBatches(samples, size, ranks, repeat=True)
    together = [value for batch in batches for value in batch.ids("f").tolist()]
    assert together == [number % recorded for number in range(size * ranks)]
    assert np.array_equal(batches[-1].values, batches[ranks - 1].values)
    assert len(batches[:2]) == min(2, ranks)


def test_counted_access_is_the_count_of_every_row_and_by_frequency_for_very_many() -> None:
    assert counted_access(np.array([5, 2, 5])) == Access(histogram=(1.0, 2.0), histogram_ids=(2, 5))
    assert counted_access(np.array([], dtype=np.int64)) == Access()
    many = counted_access(np.append(np.arange(100_001), [3, 3, 7]))
    assert many == Access(histogram=(3.0, 2.0, 99_999.0), histogram_rows=(1, 1, 99_999))


# ---- rows of a file ----


def test_the_shipped_rows_reach_exactly_the_owners_of_their_rows() -> None:
    """Slow oracle: every cell of the file mapped by hand, and its row's owner asked from the plan, rank by rank."""
    prediction = Prediction(read_scenario("product-rows"))
    rows = rows_of_file()
    wanted = {name: np.zeros((8, 8)) for name in ("pin", "actions")}
    for number, row in enumerate(rows):
        for name, column, most in (("pin", "pin", 1), ("actions", "actions", 6)):
            for raw in [cell for cell in row[column].split("|") if cell][:most]:
                address = 1 + int(raw.removeprefix("pin_")) % 49_999
                sharded = next(one for one in prediction.sharded if one.table.name == name)
                owner = sharded.owners[0, part_finder(sharded)(np.array([address]))[0]]
                wanted[name][number // 5, owner] += 1
    families = {(family.sharding, family.pooled): family for family in prediction.demand.families}
    assert np.array_equal(families["row_wise", False].ids.traffic_of(0).to_matrix(), wanted["actions"])
    single = families["row_wise", True].ids.traffic_of(0).to_matrix()
    assert (single.sum(axis=1) == 10).all()  # 5 users and 5 pins a rank
    assert (single - wanted["pin"]).sum() == 40
    assert families["table_wise", True].ids.traffic_of(0).to_matrix().sum() == sum(
        len([cell for cell in row["topics"].split("|") if cell]) for row in rows
    )


def test_tables_are_made_for_the_families_with_mean_lengths_and_counted_access() -> None:
    tables = {table.name: table for table in read_scenario("product-rows").workload.tables}
    rows = rows_of_file()
    topics = Counter(cell for row in rows for cell in row["topics"].split("|") if cell)
    assert tables["topics"].num_embeddings == len(topics) + 1
    assert tables["topics"].pooling_factor == pytest.approx(sum(topics.values()) / 40)
    assert sorted(tables["topics"].access.histogram, reverse=True) == sorted(map(float, topics.values()), reverse=True)
    assert tables["actions"].pooling == "none"
    assert tables["pin"].num_embeddings == tables["actions"].num_embeddings == 50_000


def test_equal_ids_of_different_families_never_meet() -> None:
    """pin_77 as a candidate and as an action: two tables, two families, rows counted apart."""
    demand = Prediction(read_scenario("product-rows")).demand
    by_name = {table.name: set(table.access.histogram_ids) for table in read_scenario("product-rows").workload.tables}
    assert {78} <= by_name["pin"] & by_name["actions"]
    touched = sum(family.local.distinct_rows.sum() for family in demand.families)
    assert touched == sum(len(rows) for rows in by_name.values())


def test_a_read_scenario_reads_again_as_itself_and_keeps_its_dictionary() -> None:
    for overrides in ((), ("execution.routing=expected",), ("execution.dedup=true", "workload.batch_size=2")):
        scenario = read_scenario("product-rows", overrides)
        assert read_scenario(scenario) == scenario
    assert scenario.workload.families[2].ids is not None
    assert {note.name for note in scenario.assumptions} == {"workload.replay"}


def test_recorded_samples_are_replayed_unless_another_routing_is_asked_for() -> None:
    """The expectation over the counted rows sends what the rows themselves send, on average over ranks."""
    replayed = Prediction(read_scenario("product-rows"))
    expected = Prediction(read_scenario("product-rows", ["execution.routing=expected"]))
    sampled = Prediction(read_scenario("product-rows", ["execution.routing=sampled"]))
    assert replayed.scenario.execution.routing == "replayed"
    assert expected.demand.batch_ids.sum() == pytest.approx(replayed.demand.batch_ids.sum())
    for exact, mean in zip(replayed.demand.families, expected.demand.families, strict=True):
        assert mean.local.lookups == pytest.approx(exact.local.lookups)  # which rows sit where is known, not assumed
    assert sampled.demand.batch_ids.sum() != replayed.demand.batch_ids.sum()


def test_a_file_begun_again_says_so_in_the_report() -> None:
    with pytest.raises(InputError, match=r"set workload\.batch_size to 5 at most") as refusal:
        read_scenario("product-rows", ["workload.batch_size=64"])
    assert "workload.replay.repeat = true" in str(refusal.value)
    told = report(Prediction(read_scenario("product-rows", ["workload.batch_size=64", "workload.replay.repeat=true"])))
    (note,) = (note for note in told.assumptions if note.name == "workload.replay")
    assert "40 samples are recorded, 512 are run: the file is begun 13 times" in note.source


def test_the_command_predicts_from_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["predict", "product-rows", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    notes = {note["name"]: note["value"] for note in told["assumptions"]}
    assert notes["execution.routing"] == "replayed"
    assert notes["workload.replay"] == "product-rows.csv"
    assert told["samples_per_s"] == pytest.approx(40 / told["step_time_s"])


def document(replay: Any, families: Any = None, tables: Any = None, **workload: Any) -> dict[str, Any]:
    made = {"batch_size": 1, "replay": replay, **workload}
    made |= {"families": families} if families is not None else {}
    made |= {"tables": tables} if tables is not None else {}
    return {"schema": 1, "cluster": {"preset": "p5.48xlarge"}, "workload": made}


def saved(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(content), encoding="utf-8")
    return path


FAMILIES = [
    {"name": "user"},
    {"name": "liked", "kind": "pooled", "mapping": "hash", "num_embeddings": 50},
]  # fmt: skip


def eight_rows() -> list[dict[str, Any]]:
    return [{"user": f"user_{number % 3}", "liked": [f"p{k}" for k in range(number)]} for number in range(8)]


def test_csv_json_lines_and_parquet_rows_are_one_job(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = eight_rows()
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    lines = [f"{row['user']},{'|'.join(row['liked'])}" for row in rows]
    (tmp_path / "r.csv").write_text("user,liked\n" + "\n".join(lines), encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "r.parquet")
    found = []
    for name in ("r.jsonl", "r.csv", "r.parquet"):
        scenario = read_scenario(saved(tmp_path, document({"file": name}, FAMILIES)))
        found.append([batch.values.tolist() for batch in RecordedBatches.of(scenario.workload, 8)])
        assert scenario.workload.tables[0].num_embeddings == 4
    assert found[0] == found[1] == found[2]
    assert [len(values) for values in found[0]] == [1 + number for number in range(8)]


def test_ids_that_take_the_default_row_are_counted_in_the_report(tmp_path: Path) -> None:
    """In CSV "1.5" is a text, which no modulo takes; an empty cell is missing. Read again, it is told once."""
    (tmp_path / "r.csv").write_text("pin,user\n1.5,u\n2,u\n,u\n4,u\n5,\n6,u\n7,u\n8,u\n", encoding="utf-8")
    pins = [{"name": "pin", "mapping": "modulo", "num_embeddings": 50}, {"name": "user"}]
    scenario = read_scenario(saved(tmp_path, document({"file": "r.csv"}, pins)))
    for read in (scenario, read_scenario(scenario)):
        (told,) = (note for note in read.assumptions if note.name == "workload.families")
        assert told.value == "2 of 8 ids of pin, 1 of 8 ids of user look up the default row"
    assert told.value in " ".join(report(Prediction(scenario)).to_text().split())
    (tmp_path / "r.csv").write_text("pin,user\n" + 8 * "1,u\n", encoding="utf-8")
    scenario = read_scenario(saved(tmp_path, document({"file": "r.csv"}, pins)))
    assert "workload.families" not in {note.name for note in scenario.assumptions}


def test_all_tables_and_families_shape_the_tables_that_are_made(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, eight_rows())), encoding="utf-8")
    content = document({"file": "r.jsonl"}, FAMILIES, all_tables={"embedding_dim": 32})
    scenario = read_scenario(saved(tmp_path, content), ["workload.families.user.num_embeddings=100"])
    assert [table.embedding_dim for table in scenario.workload.tables] == [32, 32]
    assert scenario.workload.tables[0].num_embeddings == 100


def test_tables_may_be_given_for_families(tmp_path: Path) -> None:
    """A production table is larger than what a small file shows; its family's rows lie inside it."""
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, eight_rows())), encoding="utf-8")
    tables = [
        {"name": "users", "num_embeddings": 10**6, "embedding_dim": 64, "feature_names": ["user"]},
        {"name": "liked", "num_embeddings": 50, "embedding_dim": 64, "pooling_factor": 3.5},
    ]
    scenario = read_scenario(saved(tmp_path, document({"file": "r.jsonl"}, FAMILIES, tables)))
    assert scenario.workload.tables[0].num_embeddings == 10**6
    assert scenario.workload.tables[0].access.histogram == (3.0, 3.0, 2.0)
    assert Prediction(scenario).demand.batch_ids.tolist() == [1 + number for number in range(8)]


# ---- traces of ids ----

TABLES = [
    {"name": "a", "num_embeddings": 10, "embedding_dim": 8, "pooling": "none"},
    {"name": "b", "num_embeddings": 5, "embedding_dim": 8},
]


def trace(folder: Path, name: str = "t.npz", **features: list[list[int]]) -> str:
    given = features or {"a": [[n, n % 2] for n in range(8)], "b": [[n % 5] for n in range(8)]}
    write_batch(jagged_batch(given), folder / name)
    return name


def test_a_trace_of_ids_is_replayed_for_the_tables_given(tmp_path: Path) -> None:
    scenario = read_scenario(saved(tmp_path, document({"file": trace(tmp_path)}, tables=TABLES)))
    assert scenario.workload.tables[1].access == Access(
        histogram=(2.0, 2.0, 2.0, 1.0, 1.0), histogram_ids=(0, 1, 2, 3, 4)
    )
    demand = Prediction(scenario).demand
    assert demand.batch_ids.tolist() == [3] * 8
    (sequence,) = (family for family in demand.families if not family.pooled)
    wanted = np.zeros((8, 8))
    for rank in range(8):  # 10 rows on 8 ranks: TorchRec's blocks of two rows
        for value in (rank, rank % 2):
            wanted[rank, value // 2] += 1
    assert np.array_equal(sequence.ids.traffic_of(0).to_matrix(), wanted)


def test_access_that_the_user_gives_is_kept(tmp_path: Path) -> None:
    tables = [{**TABLES[0], "access": {"zipf": 1.1}}, TABLES[1]]
    scenario = read_scenario(saved(tmp_path, document({"file": trace(tmp_path)}, tables=tables)))
    assert scenario.workload.tables[0].access == Access(zipf=1.1)


def test_a_trace_deduplicates_exactly(tmp_path: Path) -> None:
    name = trace(tmp_path, a=[[3, 3, 3, 1]] * 8, b=[[2, 2]] * 8)
    plain = saved(tmp_path, document({"file": name}, tables=TABLES))
    ids = [
        sum(
            family.ids.traffic_of(0).to_matrix().sum()
            for family in Prediction(read_scenario(plain, more)).demand.families
        )
        for more in ((), ("execution.dedup=true",))
    ]
    assert ids == [8 * 6, 8 * 3]


# ---- refused ----


def refusal(folder: Path, content: dict[str, Any], *overrides: str) -> str:
    with pytest.raises(InputError) as error:
        read_scenario(saved(folder, content), overrides)
    return str(error.value)


MISTAKES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no such file": (document({"file": "gone.csv"}, FAMILIES), ["workload.replay: ", "gone.csv: cannot be read"]),
    "a file of another kind": (document({"file": "r.txt"}, FAMILIES), ["cannot tell the format from the suffix '.txt'"]),
    "rows without families": (document({"file": "r.csv"}, tables=TABLES), ['"r.csv" holds rows', "[[workload.families]]"]),
    "families without rows": (
        {**document({}), "workload": {"batch_size": 1, "families": FAMILIES, "tables": TABLES}},
        ["workload.families is given without workload.replay"],
    ),
    "families for a trace": (document({"file": "t.npz"}, FAMILIES), ["is given for a trace of ids"]),
    "numbers in a trace": (document({"file": "t.npz", "numeric": ["x"]}, tables=TABLES), ["a trace of ids has no other"]),
    "no tables for a trace": (document({"file": "t.npz"}), ["workload.tables is missing"]),
    "replay is a word": (document("r.csv", FAMILIES), ['workload.replay = "r.csv": expected a table with the keys file']),
    "families is a table": (document({"file": "r.csv"}, {"name": "x"}), ["workload.families = "]),
    "a key misspelt": (document({"file": "r.csv", "repeats": True}, FAMILIES), ["workload.replay.repeats: unknown key"]),
    "a family's key misspelt": (
        document({"file": "r.csv"}, [{"name": "user", "dim": 3}]), ["workload.families.user.dim: unknown key"]
    ),
    "columns that are not there": (
        document({"file": "r.csv", "numeric": ["age"]}, [{"name": "usr"}, {"name": "user"}]),
        ["family 'usr': there is no column 'usr'", "numeric: there is no column 'age'"],
    ),
    "no rows for a hash": (
        document({"file": "r.csv"}, [{"name": "user", "mapping": "hash"}, {"name": "liked", "mapping": "modulo"}]),
        ['user.num_embeddings is missing: "hash" needs', 'liked.num_embeddings is missing: "modulo" needs'],
    ),
    "ids for a hash, a prefix for a dictionary": (
        document(
            {"file": "r.csv"},
            [
                {"name": "user", "mapping": "hash", "num_embeddings": 9, "ids": [1]},
                {"name": "liked", "prefix": "p"},
                {"name": "big", "ids": [1, 2, 3], "num_embeddings": 3},
            ],
        ),
        ["user.ids is given", "liked.prefix is given", "big.num_embeddings = 3: 3 ids and the default row need 4"],
    ),
    "two families of one name": (document({"file": "r.csv"}, [{"name": "user"}] * 2), ["2 feature families are named"]),
    "a table shared by families": (
        document(
            {"file": "r.csv"},
            [{"name": "user"}, {"name": "liked", "kind": "pooled"}],
            [{"name": "t", "num_embeddings": 99, "embedding_dim": 4, "feature_names": ["user", "liked"]}],
        ),
        ["table 't' is shared by the families 'user', 'liked'"],
    ),
    "a family without a table, a table without a family": (
        document({"file": "r.csv"}, [{"name": "user"}], [{"name": "t", "num_embeddings": 99, "embedding_dim": 4}]),
        ["family 'user' has no table", "feature 't' of table 't' is missing"],
    ),
    "a table too small": (
        document({"file": "r.csv"}, [{"name": "user"}], [{"name": "user", "num_embeddings": 2, "embedding_dim": 4}]),
        ["5 ids lie outside table 'user'"],
    ),
    "ids outside the tables of a trace": (
        document({"file": "t.npz"}, tables=[{**TABLES[0], "num_embeddings": 3}, TABLES[1]]),
        ["workload.replay: feature 'a'", "lie outside table 'a'"],
    ),
    "too few samples": (document({"file": "r.csv"}, [{"name": "user"}], batch_size=2), ["8 samples are recorded"]),
    "numbers that are none, and a weight": (
        document(
            {"file": "bad.csv", "numeric": ["x", "y"]},
            [{"name": "liked", "kind": "pooled", "pooling": "weighted", "weight_column": "w"}],
        ),
        ["row 1, column 'x': 'nan' is not a finite", "row 2, column 'x': 'many'", "row 2, column 'liked': 1 weights for 2"],
    ),
    "more dense features than columns": (
        document({"file": "bad.csv", "numeric": ["y"]}, [{"name": "liked"}], dense={"layers": [[3, 4], [8, 1]]}),
        ["names 1 columns but workload.dense.layers[0] begins with 3"],
    ),
    "no samples at all": (document({"file": "empty.csv"}, [{"name": "user"}]), ["there are no samples in the file"]),
    "replayed without a file": (
        {**document({}), "workload": {"batch_size": 1, "tables": TABLES}, "execution": {"routing": "replayed"}},
        ['execution.routing = "replayed": give workload.replay'],
    ),
    "a cut trace": (document({"file": "cut.npz"}, tables=TABLES), ["cut.npz: is not a whole .npz archive"]),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [f"{row['user']},{'|'.join(row['liked'])}" for row in eight_rows()]
    (tmp_path / "r.csv").write_text("user,liked\n" + "\n".join(lines), encoding="utf-8")
    (tmp_path / "r.txt").write_text("user,liked\n", encoding="utf-8")
    (tmp_path / "bad.csv").write_text("liked,w,x,y\np1,1,nan,3\np1|p2,1,many,\n", encoding="utf-8")
    (tmp_path / "empty.csv").write_text("user\n", encoding="utf-8")
    whole = (tmp_path / trace(tmp_path)).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_recorded_samples_is_a_sentence(mistake: str, folder: Path) -> None:
    content, sentences = MISTAKES[mistake]
    told = refusal(folder, content)
    assert all(sentence in told for sentence in sentences), told


def test_mistakes_in_rows_and_elsewhere_come_together(folder: Path) -> None:
    told = refusal(
        folder, document({"file": "bad.csv", "numeric": ["x"]}, [{"name": "liked", "kind": "list"}], batch_size=0)
    )
    assert "workload.families.liked.kind" in told
    assert "workload.batch_size = 0" in told


def test_unicode_names_and_ids_are_ordinary(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("пользователь\nżółw\n用户\nżółw\n", encoding="utf-8")
    content = document({"file": "r.csv", "repeat": True}, [{"name": "пользователь", "embedding_dim": 8}])
    scenario = read_scenario(saved(tmp_path, content))
    assert scenario.workload.families[0].ids == ("żółw", "用户")
    assert Prediction(scenario).demand.batch_ids.sum() == 8


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    trace(tmp_path, "t.npz", a=[[1]] * 8, b=[[1]] * 8)
    scenario = read_scenario(saved(tmp_path, document({"file": "t.npz"}, tables=TABLES)))
    assert Prediction(scenario).demand.batch_ids.sum() == 16
    trace(tmp_path, "t.npz", a=[[1, 2, 3]] * 8, b=[[1]] * 8)
    assert Prediction(scenario).demand.batch_ids.sum() == 32


@pytest.mark.parametrize(
    "workload",
    [
        {"replay": {"file": "a\0.csv"}, "families": FAMILIES},
        {"replay": {"file": "a\0.npz"}, "tables": TABLES},
        {"tables": [{**TABLES[0], "access": {"histogram": "a\0.csv"}}]},
        {"tables": "a\0.toml"},
    ],
    ids=["rows", "trace", "histogram", "table set"],
)
def test_a_name_that_no_file_can_have_is_one_sentence(workload: dict[str, Any]) -> None:
    content = {"schema": 1, "cluster": {"preset": "p5.48xlarge"}, "workload": {"batch_size": 1, **workload}}
    with pytest.raises(InputError, match="null byte") as refused:
        read_scenario(content)
    assert len(refused.value.problems) == 1
