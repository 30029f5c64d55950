"""Product rows become id batches: mappings with a default row, lists and weights, and files of three formats."""

import json
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.job.batches import check_ids
from foreshard.simulator.job.features import (
    Dictionary,
    FeatureFamily,
    Hashed,
    Modulo,
    learn_dictionary,
    raw_id,
    table_of,
)
from foreshard.simulator.job.replay import batch_of, raw_ids, tables_of
from foreshard.simulator.job.row_files import read_rows
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.lookups.routing import route, values_sent
from foreshard.topologies.errors import InputError

ROWS = {
    "user": ["user_42", "user_7", None],
    "pin": ["pin_77", "pin_42", "pin_unheard"],
    "topics": [["cats", "diy"], [], ["cats"]],
    "relevance": [[0.5, 2.0], [], [1.0]],
    "actions": [[1, 2, 3], [2], None],
}
FAMILIES = [
    FeatureFamily(name="user", mapping=Modulo(num_embeddings=11, prefix="user_")),
    FeatureFamily(name="pin", mapping=Dictionary(ids=("pin_42", "pin_77"))),
    FeatureFamily(
        name="topics", mapping=Hashed(num_embeddings=50), kind="pooled", pooling="weighted", weight_column="relevance"
    ),
    FeatureFamily(name="history", column="actions", mapping=Modulo(num_embeddings=4), kind="sequence", max_ids=2),
]


def test_rows_become_a_batch_with_default_rows_for_missing_and_unknown_ids():
    """By hand: 42 mod 10 + 1 = 3, 7 + 1 = 8, nobody 0; pins by dictionary; the history cut to two ids."""
    batch = batch_of(ROWS, FAMILIES)
    assert batch.features == ("user", "pin", "topics", "history")
    assert batch.ids("user").tolist() == [3, 8, 0]
    assert batch.ids("pin").tolist() == [2, 1, 0]
    cats, diy, again = batch.ids("topics").tolist()
    assert cats == again != diy
    assert batch.ids("history").tolist() == [2, 3, 3]
    assert batch.lengths.tolist() == [[1, 1, 1], [1, 1, 1], [2, 0, 1], [2, 1, 0]]
    assert batch.weights.tolist() == [1.0] * 6 + [0.5, 2.0, 1.0] + [1.0] * 3


def test_tables_have_the_pooling_and_the_mean_lengths_of_the_rows():
    tables = tables_of(FAMILIES, batch_of(ROWS, FAMILIES))
    assert [table.name for table in tables] == ["user", "pin", "topics", "history"]
    assert [table.num_embeddings for table in tables] == [11, 3, 50, 4]
    assert [table.pooling for table in tables] == ["sum", "sum", "sum", "none"]
    assert [table.pooling_factor for table in tables] == [1.0, 1.0, 1.0, 1.0]
    mean = FeatureFamily(name="m", mapping=Hashed(num_embeddings=9), kind="pooled", pooling="mean", embedding_dim=16)
    assert (table_of(mean, 2.5).pooling, table_of(mean, 2.5).pooling_factor) == ("mean", 2.5)


def test_equal_ids_of_different_families_never_meet():
    """Item 42 seen as user and as pin: the same row number, but routed to different tables' shards."""
    families = [
        FeatureFamily(name=name, mapping=Modulo(num_embeddings=100), embedding_dim=4) for name in ("user", "pin")
    ]
    batch = batch_of({"user": [42], "pin": [42]}, families)
    sharded = [
        ShardedTable(table=table_of(f), sharding="table_wise", owner="range", owners=np.array([[owner]]),
                     row_bounds=np.array([0, 100]), col_bounds=np.array([0, 4]))
        for owner, f in enumerate(families)
    ]  # fmt: skip
    one = route(batch, sharded, 2)
    assert one.rows.tolist() == [43, 43]
    assert one.counts.tolist() == [[1, 0], [0, 1]]
    assert values_sent(one).tolist() == [0, 1]


