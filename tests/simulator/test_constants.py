"""Constants that a scenario replaces reach the prediction, and nothing else does."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.comms.machine_constants import default_constants as collective_defaults
from foreshard.simulator.comms.machine_constants import machine_constant
from foreshard.simulator.files.document import to_toml
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.step.constants import constants_document, read_constants
from foreshard.simulator.step.costs import default_constants as cost_defaults
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.constants import MACHINE_CONSTANTS
from foreshard.topologies.errors import InputError
from foreshard.topologies.machine import Sourced
from foreshard.topologies.presets import load_preset

SHIPPED = "mlperf-dcnv2-p5"
SMALL = ("cluster.nodes=2", "workload.batch_size=64", "layout.sharding_group_size=8")


def step_time_s(*overrides: str) -> float:
    return Prediction(read_scenario(SHIPPED, [*SMALL, *overrides])).step_time_s


def test_a_faster_host_shortens_a_step_that_the_host_bounds() -> None:
    """Half the host time per kernel and per collective halves such a step."""
    whole = step_time_s("layout.sync=weights", "layout.sync_interval=1000000")
    halved = step_time_s(
        'constants.host_per_kernel="10 us"',
        'constants.host_per_collective="57 us"',
        "layout.sync=weights",
        "layout.sync_interval=1000000",
    )
    assert halved == pytest.approx(whole / 2, rel=0.01)


def test_a_constant_of_the_network_reaches_the_collectives() -> None:
    """A slower posting of messages to peers makes the look-up exchanges slower."""
    over = ("layout.sharding_group_size=world", "workload.batch_size=1024")
    slow = step_time_s(*over, 'constants.all_to_all_peer_s="500 us"')
    assert slow > 1.5 * step_time_s(*over)


@pytest.mark.parametrize("name", sorted({**cost_defaults(), **collective_defaults()}))
def test_every_constant_in_the_report_can_be_replaced(name: str) -> None:
    """Whatever stands in the data files can be given in a scenario, and the report then names that source."""
    unit = {**collective_defaults(), **cost_defaults()}[name].unit
    value = {"s": "'3 us'", "bytes": "'1 GiB'"}.get(unit, "1")
    scenario = read_scenario(SHIPPED, [*SMALL, f"constants.{name}.value={value}", f"constants.{name}.source=mine"])
    prediction = Prediction(scenario)
    used = {**prediction.cluster.constants, **prediction.costs.constants}[name]
    assert used.source == "mine"
    assert read_scenario(tomllib.loads(to_toml(scenario))).constants == scenario.constants


@given(value=st.floats(0, 1e3, allow_nan=False))
def test_values_survive_a_scenario_file_to_the_bit(value: float) -> None:
    """Writing and reading a constant gives the same float."""
    problems: list[str] = []
    [constant] = read_constants({"host_per_kernel": f"{value!r} s"}, problems)
    assert not problems
    assert constant.value == value
    assert read_constants(constants_document([constant]), problems) == (constant,)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("constants.host_per_kernle='9 us'", "did you mean 'host_per_kernel'"),
        ("constants.host_per_kernel=9", "has no unit"),
        ("constants.host_per_kernel='9 GB'", "unknown unit"),
        ("constants.lookup_efficiency='0.5'", "expected a number"),
        ("constants.lookup_efficiency=-1", "not negative"),
        ("constants.lookup_efficiency=nan", "expected a number"),
        ("constants.lookup_efficiency.vlaue=1", "unknown key"),
        ("constants=7", "expected a table"),
    ],
)
def test_constants_that_cannot_be_used_are_refused_in_a_sentence(override: str, told: str) -> None:
    """A name that does not exist, a missing unit, a wrong kind of value: each says what is expected."""
    with pytest.raises(InputError, match=told):
        read_scenario(SHIPPED, [override])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("all_to_all_network_share", "0"),
        ("ring_network_share", "0"),
        ("ring_network_share", "5"),
        ("all_to_all_nvlink_share", "0"),
        ("ring_overlap", "0"),
        ("ring_overlap", "0.0001"),
        ("all_to_all_peer_s", "'75 s'"),
        ("lookup_efficiency", "0"),
        ("gemm_efficiency", "1.5"),
    ],
)
def test_constants_outside_their_range_are_refused_before_anything_divides_by_them(name: str, value: str) -> None:
    """A share of nothing or of more than all, an overlap below one: one sentence, no arithmetic error."""
    with pytest.raises(InputError, match=rf"constants\.{name}\.value: .* is out of range") as caught:
        read_scenario(SHIPPED, [*SMALL, f"constants.{name}={value}"])
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("name", sorted(MACHINE_CONSTANTS))
def test_a_machine_with_a_constant_outside_its_range_is_refused(name: str) -> None:
    """One made in Python, past all files, does not divide by it either."""
    limits = MACHINE_CONSTANTS[name]
    for value in (limits.low - 1e-9, limits.high * 1.001, float("nan"), *([] if limits.closed else [limits.low])):
        odd = Sourced(value=value, unit=limits.unit, source="made up")
        with pytest.raises(InputError, match=f"constant {name} of 'pcie-4x': .* is out of range"):
            machine_constant(load_preset("pcie-4x").with_constants({name: odd}), name)


def test_machines_and_collectives_know_the_same_constants() -> None:
    """What a cluster file may state is what a collective asks for, and every default lies in its range."""
    assert set(MACHINE_CONSTANTS) == set(collective_defaults())
    for name, constant in collective_defaults().items():
        assert MACHINE_CONSTANTS[name].problem(constant.value) is None
