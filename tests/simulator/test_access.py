"""Closed forms of id distributions agree with exact sums over rows and with what the sampler draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.ids.access import Distribution
from foreshard.simulator.ids.zipf import HEAD_ROWS, law_of
from foreshard.simulator.job.hashing import hash_part
from foreshard.simulator.job.workload import Access, Table
from foreshard.topologies.errors import InputError


def distribution(rows, name="t", **access):
    return Distribution.of(Table(name=name, num_embeddings=rows, embedding_dim=4, access=Access(**access)))


def exact_probabilities(rows, zipf=0.0, shift=0.0, heavy_hitters=(), **_):
    """The definition, row by row from the hottest: the slow oracle."""
    heavy = sorted(heavy_hitters, reverse=True)[:rows]
    rest = [(k + shift) ** -float(zipf) for k in range(1, rows - len(heavy) + 1)]
    left = 1 - sum(heavy)
    return np.array(heavy + [left * weight / sum(rest) for weight in rest]) / (1 if rest else sum(heavy))


def exact_distinct(probability, draws, streams=1, locality=0.0):
    first = min(draws, 1.0) if locality else draws
    missed = (1 - probability) ** first * (1 - (1 - locality) * probability) ** (draws - first)
    return 1 - missed**streams


accesses = st.builds(
    dict,
    zipf=st.sampled_from([0.0, 0.5, 0.9, 1.0, 1.05, 1.3, 2.0, 5.0]),
    shift=st.sampled_from([0.0, 2.75, 100.0]),
    heavy_hitters=st.lists(st.floats(0.001, 0.09), max_size=5).map(tuple),
    order=st.sampled_from(["scattered", "by_frequency"]),
    locality=st.sampled_from([0.0, 0.4, 1.0]),
)


@settings(max_examples=40)
@given(rows=st.integers(1, 2500), access=accesses)
def test_small_tables_have_the_probabilities_of_the_definition(rows, access):
    law = law_of(rows, Access(**access))
    exact = exact_probabilities(rows, **access)
    mass = np.diff(law.mass_before(np.arange(rows + 1)))
    assert mass == pytest.approx(exact, rel=1e-6, abs=1e-12)
    assert mass.sum() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("zipf", [0, 0.5, 0.9, 1, 1.0000001, 1.05, 1.2, 2, 8])
@pytest.mark.parametrize("shift", [0.0, 2.75])
def test_tail_integrals_agree_with_summing_every_row(zipf, shift):
    """Relative error of expected distinct rows below 1e-6 on a table far longer than the exact head."""
    rows, access = 1_000_000, {"zipf": zipf, "shift": shift, "heavy_hitters": (0.003, 0.002), "locality": 0.3}
    exact = np.concatenate(([0.003, 0.002], (np.arange(1, rows - 1) + shift) ** -float(zipf)))
    exact[2:] *= 0.995 / exact[2:].sum()
    this = distribution(rows, **access)
    for draws in (10, 1e4, 1e6):
        assert this.distinct_rows(draws) == pytest.approx(exact_distinct(exact, draws, 1, 0.3).sum(), rel=1e-6)


@settings(max_examples=40)
@given(
    rows=st.integers(1, 2000),
    access=accesses,
    parts=st.integers(1, 9),
    draws=st.floats(0.3, 5000),
    streams=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_parts_of_small_tables_equal_a_sum_over_their_rows(rows, access, parts, draws, streams, seed):
    this = distribution(rows, name=f"t{seed}", **access)
    probability = exact_probabilities(rows, **access)
    hit = exact_distinct(probability, draws, streams, access["locality"])
    row = this.rows_of(np.arange(rows))
    cuts = np.sort(np.random.default_rng(seed).integers(0, rows + 1, parts - 1))
    bounds = np.concatenate(([0], cuts, [rows]))
    for split, part in (
        (this.row_ranges(bounds), np.searchsorted(bounds, row, side="right") - 1),
        (this.hash_parts(parts), hash_part(row, parts)),
    ):
        exact_mass = [probability[part == p].sum() for p in range(parts)]
        exact_hit = [hit[part == p].sum() for p in range(parts)]
        assert split.mass() == pytest.approx(exact_mass, rel=1e-9, abs=1e-12)
        assert split.distinct(draws, streams) == pytest.approx(exact_hit, rel=1e-6, abs=1e-9)


@settings(max_examples=40)
@given(rows=st.integers(1, 50_000_000), access=accesses, parts=st.integers(1, 64), draws=st.floats(1, 1e7))
def test_parts_of_any_table_add_up_to_the_whole(rows, access, parts, draws):
    this = distribution(rows, **access)
    whole = this.distinct_rows(draws)
    block = -(-rows // parts)
    bounds = np.minimum(np.arange(parts + 1) * block, rows)
    for split in (this.row_ranges(bounds), this.hash_parts(parts)):
        assert split.mass().sum() == pytest.approx(1.0, rel=1e-9)
        assert split.mass().min() >= 0
        assert split.distinct(draws).sum() == pytest.approx(whole, rel=1e-6)
    assert this.row_ranges(bounds).mass()[np.diff(bounds) == 0] == pytest.approx(0.0, abs=1e-12)


@settings(max_examples=60)
@given(rows=st.integers(1, 10_000_000), access=accesses, draws=st.floats(1, 1e6))
def test_distinct_rows_stay_between_one_stream_and_the_table(rows, access, draws):
    this = distribution(rows, **access)
    one, four = this.distinct_rows(draws), this.distinct_rows(draws, streams=4)
    assert 0 < one <= min(draws, rows) * (1 + 1e-6)
    assert one * (1 - 1e-9) <= four <= min(4 * one, rows) * (1 + 1e-6)


@pytest.mark.parametrize(
    "access",
    [
        {"zipf": 1.05},
        {"zipf": 0.0},
        {"zipf": 1.2, "order": "by_frequency"},
        {"zipf": 0.89, "shift": 2.75, "heavy_hitters": (0.0032, 0.0017)},
        {"zipf": 1.05, "locality": 0.6},
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [50, 1500, 200_000])
def test_sampled_distinct_rows_have_the_expected_mean(access, rows):
    """The mean of 60 batches lies within 4.5 standard errors (one false alarm in 100,000 seeds)."""
    this, draws, streams = distribution(rows, **access), 3000, 2
    rng = np.random.default_rng(7)
    counts = [len(np.unique(np.concatenate([this.sample(rng, draws) for _ in range(streams)]))) for _ in range(60)]
    error = max(np.std(counts, ddof=1) / np.sqrt(60), 1e-6)
    assert abs(np.mean(counts) - this.distinct_rows(draws, streams)) < 4.5 * error + 1e-3


@pytest.mark.parametrize("zipf", [0.6, 1.05, 1.3])
@pytest.mark.parametrize("split", ["hash", "range"])
def test_true_shares_of_a_large_table_deviate_as_stated_from_the_expected(zipf, split):
    """All 100,000 rows placed one by one, for 30 tables: root mean square deviation within 15 % of the stated one."""
    rows, parts, misses = 100_000, 16, []
    bounds = np.arange(parts + 1) * (rows // parts)
    for number in range(30):
        this = distribution(rows, name=f"t{number}", zipf=zipf)
        chance = np.diff(this.law.mass_before(np.arange(rows + 1)))
        row = this.rows_of(np.arange(rows))
        part = hash_part(row, parts) if split == "hash" else row // (rows // parts)
        expected = (this.hash_parts(parts) if split == "hash" else this.row_ranges(bounds)).mass()
        misses.append(np.bincount(part, weights=chance, minlength=parts) - expected)
    assert np.sqrt(np.mean(np.square(misses))) == pytest.approx(
        this.share_deviation(parts, hashed=split == "hash"), rel=0.15
    )


def test_small_and_ordered_tables_have_exact_shares():
    assert distribution(HEAD_ROWS, zipf=1.0).share_deviation(8, hashed=True) == 0
    assert distribution(10**6, zipf=1.0, order="by_frequency").share_deviation(8, hashed=True) == 0


@pytest.mark.parametrize("zipf", [0.0, 0.7, 1.0, 1.3])
def test_sampled_ids_follow_the_law_from_head_to_tail(zipf):
    """Chi-square over log-spaced ranges of popularity ranks, straddling the exact head; 5 sigma."""
    rows, count = 10 * HEAD_ROWS, 400_000
    law = law_of(rows, Access(zipf=zipf))
    bounds = np.unique(np.geomspace(1, rows, 40).astype(np.int64))
    bounds = np.concatenate(([0], bounds))
    expected = np.diff(law.mass_before(bounds)) * count
    seen, _ = np.histogram(law.sample(np.random.default_rng(3), count), bins=bounds)
    seen = np.concatenate((seen[:-1], [count - seen[:-1].sum()]))
    cells = len(expected)
    assert ((seen - expected) ** 2 / expected).sum() < cells + 5 * np.sqrt(2 * cells)


@settings(max_examples=40)
@given(rows=st.integers(1, 10_000_000), access=accesses, seed=st.integers(0, 99))
def test_samples_stay_in_the_table_and_depend_on_the_seed_alone(rows, access, seed):
    this = distribution(rows, **access)
    ids = this.sample(np.random.default_rng(seed), 500)
    assert ids.min() >= 0
    assert ids.max() < rows
    assert np.array_equal(ids, this.sample(np.random.default_rng(seed), 500))


def test_locality_repeats_ids_but_keeps_every_row_as_likely():
    this, spread = distribution(200_000, zipf=0.5, locality=0.8), distribution(200_000, zipf=0.5)
    ids = this.sample(np.random.default_rng(1), 20_000)
    assert len(np.unique(ids)) < 0.3 * len(np.unique(spread.sample(np.random.default_rng(1), 20_000)))
    halves = np.array(
        [this.row_ranges(np.array([0, 100_000, 200_000])).mass(), [(ids < 100_000).mean(), (ids >= 100_000).mean()]]
    )
    assert halves[1] == pytest.approx(halves[0], abs=0.03)


def test_an_empty_stream_touches_nothing():
    assert distribution(100, zipf=1.0, heavy_hitters=(1.0,)).distinct_rows(0) == 0.0


def test_a_row_that_takes_all_ids_is_the_only_one_touched():
    assert distribution(100, heavy_hitters=(1.0,)).distinct_rows(1000) == pytest.approx(1.0)


def test_a_table_with_fewer_rows_than_heavy_hitters_keeps_the_largest():
    law = law_of(2, Access(heavy_hitters=(0.1, 0.3, 0.2)))
    assert law.head == pytest.approx([0.6, 0.4])


def test_heavy_hitters_above_all_ids_are_refused():
    with pytest.raises(InputError, match=r"sum to 1\.2 of all ids"):
        law_of(10, Access(heavy_hitters=(0.7, 0.5)))


def test_contiguous_blocks_of_a_frequency_ordered_table_are_skewed_as_published():
    """Zipf 1.05 over a million rows on 16 contiguous blocks: rank 0 gets 86 % of the lookups."""
    mass = distribution(1_000_000, zipf=1.05, order="by_frequency").row_ranges(np.arange(17) * 62_500).mass()
    assert mass[0] == pytest.approx(0.86, abs=0.005)
