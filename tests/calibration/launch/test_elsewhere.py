"""A prediction stands beside a run only if both are of one machine."""

from __future__ import annotations

import pytest

from foreshard.calibration.launch.elsewhere import not_on_its_machine
from foreshard.topologies.presets import load_preset


def test_on_its_own_machine_there_is_nothing_to_say():
    assert not list(not_on_its_machine(load_preset("cpu-host", 2), [0] * 4 + [1] * 4, "gloo"))


def test_nodes_may_have_other_numbers():
    assert not list(not_on_its_machine(load_preset("cpu-host", 2), [7] * 4 + [3] * 4, "gloo"))


@pytest.mark.parametrize(
    ("nodes", "sizes"), [([0] * 8, "8"), ([0, 1] * 4, "4 + 4"), ([0] * 3 + [1] * 5, "3 + 5"), (range(8), "1 + 1 + 1")]
)
def test_ranks_that_share_nodes_otherwise_are_told(nodes, sizes):
    """Also where nodes are as large, but hold other ranks."""
    (told,) = not_on_its_machine(load_preset("cpu-host", 2), list(nodes), "gloo")
    assert told.startswith(f"the ranks are on nodes of {sizes}")
    assert "on the scenario's machine on nodes of 4 + 4: nothing is compared" in told


def test_cpu_ranks_are_not_compared_with_gpus():
    (told,) = not_on_its_machine(load_preset("p5.48xlarge", 1), [0] * 8, "gloo")
    assert told == (
        "the ranks talk with gloo, on the scenario's machine, 1 x p5.48xlarge, with nccl: nothing is compared"
    )
