"""Id batches: well formed or refused with every reason; traces read back; samples shared out to ranks."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.job.batches import JaggedBatch, check_ids, jagged_batch, split_samples
from foreshard.simulator.job.workload import Table
from foreshard.simulator.lookups.batch_files import read_batch, write_batch
from foreshard.topologies.errors import InputError

ids = st.integers(0, 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).filter(
    lambda s: s.strip("\0") == s
)


@st.composite
def batches(draw):
    samples = draw(st.integers(0, 4))
    features = draw(st.lists(names, min_size=0, max_size=3, unique=True))
    return {f: draw(st.lists(st.lists(ids, max_size=3), min_size=samples, max_size=samples)) for f in features}


def plain(batch):
    """A batch as plain lists, to compare."""
    columns = {}
    for feature, lengths in zip(batch.features, batch.lengths, strict=True):
        values = iter(batch.ids(feature).tolist())
        columns[feature] = [[next(values) for _ in range(length)] for length in lengths]
    return columns


@given(lists=batches())
def test_plain_lists_become_a_batch_and_come_back(lists):
    assert plain(jagged_batch(lists)) == lists


@given(lists=batches(), weighted=st.booleans())
def test_npz_traces_read_back_as_they_were_written(tmp_path_factory, lists, weighted):
    """Unicode names, empty samples, ids up to 2^63 - 1, weights or none."""
    batch = jagged_batch(lists)
    if weighted:
        weights = np.linspace(-1, 1, len(batch.values))
        batch = JaggedBatch(features=batch.features, lengths=batch.lengths, values=batch.values, weights=weights)
    path = tmp_path_factory.mktemp("npz") / "trace.npz"
    write_batch(batch, path)
    back = read_batch(path)
    assert back.features == batch.features
    assert np.array_equal(back.lengths, batch.lengths)
    assert np.array_equal(back.values, batch.values)
    assert (back.weights is None) == (batch.weights is None)
    assert back.weights is None or np.array_equal(back.weights, batch.weights)


@given(lists=batches(), large=st.booleans())
def test_parquet_list_columns_are_read_as_features(tmp_path_factory, lists, large):
    kind = pyarrow.large_list(pyarrow.int64()) if large else pyarrow.list_(pyarrow.int64())
    path = tmp_path_factory.mktemp("parquet") / "trace.parquet"
    table = pyarrow.table({name: pyarrow.array(column, kind) for name, column in lists.items()})
    pyarrow.parquet.write_table(table, path, row_group_size=2)
    assert plain(read_batch(path)) == lists


def test_parquet_single_ids_nulls_and_sliced_lists_are_read(tmp_path):
    """A column of plain ids has one id a sample, null none; a null list is empty; 32-bit ids are widened."""
    table = pyarrow.table({
        "user": pyarrow.array([7, None, 9], pyarrow.int32()),
        "topics": pyarrow.array([[1, 2], None, []], pyarrow.list_(pyarrow.uint8())),
    })  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert plain(read_batch(tmp_path / "t.parquet")) == {"user": [[7], [], [9]], "topics": [[1, 2], [], []]}


@given(lists=batches(), ranks=st.integers(1, 6))
def test_samples_are_shared_out_in_order_and_evenly(lists, ranks):
    shares = split_samples(jagged_batch(lists), ranks)
    assert len(shares) == ranks
    assert {f: [s for share in shares for s in plain(share)[f]] for f in lists} == lists
    assert max(share.samples for share in shares) - min(share.samples for share in shares) <= 1


def test_weights_are_shared_out_with_their_ids():
    batch = JaggedBatch(
        features=("a", "b"), lengths=np.array([[1, 2], [2, 0]]), values=np.arange(5), weights=np.arange(5) / 2
    )
    first, second = split_samples(batch, 2)
    assert (first.values.tolist(), first.weights.tolist()) == ([0, 3, 4], [0.0, 1.5, 2.0])
    assert (second.values.tolist(), second.weights.tolist()) == ([1, 2], [0.5, 1.0])


def made(**changes):
    arrays = {"features": ("a", "b"), "lengths": np.array([[1, 2], [0, 1]]), "values": np.arange(4), "weights": None}
    return JaggedBatch(**(arrays | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": np.array([[1, 2], [-1, 2]])}, "feature 'b', sample 0: length -1 is negative"),
        ({"lengths": np.full((2, 4), -2)}, "5 more lengths are negative"),
        ({"values": np.arange(3)}, "lengths add up to 4 ids but values holds 3"),
        ({"lengths": np.array([1, 2, 1])}, r"lengths has the shape \(3,\), expected \[2, samples\]"),
        ({"lengths": np.array([[4]])}, r"lengths has the shape \(1, 1\), expected \[2, samples\]"),
        ({"values": np.arange(4.0)}, "values has the type float64, expected int64"),
        ({"values": np.zeros((2, 2), np.int64)}, "values has 2 dims, expected one"),
        ({"features": ("a", "a")}, r"features \['a'\] are given more than once"),
        ({"weights": np.array([1, np.nan, 2, np.inf])}, "2 weights are not finite .first: nan at id 1"),
        ({"weights": np.ones(3)}, r"weights has the shape \(3,\), expected \[4\]"),
    ],
)
def test_contradicting_arrays_are_refused_with_the_reason(changes, message):
    with pytest.raises(InputError, match=message):
        made(**changes)


def test_all_mistakes_of_a_batch_are_named_at_once():
    with pytest.raises(InputError) as caught:
        made(lengths=np.array([[1, -2], [0, 1]]), values=np.arange(4.0), weights=np.full(4, np.nan))
    assert len(caught.value.problems) == 4


def test_lists_of_unequal_samples_are_refused():
    with pytest.raises(InputError, match=r"features have \[1, 2\] samples"):
        jagged_batch({"a": [[1]], "b": [[1], []]})


def test_ids_outside_a_table_are_counted_per_feature():
    table = Table(name="ids", num_embeddings=3, embedding_dim=4, feature_names=("ä", "b"))
    with pytest.raises(InputError, match=r"feature 'ä': 2 ids lie outside table 'ids' \(first: 3\), expected 0 to 2"):
        check_ids(jagged_batch({"ä": [[0, 3, -5]], "b": [[1]]}), [table])


def test_every_cut_or_flipped_npz_is_refused_or_read_never_a_traceback(tmp_path):
    """Cut at every tenth byte, and with single bytes flipped: InputError, or a batch if the flip missed the data."""
    path = tmp_path / "trace.npz"
    write_batch(made(), path)
    whole = path.read_bytes()
    damaged = [whole[:end] for end in range(0, len(whole) - 1, 10)]
    damaged += [whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] for at in range(0, len(whole), 7)]
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            read_batch(path)
        except InputError:
            refused += 1
    assert refused > len(damaged) / 2


@pytest.mark.parametrize("name", ["trace.npz", "trace.parquet"])
def test_missing_files_folders_and_foreign_content_are_refused(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(InputError, match="cannot be read"):
        read_batch(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="may be cut"):
        read_batch(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": ["a"], "values": [1]}, r"the arrays \['lengths'\] are missing"),
        ({"features": ["a"], "lengths": [[1]], "values": [1.5]}, "'values' has the type float64"),
        ({"features": [1], "lengths": [[1]], "values": [1]}, "'features' has the type int64, expected a list of texts"),
        ({"features": ["a"], "lengths": [[2]], "values": [1]}, "lengths add up to 2 ids"),
        ({"features": ["a"], "lengths": [[1]], "values": np.array([2**63], np.uint64)}, "numbers above 2"),
        ({"features": ["a"], "lengths": [[1]], "values": [1], "weights": ["x"]}, "'weights' has the type"),
    ],
)
def test_npz_archives_with_wrong_arrays_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "t.npz", **{name: np.array(array) for name, array in arrays.items()})
    with pytest.raises(InputError, match=message):
        read_batch(tmp_path / "t.npz")


def test_parquet_columns_that_hold_no_ids_are_all_named(tmp_path):
    table = pyarrow.table({
        "user": ["user_42"], "age": [31.5], "topics": pyarrow.array([[1, None]]),
        "big": pyarrow.array([2**64 - 1], pyarrow.uint64()),
    })  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputError) as caught:
        read_batch(tmp_path / "t.parquet")
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "column 'user'", "column 'age'", "column 'topics'", "column 'big'",
    ]  # fmt: skip


def test_a_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"use \.npz or \.parquet"):
        read_batch(tmp_path / "trace.pt")


@pytest.mark.parametrize("length", [2**62, 2**63 - 1, 3])
def test_lengths_whose_sum_wraps_around_are_refused(tmp_path, length):
    """Four times 2^62 is 0 modulo 2^64: the sum alone would agree, and whoever follows the lengths would crash."""
    lengths = np.full((1, 4), length, dtype=np.int64)
    path = tmp_path / "trace.npz"
    np.savez(path, features=np.array(["a"]), lengths=lengths, values=np.empty(0, dtype=np.int64))
    for read in (lambda: JaggedBatch(features=("a",), lengths=lengths, values=np.empty(0, dtype=np.int64)),
                 lambda: read_batch(path)):  # fmt: skip
        with pytest.raises(InputError) as caught:
            read()
        assert f"lengths add up to {4 * length} ids but values holds 0" in str(caught.value)


def test_a_single_array_under_the_name_of_an_archive_is_said_in_one_sentence(tmp_path):
    with (tmp_path / "single.npz").open("wb") as file:
        np.save(file, np.arange(5))
    with pytest.raises(InputError, match="holds a single array") as caught:
        read_batch(tmp_path / "single.npz")
    assert len(caught.value.problems) == 1
