"""Counted access: closed forms and draws follow the counts row by row; files of counts are read or refused whole."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.files.tablesets import load_tables
from foreshard.simulator.ids.access import Distribution
from foreshard.simulator.ids.histogram_files import MAX_BINS, read_histogram
from foreshard.simulator.ids.zipf import law_of
from foreshard.simulator.job.hashing import hash_part
from foreshard.simulator.job.workload import Access, Table, Workload
from foreshard.simulator.lookups.sampling import SampledBatches
from foreshard.topologies.errors import InputError


def distribution(rows, access):
    return Distribution.of(Table(name="t", num_embeddings=rows, embedding_dim=4, access=access))


def probabilities(this, access):
    """The definition: the chance of every row of the table, [rows]; the slow oracle."""
    counts, chance = access.histogram, np.zeros(this.num_embeddings)
    if access.histogram_ids:
        for row, count in zip(access.histogram_ids, counts, strict=True):
            chance[row] = count
        return chance / sum(counts)
    each = []
    for count, rows in zip(counts, access.histogram_rows or [1] * len(counts), strict=True):
        each += [count / rows] * rows
    for rank, count in enumerate(sorted(each, reverse=True)):
        chance[this.rows_of(np.array([rank]))[0]] = count
    return chance / sum(counts)


@st.composite
def histograms(draw):
    """(rows of the table, access): counts by row, by bin or by id, some of them zero."""
    counts = draw(st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any))
    form = draw(st.sampled_from(["row", "bin", "id"]))
    locality = draw(st.sampled_from([0.0, 0.4]))
    sizes = tuple(draw(st.integers(1, 200)) for _ in counts) if form == "bin" else ()
    rows = max(len(counts), sum(sizes)) + draw(st.integers(0, 100))
    if form == "id":
        ids = tuple(draw(st.permutations(range(rows)))[: len(counts)])
        return rows, Access(histogram=tuple(map(float, counts)), histogram_ids=ids, locality=locality)
    order = draw(st.sampled_from(["scattered", "by_frequency"]))
    return rows, Access(
        histogram=tuple(map(float, counts)), histogram_rows=sizes, order=order, locality=locality
    )  # fmt: skip


@settings(max_examples=60)
@given(
    case=histograms(),
    parts=st.integers(1, 9),
    draws=st.floats(0.3, 500),
    streams=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_closed_forms_equal_a_sum_over_the_counted_rows(case, parts, draws, streams, seed):
    """Up to 6,000 rows: beyond the exact head of 2,048 a scattered row counts as spread evenly, within 2 %."""
    rows, access = case
    this = distribution(rows, access)
    chance = probabilities(this, access)
    first = min(draws, 1.0) if access.locality else draws
    hit = 1 - ((1 - chance) ** first * (1 - (1 - access.locality) * chance) ** (draws - first)) ** streams
    assert this.distinct_rows(draws, streams) == pytest.approx(hit.sum(), rel=1e-9)
    cuts = np.sort(np.random.default_rng(seed).integers(0, rows + 1, parts - 1))
    bounds = np.concatenate(([0], cuts, [rows]))
    row = np.arange(rows)
    splits = [(this.row_ranges(bounds), np.searchsorted(bounds, row, side="right") - 1)]
    splits.append((this.hash_parts(parts), hash_part(row, parts)))
    spread = 0.02 if np.count_nonzero(chance) > 2048 and access.order == "scattered" else 1e-9
    for split, part in splits:
        assert split.mass() == pytest.approx([chance[part == p].sum() for p in range(parts)], abs=spread)
        exact = [hit[part == p].sum() for p in range(parts)]
        assert split.distinct(draws, streams) == pytest.approx(exact, abs=spread * hit.sum() + 1e-9)


@settings(max_examples=30)
@given(case=histograms(), seed=st.integers(0, 99))
def test_draws_hit_only_counted_rows_and_in_proportion(case, seed):
    """A chi-square over the rows of 20,000 draws within 5 standard deviations (and a row of its mean)."""
    rows, access = case
    this = distribution(rows, Access(**{**vars_of(access), "locality": 0.0}))
    chance = probabilities(this, access)
    seen = np.bincount(this.sample(np.random.default_rng(seed), 20_000), minlength=rows)
    assert len(seen) == rows
    assert seen[chance == 0].sum() == 0
    expected = 20_000 * chance[chance > 0]
    cells = len(expected)
    assert ((seen[chance > 0] - expected) ** 2 / expected).sum() <= cells - 1 + 5 * np.sqrt(2 * cells)


def vars_of(access):
    return {name: getattr(access, name) for name in access.__dataclass_fields__}


def test_sampled_distinct_rows_have_the_expected_mean():
    """The mean of 60 batches lies within 4.5 standard errors (one false alarm in 100,000 seeds)."""
    access = Access(histogram=(5000.0, 3000.0, 2000.0), histogram_rows=(1, 200, 30_000))
    this, rng = distribution(50_000, access), np.random.default_rng(3)
    counts = [len(np.unique(this.sample(rng, 4000))) for _ in range(60)]
    assert abs(np.mean(counts) - this.distinct_rows(4000)) < 4.5 * np.std(counts, ddof=1) / np.sqrt(60)


def test_a_row_with_an_id_sits_there_in_both_forms_of_owner():
    """Row 7 takes 90 of 100 lookups, row 2 the others; nothing else is ever asked for."""
    this = distribution(10, Access(histogram=(10.0, 90.0), histogram_ids=(2, 7)))
    assert this.row_ranges(np.array([0, 5, 10])).mass().tolist() == [0.1, 0.9]
    assert set(this.sample(np.random.default_rng(0), 1000).tolist()) == {2, 7}
    assert this.rows_of(np.array([0, 1])).tolist() == [7, 2]


def test_sampled_batches_are_drawn_from_the_counts():
    table = Table(
        name="t", num_embeddings=99, embedding_dim=4, access=Access(histogram=(1.0, 3.0), histogram_ids=(5, 50))
    )
    ids = SampledBatches(Workload(batch_size=4000, tables=(table,)), 1)[0].values
    assert (ids == 50).mean() == pytest.approx(0.75, abs=0.035)
    assert set(ids.tolist()) == {5, 50}


MISTAKES = {
    "more rows than the table": ({"histogram": [1, 1, 1, 1]}, "histogram has 4 rows but the table has 3"),
    "bins of more rows": ({"histogram": [5], "histogram_rows": [4]}, "histogram has 4 rows but the table has 3"),
    "an id outside": (
        {"histogram": [1, 1], "histogram_ids": [0, 3]},
        "1 lie outside the table (first: 3), expected 0 to 2",
    ),
    "an id twice": ({"histogram": [1, 1], "histogram_ids": [2, 2]}, "names 1 rows more than once (first: 2)"),
    "too few ids": ({"histogram": [1, 1], "histogram_ids": [2]}, "histogram_ids has 1 entries for 2 of histogram"),
    "rows without counts": ({"histogram_rows": [2]}, "histogram_rows has 1 entries for 0 of histogram"),
    "ids and rows": ({"histogram": [1], "histogram_ids": [2], "histogram_rows": [1]}, "are both given"),
    "two laws": ({"histogram": [1], "zipf": 1.1}, "keep one law"),
    "no lookups": ({"histogram": [0, 0]}, "histogram sums to 0"),
    "infinitely many": (
        {"histogram": [1e308, 1e308]}, "histogram[1] = 1e+308: expected a number of at least 0 and of at most",
    ),
    "ids in order of popularity": (
        {"histogram": [1], "histogram_ids": [2], "order": "by_frequency"},
        'order = "by_frequency" contradicts histogram_ids',
    ),
    "a negative count": ({"histogram": [1, -2]}, "access.histogram[1] = -2: expected a number of at least 0"),
    "text for a count": ({"histogram": ["many"]}, 'access.histogram[0] = "many": expected a number'),
}  # fmt: skip


def scenario(access, **workload):
    table = {"name": "t", "num_embeddings": 3, "embedding_dim": 4, "access": access}
    return {
        "schema": 1,
        "cluster": {"preset": "p5.48xlarge"},
        "workload": {"batch_size": 8, "tables": [table], **workload},
    }


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_histogram_that_contradicts_itself_or_its_table_is_refused(mistake):
    access, sentence = MISTAKES[mistake]
    with pytest.raises(InputError) as refusal:
        read_scenario(scenario(access))
    assert sentence in str(refusal.value)
    assert "workload.tables.t.access" in str(refusal.value)


def test_the_law_refuses_what_a_scenario_refuses():
    with pytest.raises(InputError, match="histogram has 4 rows but the table has 3"):
        law_of(3, Access(histogram=(1.0, 1.0, 1.0, 1.0)))


# ---- files ----


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_counts_groups_equally_hot_rows(tmp_path):
    found = read_histogram(write(tmp_path / "h.csv", "count\n3\n1\n1\n7\n1\n"))
    assert found == {"histogram": [7.0, 3.0, 3.0], "histogram_rows": [1, 1, 3]}


def test_files_with_ids_and_with_bins_keep_their_lines(tmp_path):
    by_id = read_histogram(write(tmp_path / "i.tsv", "id\tcount\n9\t3\n4\t1.5\n"))
    assert by_id == {"histogram": [3.0, 1.5], "histogram_ids": [9, 4]}
    lines = "\n".join(json.dumps(row) for row in ({"rows": 1, "count": 80}, {"rows": 10_000, "count": 20}))
    binned = read_histogram(write(tmp_path / "b.jsonl", lines))
    assert binned == {"histogram": [80.0, 20.0], "histogram_rows": [1, 10_000]}


def test_a_parquet_file_of_counts_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"id": [3, 1], "count": [2, 8]}), tmp_path / "h.parquet")
    assert read_histogram(tmp_path / "h.parquet") == {"histogram": [2.0, 8.0], "histogram_ids": [3, 1]}


BROKEN = {
    "no header": ("12\n7\n", ["there is no column 'count', only '12'", "rows,count"]),
    "empty": ("count\n", ["holds no counts"]),
    "nothing at all": ("", ["is empty"]),
    "both keys": ("id,rows,count\n1,1,1\n", ["both columns 'id' and 'rows'"]),
    "bad numbers, all told": (
        "id,count\n-1,2\n1.5,nan\nx,-3\n2,\n",
        ["1: id is '-1'", "2: id is '1.5'", "2: count is 'nan'", "3: id is 'x'", "3: count is '-3'", "4: count is ''"],
    ),
    "an empty bin": ("rows,count\n0,5\n", ["row 1: rows is '0', expected a whole number of at least 1"]),
    "a number beyond int64": (f"id,count\n{1 << 63},1\n", ["row 1: id is"]),
    "a cut line": ("id,count\n1,2\n3\n", ["line 3: 1 cells, expected 2"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_gets_one_error_with_all_its_mistakes(case, tmp_path):
    text, sentences = BROKEN[case]
    with pytest.raises(InputError) as refusal:
        read_histogram(write(tmp_path / "h.csv", text))
    assert all(sentence in str(refusal.value) for sentence in sentences), str(refusal.value)


def test_a_file_of_too_many_lines_is_pointed_to_bins(tmp_path):
    path = write(tmp_path / "h.csv", "count\n" + "1\n" * (MAX_BINS + 1))
    with pytest.raises(InputError, match="put equally hot rows into bins"):
        read_histogram(path)


def saved(folder, document):
    tomli_w = pytest.importorskip("tomli_w")
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(document), encoding="utf-8")
    return path


def test_a_scenario_names_a_file_beside_it_and_tells_its_source(tmp_path):
    write(tmp_path / "clicks.csv", "id,count\n2,3\n0,1\n")
    read = read_scenario(saved(tmp_path, scenario({"histogram": "clicks.csv"})))
    assert read.workload.tables[0].access == Access(histogram=(3.0, 1.0), histogram_ids=(2, 0))
    (note,) = read.assumptions
    assert (note.name, note.value) == ("workload.tables.t.access.histogram", "clicks.csv")
    assert note.source == "counted: 4 lookups in 2 bins"
    assert read_scenario(read) == read


def test_all_tables_may_share_one_histogram_file(tmp_path):
    write(tmp_path / "clicks.csv", "rows,count\n1,3\n2,1\n")
    document = scenario({"zipf": 0.0}, all_tables={"access": {"histogram": "clicks.csv"}})
    read = read_scenario(saved(tmp_path, document))
    assert read.workload.tables[0].access == Access(histogram=(3.0, 1.0), histogram_rows=(1, 2))


def test_a_table_set_file_names_histograms_beside_itself(tmp_path):
    folder = tmp_path / "sets"
    folder.mkdir()
    write(folder / "clicks.csv", "count\n3\n1\n")
    table = "name = 't'\nnum_embeddings = 9\nembedding_dim = 4\naccess = { histogram = 'clicks.csv' }\n"
    write(folder / "set.toml", f"schema = 1\n[[tables]]\n{table}")
    assert load_tables(folder / "set.toml")[0].access.histogram == (3.0, 1.0)
    read = read_scenario(saved(tmp_path, {**scenario({}), "workload": {"batch_size": 8, "tables": "sets/set.toml"}}))
    assert read.workload.tables[0].access.histogram == (3.0, 1.0)
    assert "workload.tables.t.access.histogram" in {note.name for note in read.assumptions}


def test_a_missing_file_and_other_mistakes_of_the_scenario_are_told_together(tmp_path):
    document = scenario({"histogram": "nowhere.csv"}, batch_size=0)
    with pytest.raises(InputError) as refusal:
        read_scenario(saved(tmp_path, document))
    assert "workload.tables.t.access.histogram: " in str(refusal.value)
    assert "nowhere.csv: cannot be read" in str(refusal.value)
    assert "workload.batch_size = 0" in str(refusal.value)
