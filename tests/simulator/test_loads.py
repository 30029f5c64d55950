"""Bytes that flows put on links, followed path by path or summed by matrices."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.comms.loads import Flows, Loads, longest_latency_s
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.presets import load_preset


@cache
def spread_over_paths(nodes):
    """Two NICs a GPU and three spines: a flow between leaves takes six paths."""
    text = (
        f'schema = 1\nname = "t"\npreset = "dgx-h100"\nnodes = {nodes}\n[node]\ngpus = 4\nnics = 8\n'
        '[fabric]\nkind = "leaf_spine"\nnodes_per_leaf = 1\nspines = 3\nlatency = "1 us"\nsource = "for tests"\n'
    )
    return Cluster(parse_cluster(text, where="t"))


@given(st.integers(2, 4), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_a_flow_over_several_paths_is_followed_as_it_is_summed(nodes, flows, seed):
    cluster = spread_over_paths(nodes)
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, cluster.size, (2, flows))
    nbytes = rng.random(flows) + 0.1
    along = Loads._along_paths(cluster, Flows(src, dst, nbytes))
    links, expected = cluster.loads(src, dst, nbytes)
    np.testing.assert_array_equal(along.links, links)
    np.testing.assert_allclose(along.nbytes, expected)


def test_few_flows_on_a_large_cluster_load_what_many_would_and_are_as_late():
    # Two flows among 13,000 links are followed path by path, a thousand are summed by matrices.
    cluster = spread_over_paths(200)
    few = Flows(np.array([0, 5]), np.array([9, 790]), np.array([6.0, 12.0]))
    many = Flows(np.tile(few.src, 500), np.tile(few.dst, 500), np.tile(few.nbytes, 500) / 500)
    followed, summed = Loads.of(cluster, few), Loads.of(cluster, many)
    np.testing.assert_array_equal(followed.links, summed.links)
    np.testing.assert_allclose(followed.nbytes, summed.nbytes)
    late = longest_latency_s(cluster, few)
    assert late > 2e-6  # up to a spine and down again
    assert late == pytest.approx(longest_latency_s(cluster, many))


def test_loads_add_up_link_by_link_and_scale():
    cluster = load_preset("p5.48xlarge", 2)
    one = Loads(cluster, np.array([1, 4]), np.array([2.0, 3.0]))
    other = Loads(cluster, np.array([0, 4]), np.array([5.0, 7.0]))
    both = one.plus(other.times(2.0))
    assert both.links.tolist() == [0, 1, 4]
    assert both.nbytes.tolist() == [10.0, 2.0, 17.0]


def test_the_busiest_link_is_the_one_that_takes_longest_at_nominal_bandwidth():
    # 45 bytes on an NVLink of 450 GB/s take as long as 5 on a NIC of 50, at nominal; a NIC carries 48.5 of it.
    cluster = load_preset("p5.48xlarge", 2)
    nvlink, nic = (int(np.flatnonzero(cluster.link_kind == kind)[0]) for kind in ("nvlink", "network"))
    loads = Loads(cluster, np.sort([nvlink, nic]), np.zeros(2))
    at = {link: index for index, link in enumerate(loads.links.tolist())}
    for nic_bytes, expected in ((5.1, nic), (4.9, nvlink)):
        nbytes = np.zeros(2)
        nbytes[at[nvlink]], nbytes[at[nic]] = 45.0, nic_bytes
        found = Loads(cluster, loads.links, nbytes)
        assert found.busiest == expected
        assert found.nominal_s == pytest.approx(max(45 / 450e9, nic_bytes / 50e9))
        assert found.transfer_s == pytest.approx(max(45 / 370.8e9, nic_bytes / 48.5e9))
        assert found.only("network").nominal_s == pytest.approx(nic_bytes / 50e9)
    assert Loads(cluster, np.zeros(0, dtype=np.int64), np.zeros(0)).busiest is None
