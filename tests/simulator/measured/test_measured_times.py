"""Collectives whose times were measured: alone, at once, uneven, and beside those that were not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.measured_times import CurveKey, MeasuredCollectives
from foreshard.simulator.comms.single import alone_s, uniform_collective
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective, CollectiveKind
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.measured.profile import CollectiveCurve, Profile
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.presets import load_preset

Curves = Callable[..., CollectiveCurve]
Profiles = Callable[..., Profile]
MIB = float(1 << 20)


@pytest.fixture(scope="module")
def two_hosts() -> Cluster:
    """8 ranks, 4 a node."""
    return load_preset("cpu-host", 2)


def all_to_all(groups: list[list[int]], *matrices: np.ndarray) -> Collective:
    return Collective(
        kind="all_to_all", groups=Groups(groups), traffic=tuple(PairBytes.dense(matrix) for matrix in matrices)
    )


def test_a_measured_collective_takes_the_time_of_its_curve(
    two_hosts: Cluster, curve: Curves, profile_of: Profiles
) -> None:
    """At a measured size and at twice the last one, whatever the model would say."""
    measured = MeasuredCollectives(profile_of(curve("all_reduce", (4, 4), {1e3: 1e-3, 1e6: 50e-3, 1e7: 0.4})))
    times = [
        alone_s(two_hosts, measured.lower(two_hosts, uniform_collective("all_reduce", range(8), nbytes))[0])
        for nbytes in (1e3, 1e6, 1e7)
    ]
    assert times == pytest.approx([1e-3, 50e-3, 0.4])


def test_its_bytes_stay_on_the_links_so_that_others_share_them(
    two_hosts: Cluster, curve: Curves, profile_of: Profiles
) -> None:
    """The bytes are the model's; a time shorter than the stated link takes up less of it, a longer one no more."""
    collective = uniform_collective("all_reduce", range(8), 1e7)
    (modelled,) = lower(two_hosts, collective)
    for seconds, busy in ((0.01, 0.01 - 1e-6), (10.0, modelled.phases[0].transfer_s(two_hosts.link_usable))):
        curves = curve("all_reduce", (4, 4), {1.0: 1e-6, 1e7: seconds})
        (phase,) = MeasuredCollectives(profile_of(curves)).lower(two_hosts, collective)[0].phases
        order = np.argsort(modelled.phases[0].links)
        assert phase.nbytes.tolist() == pytest.approx(modelled.phases[0].nbytes[order].tolist())
        taken = float((phase.nbytes * phase.stretch / two_hosts.link_usable[phase.links]).max())
        assert taken == pytest.approx(busy)


def test_a_shape_that_was_not_measured_is_modelled(two_hosts: Cluster, curve: Curves, profile_of: Profiles) -> None:
    """2 + 2 ranks are not 4 + 4, and an all_gather is no all_reduce."""
    measured = MeasuredCollectives(profile_of(curve("all_reduce", (4, 4), {1e6: 1.0})))
    for collective in (
        uniform_collective("all_reduce", [0, 1, 4, 5], 1e6),
        uniform_collective("all_gather", range(8), 1e6),
    ):
        assert measured.times(two_hosts, collective) == (None,)
        (here,), (modelled,) = measured.lower(two_hosts, collective), lower(two_hosts, collective)
        assert here.algorithm == modelled.algorithm
        assert alone_s(two_hosts, here) == alone_s(two_hosts, modelled)


def test_ranks_of_a_shape_are_counted_by_node_the_largest_first(two_hosts: Cluster, profile_of: Profiles) -> None:
    """Rank 0 in node 0, ranks 4 to 6 in node 1: 3 + 1; ranks alone have nothing to do."""
    collective = all_to_all([[0, 4, 5, 6], [1], [2], [3], [7]], np.ones((4, 4)), *[np.ones((1, 1))] * 4)
    keys = MeasuredCollectives(profile_of()).keys(two_hosts, collective)
    assert keys == [CurveKey("all_to_all", (3, 1)), None, None, None, None]


def test_as_many_groups_at_once_take_the_curve_of_as_many(
    two_hosts: Cluster, curve: Curves, profile_of: Profiles
) -> None:
    """Four pairs across nodes took 3 s together where one alone took 1 s; what they put on a link fits into the 3 s."""
    pairs = Groups([[rank, rank + 4] for rank in range(4)])
    collective = Collective(kind="all_reduce", groups=pairs, nbytes=(1e8,))
    alone, together = (
        curve("all_reduce", (1, 1), {1e3: 1e-3, 1e8: seconds}, groups=groups, groups_per_node=groups)
        for seconds, groups in ((1.0, 1), (3.0, 4))
    )
    measured = MeasuredCollectives(profile_of(alone, together))
    assert {timed.key for timed in measured.times(two_hosts, collective) if timed} == {
        CurveKey("all_reduce", (1, 1), 4, 4)
    }
    lowered = measured.lower(two_hosts, collective)
    busy = np.zeros(len(two_hosts.link_usable))
    for one in lowered:
        assert alone_s(two_hosts, one) == pytest.approx(3.0)
        np.add.at(busy, one.phases[0].links, one.phases[0].nbytes * one.phases[0].stretch)
    assert float((busy / two_hosts.link_usable).max()) <= 3.0 * (1 + 1e-9)


