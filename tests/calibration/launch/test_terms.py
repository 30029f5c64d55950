"""Terms of a run: equal scenarios have equal digests, and whatever differs is named by its key."""

from __future__ import annotations

import pytest

from foreshard.calibration.launch.terms import differences, digest_of, terms_of
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.step.prediction import Prediction


def terms(*changes):
    return terms_of(Prediction(read_scenario("host-4ranks", changes)), {"steps": 20})


def test_the_same_scenario_read_twice_has_the_same_digest():
    assert digest_of(terms()) == digest_of(terms())


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("execution.seed=5", "execution.seed"),
        ("execution.optimizer=sgd", "execution.optimizer"),
        ("workload.batch_size=256", "workload.batch_size"),
        ("workload.tables.t3.num_embeddings=99", "workload.tables.t3.num_embeddings"),
        ("workload.tables.t3.access.zipf=1.1", "workload.tables.t3.access.zipf"),
        ("plan.tables.t1=row_wise", "plan.tables.t1.sharding"),
        ("layout.sharding_group_size=2", "layout.sharding_group_size"),
        ("comms.forward=fp16", "comms.forward"),
    ],
)
def test_a_change_is_found_under_its_key(change, key):
    mine, theirs = terms(change), terms()
    assert digest_of(mine) != digest_of(theirs)
    assert any(line.startswith(f"{key} is ") for line in differences(mine, theirs, ("rank 1", "rank 0")))


def test_owners_count_as_they_were_resolved():
    """A table placed elsewhere is told even where the plan's words are the same."""
    placed = terms("plan.tables.t0={ sharding = 'table_wise', ranks = [3] }")
    assert any("owners.t0 is [[3]" in line for line in differences(placed, terms(), ("rank 1", "rank 0")))


@pytest.mark.parametrize("change", ["name=other", "description=other"])
def test_names_do_not_count(change):
    assert digest_of(terms(change)) == digest_of(terms())


def test_many_differences_are_counted_and_long_values_cut():
    mine, theirs = {f"k{i}": "x" * 500 for i in range(20)}, {f"k{i}": "y" * 500 for i in range(20)}
    told = differences(mine, theirs, ("rank 1", "rank 0"))
    assert len(told) == 9
    assert told[-1] == "and 12 more keys"
    assert all(len(line) < 300 for line in told)
    assert all("sha256" in line for line in told[:-1])
