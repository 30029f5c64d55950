"""Hashes of ids are total, evenly spread and the same everywhere."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.job.hashing import hash_part, mix64, scatter_rows, stable_key

INT64 = st.integers(-(2**63), 2**63 - 1)

# SplitMix64's published outputs for the seed 1234567 (Rosetta Code, "Pseudo-random numbers/Splitmix64").
SPLITMIX_1234567 = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]


@pytest.mark.parametrize(("key", "expected"), list(enumerate(SPLITMIX_1234567)))
def test_mix64_gives_the_published_splitmix64_sequence(key, expected):
    assert int(mix64(np.array([1234567]), key)[0]) == expected


@given(ids=st.lists(INT64, min_size=1, max_size=50), parts=st.integers(1, 5000))
def test_every_id_even_a_negative_one_has_one_part(ids, parts):
    part = hash_part(np.array(ids, dtype=np.int64), parts)
    assert part.shape == (len(ids),)
    assert part.min() >= 0
    assert part.max() < parts


@given(ids=st.lists(INT64, min_size=2, max_size=50))
def test_an_id_goes_to_the_same_part_whatever_stands_beside_it(ids):
    together = hash_part(np.array(ids, dtype=np.int64), 97).tolist()
    assert together == [int(hash_part(np.array([one], dtype=np.int64), 97)[0]) for one in ids]


def test_another_process_with_another_hash_seed_agrees():
    code = (
        "from foreshard.simulator.job.hashing import *; import numpy as np;"
        "print(stable_key('täble'), hash_part(np.arange(-5, 5), 7).tolist(), scatter_rows(np.arange(6), 6, 9).tolist())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "4711"}
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    here = (
        f"{stable_key('täble')} {hash_part(np.arange(-5, 5), 7).tolist()} {scatter_rows(np.arange(6), 6, 9).tolist()}"
    )
    assert there.strip() == here


def test_consecutive_ids_fill_parts_as_evenly_as_chance_does():
    counts = np.bincount(hash_part(np.arange(1_000_000), 64), minlength=64)
    mean = 1_000_000 / 64
    assert np.abs(counts - mean).max() < 5 * np.sqrt(mean)


@settings(max_examples=60)
@given(rows=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_scattering_puts_every_popularity_rank_on_a_row_of_its_own(rows, key):
    assert sorted(scatter_rows(np.arange(rows), rows, key).tolist()) == list(range(rows))


def test_scattering_one_rank_alone_gives_the_row_it_gets_among_all():
    everything = scatter_rows(np.arange(1000), 1000, 5)
    assert [int(scatter_rows(np.array([rank]), 1000, 5)[0]) for rank in range(0, 1000, 37)] == everything[::37].tolist()


def test_the_hottest_row_sits_anywhere_depending_on_the_key():
    places = np.array([int(scatter_rows(np.array([0]), 1000, stable_key(f"table_{n}"))[0]) for n in range(4000)])
    counts = np.bincount(places // 125, minlength=8)
    assert np.abs(counts - 500).max() < 5 * np.sqrt(500)