def test_groups_that_were_measured_alone_share_their_links(
    two_hosts: Cluster, curve: Curves, profile_of: Profiles
) -> None:
    """Without a curve for four at once each takes its own time and keeps its own bytes on the shared NIC."""
    pairs = Groups([[rank, rank + 4] for rank in range(4)])
    measured = MeasuredCollectives(profile_of(curve("all_reduce", (1, 1), {1e3: 1e-3, 1e8: 1.0})))
    lowered = measured.lower(two_hosts, Collective(kind="all_reduce", groups=pairs, nbytes=(1e8,)))
    assert [alone_s(two_hosts, one) for one in lowered] == pytest.approx([1.0] * 4)
    busy = np.zeros(len(two_hosts.link_usable))
    for one in lowered:
        np.add.at(busy, one.phases[0].links, one.phases[0].nbytes * one.phases[0].stretch)
    assert float((busy / two_hosts.link_usable).max()) > 3.0


def test_an_uneven_all_to_all_is_read_at_the_size_that_keeps_the_busiest_link_as_long(
    two_hosts: Cluster, curve: Curves, profile_of: Profiles
) -> None:
    """Two ranks in two nodes: a uniform one of size S sends S / 2 over the NIC; here it is 3 MiB, so S is 6 MiB."""
    measured = MeasuredCollectives(profile_of(curve("all_to_all", (1, 1), {MIB: 1.0, 6 * MIB: 5.0, 9 * MIB: 9.0})))
    (timed,) = measured.times(two_hosts, all_to_all([[0, 4]], np.array([[7.0, 3.0], [1.0, 9.0]]) * MIB))
    assert timed is not None
    assert (timed.nbytes, timed.seconds) == pytest.approx((6 * MIB, 5.0))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # a function, equal for all examples
@given(nbytes=st.floats(1e3, 1e9), ranks=st.sets(st.integers(0, 7), min_size=2))
def test_a_uniform_all_to_all_is_read_at_its_own_size(
    two_hosts: Cluster, curve: Curves, profile_of: Profiles, nbytes: float, ranks: set[int]
) -> None:
    """The size of nccl-tests, the rank's own part included, whatever the group."""
    collective = uniform_collective("all_to_all", sorted(ranks), nbytes)
    (key,) = MeasuredCollectives(profile_of()).keys(two_hosts, collective)
    assert key is not None
    measured = MeasuredCollectives(profile_of(curve("all_to_all", key.ranks_per_node, {1e3: 1e-3, 1e6: 1.0})))
    (timed,) = measured.times(two_hosts, collective)
    assert timed is not None
    assert timed.nbytes == pytest.approx(nbytes)


def test_an_all_to_all_without_bytes_still_takes_its_latency(
    two_hosts: Cluster, curve: Curves, profile_of: Profiles
) -> None:
    """gloo posts to every peer, whatever there is to send."""
    measured = MeasuredCollectives(profile_of(curve("all_to_all", (1, 1), {1e3: 2e-3, 1e6: 1.0})))
    (lowered,) = measured.lower(two_hosts, all_to_all([[0, 4]], np.zeros((2, 2))))
    assert alone_s(two_hosts, lowered) == pytest.approx(2e-3)


def test_a_measured_time_below_the_bound_of_the_stated_links_is_right(
    two_hosts: Cluster, curve: Curves, profile_of: Profiles
) -> None:
    """A burst passes a shaped link faster than its rate: no time of a collective is a mistake because of it."""
    measured = MeasuredCollectives(profile_of(curve("all_reduce", (4, 4), {1e3: 1e-6, 1e6: 2e-6})))
    (lowered,) = measured.lower(two_hosts, uniform_collective("all_reduce", range(8), 1e6))
    assert lowered.bound_s <= alone_s(two_hosts, lowered)


@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all", "all_gather"])
def test_what_lies_below_a_curve_of_transfers_follows_the_model(
    two_hosts: Cluster, curve: Curves, profile_of: Profiles, kind: CollectiveKind
) -> None:
    """Measured from 32 MiB on at three times the model: a kilobyte takes three times its modelled time, and not longer
    than 32 MiB; from 32 MiB on it takes what was measured."""

    def modelled_s(nbytes: float) -> float:
        return alone_s(two_hosts, lower(two_hosts, uniform_collective(kind, range(8), nbytes))[0])

    times = {size: 3 * modelled_s(size) for size in (32 * MIB, 64 * MIB)}
    measured = MeasuredCollectives(profile_of(curve(kind, (4, 4), times)))
    for nbytes in (1e3, 1e6, 32 * MIB, 64 * MIB):
        (one,) = measured.lower(two_hosts, uniform_collective(kind, range(8), nbytes))
        assert alone_s(two_hosts, one) == pytest.approx(3 * modelled_s(nbytes), rel=1e-6)
        if nbytes >= 32 * MIB:  # its bytes are on the links, not hidden in a wait
            assert one.phases[0].latency_s < 0.1 * times[32 * MIB]