values = st.one_of(
    st.none(), st.integers(), st.text(max_size=6), st.floats().filter(lambda x: x != x or x.is_integer())
)
mappings = st.one_of(
    st.builds(Modulo, num_embeddings=st.integers(1, 10**12), prefix=st.sampled_from(["", "u_"])),
    st.builds(Hashed, num_embeddings=st.integers(1, 2**32)),
    st.builds(Dictionary, ids=st.lists(st.integers(0, 9), unique=True).map(tuple)),
)


@given(cells=st.lists(values, max_size=8), mapping=mappings)
def test_every_mapping_is_total_and_stays_in_its_table(cells, mapping):
    """Any id has one row of the table, the same each time; a missing id has the default row."""
    family = FeatureFamily(name="f", mapping=mapping)
    batch = batch_of({"f": cells}, [family])
    check_ids(batch, [table_of(family)])
    assert np.array_equal(batch.values, batch_of({"f": cells}, [family]).values)
    missing = [raw_id(cell) is None for cell in cells]
    assert all(batch.values[missing] == 0)


@pytest.mark.parametrize(
    ("value", "canonical"),
    [(42, 42), ("42", 42), (42.0, 42), (" 42 ", 42), ("042", "042"), ("-0", 0), ("", None), (None, None),
     (float("nan"), None), ("\u00e9", "\u00e9"), ("e\u0301", "\u00e9"), (np.int32(5), 5), (True, "true")],
)  # fmt: skip
def test_an_id_has_one_form_however_a_file_writes_it(value, canonical):
    assert raw_id(value) == canonical


@pytest.mark.parametrize("value", [1.5, float("inf"), [1], {"a": 1}, b"x"])
def test_what_is_no_id_is_refused(value):
    with pytest.raises(ValueError, match="is not an id"):
        raw_id(value)


def test_hashed_rows_are_the_same_in_another_process():
    code = (
        "from foreshard.simulator.job.features import Hashed\n"
        "print(Hashed(num_embeddings=10**6).rows(['user_42', 42, -1, 'ü', 2**70]).tolist())"
    )
    printed = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout]
    here = Hashed(num_embeddings=10**6).rows(["user_42", 42, -1, "ü", 2**70]).tolist()
    assert printed == [f"{here}\n"]
    assert len(set(here)) == 5


def test_hashed_ids_spread_evenly():
    """100,000 consecutive ids over 100 rows: chi-square with 99 degrees of freedom below 170 (chance 1e-5)."""
    counts = np.bincount(Hashed(num_embeddings=101).rows(range(100_000)), minlength=101)[1:]
    assert ((counts - 1000) ** 2 / 1000).sum() < 170


def test_a_list_is_cut_to_its_first_ids_with_their_weights():
    topics = FeatureFamily(
        name="t", mapping=Dictionary(ids=(1, 2, 3)), kind="pooled", pooling="weighted", weight_column="w", max_ids=2
    )
    batch = batch_of({"t": [[3, 2, 1], [1]], "w": [[0.1, 0.2, 0.3], [0.4]]}, [topics])
    assert (batch.values.tolist(), batch.weights.tolist()) == ([3, 2, 1], [0.1, 0.2, 0.4])


def test_a_learnt_dictionary_puts_frequent_ids_first():
    family = FeatureFamily(name="topics", mapping=Hashed(num_embeddings=2), kind="pooled")
    rows = {"topics": ["a|b|a", "c|b|a", "", "d"]}
    assert raw_ids(rows, family) == ["a", "b", "a", "c", "b", "a", "d"]
    assert learn_dictionary(raw_ids(rows, family)).ids == ("a", "b", "c", "d")
    assert learn_dictionary(raw_ids(rows, family), min_count=2, max_ids=1).ids == ("a",)


def test_the_same_rows_in_three_formats_give_the_same_batch(tmp_path):
    """CSV with lists split by |, JSON lines with arrays, Parquet with list columns."""
    flat = [{name: column[row] for name, column in ROWS.items()} for row in range(3)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in flat), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.table(ROWS), tmp_path / "rows.parquet")

    def cell(value):
        return "" if value is None else "|".join(map(str, value)) if isinstance(value, list) else str(value)

    lines = [",".join(ROWS), *(",".join(cell(value) for value in row.values()) for row in flat)]
    (tmp_path / "rows.csv").write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8")
    wanted = batch_of(ROWS, FAMILIES)
    for name in ("rows.jsonl", "rows.parquet", "rows.csv"):
        batch = batch_of(read_rows(tmp_path / name), FAMILIES)
        assert np.array_equal(batch.values, wanted.values), name
        assert np.array_equal(batch.lengths, wanted.lengths)
        assert np.array_equal(batch.weights, wanted.weights)


