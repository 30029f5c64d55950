"""Laws of collectives on machines that nobody ships: any shape of node and fabric, kinds mixed, links damaged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.single import alone_s, run_collectives, uniform_collective
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.traffic import PairBytes
from foreshard.topologies.cluster import Cluster

from ..topologies.random_machines import clusters, specs

ROUNDING = 1 + 1e-9
INSTANT = 6e-12  # what ends within a picosecond of each other ends at the same instant

kinds = st.sampled_from(["all_to_all", "all_reduce", "reduce_scatter", "all_gather", "broadcast"])
sizes = st.floats(0, 36).map(lambda power: 2.0**power)


def groups_of(cluster):
    """Some ranks of a cluster, in any order."""
    return st.lists(st.integers(0, cluster.size - 1), min_size=1, unique=True)


def lowered(cluster, kind, nbytes, ranks=None):
    (one,) = lower(cluster, uniform_collective(kind, range(cluster.size) if ranks is None else ranks, nbytes))
    return one


def time_of(cluster, kind, nbytes, ranks=None):
    return alone_s(cluster, lowered(cluster, kind, nbytes, ranks))


@given(clusters(), kinds, sizes, st.data())
def test_any_group_takes_its_closed_form_and_no_less_than_its_bound(cluster, kind, nbytes, data):
    ranks = data.draw(groups_of(cluster))
    one = lowered(cluster, kind, nbytes, ranks)
    (((simulated,),), _) = run_collectives(cluster, [(0.0, uniform_collective(kind, ranks, nbytes))])
    assert simulated == pytest.approx(alone_s(cluster, one), rel=1e-9, abs=1e-12)
    assert simulated * ROUNDING >= one.bound_s
    assert (one.bound_s > 0) == (len(ranks) > 1)


@given(clusters(), kinds, sizes, st.floats(1, 4), st.data())
def test_more_bytes_are_never_faster(cluster, kind, nbytes, factor, data):
    ranks = data.draw(groups_of(cluster))
    assert time_of(cluster, kind, nbytes, ranks) <= time_of(cluster, kind, nbytes * factor, ranks) * ROUNDING


@given(specs(), kinds, sizes, st.data())
def test_a_slower_link_is_never_faster(spec, kind, nbytes, data):
    whole = Cluster(spec)
    assume(whole.size > 1)
    link = whole.link_name(data.draw(st.integers(0, len(whole.link_usable) - 1)))
    harmed = Cluster(replace(spec, degrade={link: data.draw(st.sampled_from([0.1, 0.5, 0.9]))}))
    one, other = lowered(whole, kind, nbytes), lowered(harmed, kind, nbytes)
    assert alone_s(whole, one) <= alone_s(harmed, other) * ROUNDING
    assert one.bound_s <= other.bound_s * ROUNDING


@given(clusters(), st.integers(0, 2**32 - 1))
def test_renaming_ranks_renames_an_all_to_all(cluster, seed):
    rng = np.random.default_rng(seed)
    matrix, order = rng.random((cluster.size, cluster.size)) * 1e6, rng.permutation(cluster.size)

    def run(ranks, nbytes):
        (one,) = lower(
            cluster, Collective(kind="all_to_all", groups=Groups([ranks]), traffic=(PairBytes.dense(nbytes),))
        )
        return alone_s(cluster, one), one.bound_s

    assert run(np.arange(cluster.size), matrix) == pytest.approx(run(order, matrix[np.ix_(order, order)]))


@given(clusters(), st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]), st.data())
def test_the_bound_does_not_depend_on_the_order_of_the_ranks(cluster, kind, data):
    ranks = data.draw(groups_of(cluster))
    bounds = [lowered(cluster, kind, 1e9, order).bound_s for order in (ranks, data.draw(st.permutations(ranks)))]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)


@given(clusters(), st.tuples(kinds, kinds), st.tuples(sizes, sizes), st.data())
def test_two_at_once_share_what_they_both_use(cluster, kind, nbytes, data):
    """No longer than one after the other, no shorter than alone or than bytes over bandwidth; where they use no link
    together, each as if it were alone."""
    both = [uniform_collective(k, data.draw(groups_of(cluster)), n) for k, n in zip(kind, nbytes, strict=True)]
    ((first,), (second,)), link_bytes = run_collectives(cluster, [(0.0, each) for each in both])
    alone = [run_collectives(cluster, [(0.0, each)])[0][0][0] for each in both]
    assert max(first, second) <= sum(alone) * ROUNDING + INSTANT
    assert first * ROUNDING + INSTANT >= alone[0]
    assert second * ROUNDING + INSTANT >= alone[1]
    there = cluster.link_usable > 0
    assert max(first, second) * ROUNDING + INSTANT >= (link_bytes[there] / cluster.link_usable[there]).max(initial=0)
    used = [{link for phase in lower(cluster, each)[0].phases for link in phase.links.tolist()} for each in both]
    if not used[0] & used[1]:
        assert (first, second) == pytest.approx(alone, rel=1e-9, abs=INSTANT)
