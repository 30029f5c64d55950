"""What the model says of measured links: bytes on interfaces and gloo's constants, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foreshard.calibration.measure.link_model import bare_cluster, gloo_constants, modelled_wire, predicted_uneven_s
from foreshard.calibration.measure.link_profile import link_profile
from foreshard.calibration.measure.link_records import LinkRecord, Settings
from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.single import alone_s, uniform_collective
from foreshard.topologies.machine import Sourced

MIB = 1 << 20
SETTINGS = Settings(
    backend="gloo", device="cpu", device_name="a core", hardware="2 cores", versions={}, node_of=(0, 0, 1, 1)
)


def record(kind, *key, nbytes=MIB, times=(1.0,), **more):
    ranks_per_node, groups, groups_per_node = key
    return LinkRecord(
        kind=kind, ranks_per_node=ranks_per_node, groups=groups, groups_per_node=groups_per_node, nbytes=nbytes,
        times_s=times, **more,
    )  # fmt: skip


WORLD, INSIDE, ACROSS = ((2, 2), 1, 1), ((2,), 2, 1), ((1, 1), 2, 2)


@pytest.mark.parametrize(
    ("kind", "key", "sent", "looped"),
    [
        ("all_reduce", WORLD, [1.5, 1.5], [1.5, 1.5]),  # a ring crosses once in each direction, 2 (n-1)/n of the size
        ("reduce_scatter", WORLD, [1.5, 1.5], [1.5, 1.5]),  # is an all_reduce
        ("all_gather", WORLD, [0.75, 0.75], [0.75, 0.75]),
        ("all_to_all", WORLD, [1.0, 1.0], [0.5, 0.5]),  # two ranks send a quarter to each of two others
        ("broadcast", WORLD, [2.0, 0.0], [1.0, 0.0]),  # 0 to 1, then 0 to 2 and 1 to 3
        ("all_reduce", INSIDE, [0.0, 0.0], [2.0, 2.0]),
        ("all_to_all", ACROSS, [1.0, 1.0], [0.0, 0.0]),  # two groups, each half of its size
        ("all_gather", ACROSS, [1.0, 1.0], [0.0, 0.0]),
        ("all_reduce", ACROSS, [2.0, 2.0], [0.0, 0.0]),
    ],
)
def test_bytes_on_interfaces_by_hand(kind, key, sent, looped):
    """Two nodes of two ranks, over the size; what one node sends the other receives."""
    wire = modelled_wire(SETTINGS, record(kind, *key))
    assert [nbytes / MIB for nbytes in wire.sent] == pytest.approx(sent)
    assert [nbytes / MIB for nbytes in wire.received] == pytest.approx(sent[::-1])
    assert [nbytes / MIB for nbytes in wire.looped] == pytest.approx(looped)


def test_nodes_may_have_different_numbers_of_ranks():
    """A ring over 2+1 ranks crosses twice, whichever node has two."""
    settings = replace(SETTINGS, node_of=(0, 0, 1))
    wire = modelled_wire(settings, record("all_gather", (2, 1), 1, 1, nbytes=3 * MIB))
    assert wire.sent == pytest.approx([2 * MIB, 2 * MIB])
    assert wire.looped == pytest.approx([2 * MIB, 0])


def test_constants_are_found_again_in_times_that_the_model_made():
    """Latencies of small collectives of 40 us and 7 us a message, over all shapes."""
    made = {"gloo_base_s": 40e-6, "gloo_step_s": 7e-6}
    own = {name: Sourced(value=value, unit="s", source="test") for name, value in made.items()}
    cluster = bare_cluster((2, 2)).with_constants(own)

    def takes(kind, ranks):
        return alone_s(cluster, lower(cluster, uniform_collective(kind, ranks, 1024.0))[0])

    groups = {WORLD: range(4), INSIDE: range(2), ACROSS: (0, 2)}
    records = [
        record(kind, *key, nbytes=1024, times=(takes(kind, ranks),))
        for key, ranks in groups.items()
        for kind in ("all_reduce", "all_gather", "all_to_all", "broadcast")
    ]
    found = gloo_constants(SETTINGS, records, "test")
    assert {it.name: it.value for it in found} == pytest.approx(made, rel=1e-2)


def test_nccl_has_no_constants_of_gloo_and_large_collectives_say_nothing_of_latency():
    """Nothing is fitted then."""
    assert gloo_constants(replace(SETTINGS, backend="nccl"), [record("all_reduce", *WORLD, nbytes=1024)], "test") == ()
    assert gloo_constants(SETTINGS, [record("all_reduce", *WORLD, nbytes=MIB)], "test") == ()


def test_an_uneven_all_to_all_is_predicted_from_the_even_one_that_keeps_the_busiest_link_as_long():
    """Towards one rank of four: 5/8 of each buffer, so its node takes in 1.5 times what an even one sends there."""
    even = [record("all_to_all", *WORLD, nbytes=n * MIB, times=(n * 10.0,)) for n in (1, 2, 4)]
    pairs = [
        LinkRecord(kind="send_recv", ranks_per_node=shape, nbytes=n, times_s=(n / rate,), ranks=ranks)
        for shape, rate, ranks in (((2,), 1e12, (0, 1)), ((1, 1), 1e6, (0, 2)))
        for n in (MIB, 2 * MIB)
    ]
    profile = link_profile(SETTINGS, [*even, *pairs], name="test", command="test")
    uneven = record("all_to_all", *WORLD, pattern="towards one rank")
    assert predicted_uneven_s(SETTINGS, uneven, profile, 0) == pytest.approx(15.0, rel=1e-3)
