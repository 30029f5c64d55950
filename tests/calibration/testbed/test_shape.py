"""What a testbed may look like, without building one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.calibration.testbed.ranks import rank_environment
from foreshard.calibration.testbed.shape import BedShape, bed_link, parse_shape
from foreshard.topologies import cli
from foreshard.topologies.errors import InputError

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=200).map(tuple)


@given(SIZES)
def test_a_shape_survives_its_own_spelling(sizes):
    """Even shapes as 2x2, uneven ones as 2+1: read again they are the same."""
    shape = BedShape(ranks_per_node=sizes)
    assert parse_shape(str(shape)) == shape
    assert shape.world_size == sum(sizes)


@pytest.mark.parametrize(
    "text", ["", "2", "2x", "x2", "0x2", "2x0", "2+0", "2 2", "-1x2", "999999x1", "1x999999", "2x2x2"]
)
def test_what_is_no_shape_is_refused(text):
    """Neither nodes without ranks nor more than one machine can play."""
    with pytest.raises(InputError):
        parse_shape(text)


@given(SIZES)
def test_ranks_are_told_what_torchrun_tells_them(sizes):
    """Ranks count node after node; local ranks start from 0 in each; everyone meets at the first node."""
    shape = BedShape(ranks_per_node=sizes)
    given_ranks = rank_environment(shape)
    assert [int(rank["RANK"]) for rank in given_ranks] == list(range(shape.world_size))
    nodes = [int(rank["GROUP_RANK"]) for rank in given_ranks]
    assert tuple(nodes.count(node) for node in range(shape.nodes)) == sizes
    for node, size in enumerate(sizes):
        own = [rank for rank in given_ranks if int(rank["GROUP_RANK"]) == node]
        assert [int(rank["LOCAL_RANK"]) for rank in own] == list(range(size))
        assert {rank["LOCAL_WORLD_SIZE"] for rank in own} == {str(size)}
    assert len({(rank["MASTER_ADDR"], rank["MASTER_PORT"], rank["WORLD_SIZE"]) for rank in given_ranks}) == 1


def test_a_rate_needs_a_unit_and_every_mistake_is_told_at_once():
    """A bare rate and a burst smaller than two packets are two mistakes."""
    with pytest.raises(InputError) as caught:
        bed_link("500", "1 kB")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("rate", ["0 Mbit/s", "10 Gb/s", "2 Tbit/s", "fast"])
def test_rates_that_cannot_be_shaped_are_refused(rate):
    """Zero, ambiguous units, and more than the kernel could carry."""
    with pytest.raises(InputError):
        bed_link(rate)


@given(st.floats(125e3, 125e9))
def test_a_burst_is_at_least_what_passes_while_the_shaper_wakes_late(rate):
    """Half a millisecond of the rate, and never less than 128 KiB."""
    link = bed_link(rate)
    assert link.burst_bytes >= max(rate * 0.5e-3, 128 * 1024) * (1 - 1e-9)
    assert link.payload_bytes_per_s < link.rate_bytes_per_s


def test_a_shape_and_a_rate_that_cannot_be_are_both_told(capsys):
    """Before anything is built, and with the path that cannot be written."""
    assert cli.run(["testbed", "--shape", "2y2", "--rate", "fast", "--burst", "1 B", "-o", "/none/bed.toml"]) == 2
    told = capsys.readouterr().err
    assert "4 mistakes" in told
    for part in ("'2y2'", "'fast'", "--burst 1 B", "/none"):
        assert part in told