def test_names_and_cells_in_any_script_survive(tmp_path):
    """Unicode column names, a line separator inside a cell, a quoted comma and a quoted line end."""
    (tmp_path / "r.csv").write_text('用户,t\n"a,b","x\u2028y"\n"c\nd",ü\n', encoding="utf-8")
    assert read_rows(tmp_path / "r.csv") == {"用户": ["a,b", "c\nd"], "t": ["x\u2028y", "ü"]}


@pytest.mark.parametrize(
    ("name", "content", "messages"),
    [
        ("r.csv", b"a,b\n1,2\n3\n4,5,6\n", ["line 3: 1 cells, expected 2", "line 4: 3 cells, expected 2"]),
        ("r.csv", b'a,b\n1,"cut of', ["line 2: unexpected end of data"]),
        ("r.csv", b"", ["is empty"]),
        ("r.csv", b"a,a\n1,2\n", ["names column 'a' more than once"]),
        ("r.csv", b"a\n\xff\n", ["byte 2 is not UTF-8"]),
        ("r.jsonl", b'{"a": 1}\n{"a": \n[1]\n', ["line 2: is not JSON", "line 3: is a list"]),
        ("r.jsonl", b"[" * 100_000, ["line 1: is not JSON"]),
        ("r.jsonl", b'{"a": ' + b"9" * 5000 + b"}", ["line 1: "]),
        ("r.jsonl", b"\n", ["is empty"]),
        ("r.parquet", b"PAR1....", ["cannot be read as Parquet"]),
        ("r.xlsx", b"", ["cannot tell the format"]),
    ],
)
def test_damaged_files_are_refused_line_by_line(tmp_path, name, content, messages):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_rows(tmp_path / name)
    for message in messages:
        assert message in str(caught.value)


def test_long_lists_of_mistakes_are_cut(tmp_path):
    (tmp_path / "r.csv").write_text("a,b\n" + "1\n" * 100)
    with pytest.raises(InputError) as caught:
        read_rows(tmp_path / "r.csv")
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1].startswith("80 more mistakes")


def test_all_mistakes_in_rows_are_named_with_row_and_column():
    rows = {
        "user": [1.5, ["a", "b"], "u"],
        "topics": [["x"], ["x", "y"], ["x"]],
        "w": [[float("nan")], [1.0], ["heavy"]],
    }
    topics = FeatureFamily(
        name="topics", mapping=Hashed(num_embeddings=5), kind="pooled", pooling="weighted", weight_column="w"
    )
    with pytest.raises(InputError) as caught:
        batch_of(rows, [FeatureFamily(name="user", mapping=Hashed(num_embeddings=5)), topics], where="rows.jsonl")
    assert [problem.split(": ", 1) for problem in caught.value.problems] == [
        ["row 1, column 'user'", "1.5 is not an id: expected a whole number or a text"],
        ["row 2, column 'user'", "holds a list of 2, expected one id: make the family pooled or a sequence"],
        ["row 1, column 'topics'", "the weight nan is not finite: give a finite number"],
        ["row 2, column 'topics'", "1 weights for 2 ids: give one weight for each id"],
        ["row 3, column 'topics'", "'heavy' is not a weight: expected a number"],
    ]


def test_families_that_contradict_each_other_or_the_rows_are_refused():
    family = FeatureFamily(name="a", mapping=Hashed(num_embeddings=5), pooling="weighted")
    with pytest.raises(InputError) as caught:
        batch_of({"b": [1], "c": [1, 2]}, [family, family])
    text = str(caught.value)
    for message in (
        "columns differ in length",
        "2 feature families are named 'a'",
        "it must be pooled",
        "no column 'a'",
    ):
        assert message in text
