"""Collectives as loads on links: bytes, algorithms and bounds."""

from __future__ import annotations

import numpy as np
import pytest

from foreshard.simulator.collectives import check_bound, lower
from foreshard.simulator.layout import Groups
from foreshard.simulator.program import Collective
from foreshard.simulator.traffic import PairBytes
from foreshard.topologies.errors import BoundViolationError
from foreshard.topologies.presets import load_preset

KINDS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast"]


def world(cluster, kind, nbytes):
    traffic = (PairBytes.uniform(cluster.size, nbytes),) if kind == "all_to_all" else ()
    return Collective(kind=kind, groups=Groups.world(cluster.size), traffic=traffic, nbytes=(nbytes,))


def ideal_time(cluster, lowered):
    """Seconds when nothing else runs."""
    return sum(
        phase.latency_s + max(phase.floor_s, (phase.nbytes / cluster.link_usable[phase.links]).max(initial=0.0))
        for phase in lowered.phases
    )


@pytest.mark.parametrize("kind", ["all_to_all", *KINDS])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("nbytes", [8.0, 2.0**20, 2.0**30])
def test_no_collective_is_faster_than_its_bound(kind, nodes, nbytes):
    cluster = load_preset("p5.48xlarge", nodes=nodes)
    (lowered,) = lower(cluster, world(cluster, kind, nbytes))
    assert lowered.bound_s >= 0
    check_bound(kind, ideal_time(cluster, lowered), lowered)


def test_a_time_below_its_bound_is_a_bug():
    cluster = load_preset("dgx-h100", nodes=2)
    (lowered,) = lower(cluster, world(cluster, "all_to_all", 1e9))
    with pytest.raises(BoundViolationError, match="report it"):
        check_bound("a2a", lowered.bound_s * 0.99, lowered)


def test_all_to_all_sends_through_a_nic_what_goes_to_other_nodes():
    cluster = load_preset("p5.48xlarge", nodes=4)
    (lowered,) = lower(cluster, world(cluster, "all_to_all", 32e6))
    (phase,) = lowered.phases
    network = cluster.link_kind[phase.links] == "network"
    np.testing.assert_allclose(phase.nbytes[network], 24e6)


def test_what_stays_on_the_rank_loads_no_link():
    cluster = load_preset("p5.48xlarge", nodes=1)
    traffic = PairBytes.dense(np.diag(np.full(8, 1e9)))
    (lowered,) = lower(cluster, Collective(kind="all_to_all", groups=Groups.world(8), traffic=(traffic,)))
    assert sum(phase.nbytes.sum() for phase in lowered.phases) == 0
