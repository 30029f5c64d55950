"""Where a process stands: read from torchrun's variables, every mistake at once."""

from __future__ import annotations

import pytest

from foreshard.calibration.launch.place import Place
from foreshard.topologies.errors import InputError

GIVEN = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_torchruns_variables_say_all():
    more = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2"}
    place = Place.from_environment({**GIVEN, **more, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert (place.rank, place.local_rank, place.node, place.attempt) == (5, 1, 1, 2)
    assert place.agent_holds_store


def test_four_variables_are_enough_on_one_node():
    place = Place.from_environment(GIVEN)
    assert (place.local_rank, place.local_world_size, place.node) == (5, 8, 0)
    assert not place.agent_holds_store


def test_missing_variables_are_named_with_what_to_do():
    with pytest.raises(InputError, match=r"WORLD_SIZE, MASTER_PORT not set: start the ranks with `foreshard run"):
        Place.from_environment({"RANK": "0", "MASTER_ADDR": "node0"})


def test_every_wrong_variable_is_told_at_once():
    with pytest.raises(InputError) as caught:
        Place.from_environment({**GIVEN, "RANK": "five", "MASTER_PORT": "x"})
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    "wrong", [{"RANK": "8"}, {"RANK": "-1"}, {"MASTER_PORT": "70000"}, {"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"}]
)
def test_numbers_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError):
        Place.from_environment({**GIVEN, **wrong})
