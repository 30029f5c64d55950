"""Properties of compiled clusters over random machines: routes, loads against a slow oracle, conservation, names."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.explicit import dump_cluster
from foreshard.topologies.machine import ClusterSpec
from foreshard.topologies.presets import load_preset

from .random_machines import clusters, specs


def _oracle(cluster: Cluster, flows: list[tuple[int, int, float]]) -> dict[int, float]:
    """Bytes on links, flow by flow and path by path."""
    total: dict[int, float] = defaultdict(float)
    for src, dst, nbytes in flows:
        for path, share in cluster.paths(src, dst):
            for link in path:
                total[link] += nbytes * share
    return total


def _all_pairs(cluster: Cluster) -> list[tuple[int, int]]:
    return [(s, d) for s in range(cluster.size) for d in range(cluster.size)]


@given(clusters())
def test_every_pair_of_ranks_is_joined_by_whole_paths_of_existing_links(cluster: Cluster) -> None:
    """A path begins at the sender, ends at the receiver, is connected, uses no missing link; shares sum to 1."""
    for src, dst in _all_pairs(cluster):
        paths = cluster.paths(src, dst)
        assert sum(share for _, share in paths) == pytest.approx(1.0)
        for path, _ in paths:
            ends = [cluster.link_name(link).split("->") for link in path]
            if src != dst:
                assert ends[0][0] == f"node{cluster.node_of[src]}/gpu{cluster.local_rank[src]}"
                assert ends[-1][1] == f"node{cluster.node_of[dst]}/gpu{cluster.local_rank[dst]}"
            assert all(a[1] == b[0] for a, b in pairwise(ends))
            assert (cluster.link_usable[list(path)] > 0).all()


@given(clusters(), st.data())
def test_loads_are_the_sum_over_the_paths_of_all_flows(cluster: Cluster, data: st.DataObject) -> None:
    """The matrix products give what adding flow by flow along path() gives."""
    rank = st.integers(0, cluster.size - 1)
    flows = data.draw(st.lists(st.tuples(rank, rank, st.integers(1, 1000).map(float)), max_size=12))
    src, dst, nbytes = (np.array([flow[i] for flow in flows]) for i in range(3))
    links, loads = cluster.loads(src.astype(np.int64), dst.astype(np.int64), nbytes.astype(np.float64))
    expected = _oracle(cluster, flows)
    assert links.tolist() == sorted(expected)
    np.testing.assert_allclose(loads, [expected[link] for link in links])


@given(clusters(), st.data())
def test_outer_loads_equal_loads_on_the_outer_product(cluster: Cluster, data: st.DataObject) -> None:
    """Never forming the matrix changes nothing, also for part of the ranks in any order."""
    ranks = data.draw(st.lists(st.integers(0, cluster.size - 1), min_size=1, unique=True).map(np.array))
    amount = st.sampled_from([0.0, 1.0, 3.0, 0.3])
    out, share = (np.array(data.draw(st.lists(amount, min_size=len(ranks), max_size=len(ranks)))) for _ in range(2))
    links, loads = cluster.outer_loads(ranks, out, share)
    src, dst = (grid.ravel() for grid in np.meshgrid(ranks, ranks, indexing="ij"))
    plain_links, plain = cluster.loads(src, dst, np.outer(out, share).ravel())
    assert links.tolist() == plain_links.tolist()
    np.testing.assert_allclose(loads, plain, rtol=1e-9)


@given(clusters(), st.data())
def test_bytes_are_conserved_at_every_device(cluster: Cluster, data: st.DataObject) -> None:
    """What enters a switch, CPU or NIC leaves it; a GPU sends and receives exactly its own flows."""
    rank = st.integers(0, cluster.size - 1)
    flows = data.draw(st.lists(st.tuples(rank, rank, st.integers(1, 1000).map(float)), max_size=12))
    src, dst = (np.array([flow[i] for flow in flows], dtype=np.int64) for i in range(2))
    nbytes = np.array([flow[2] for flow in flows])
    net: dict[str, float] = defaultdict(float)
    for link, load in zip(*cluster.loads(src, dst, nbytes), strict=True):
        a, b = cluster.link_name(int(link)).split("->")
        net[a] -= load
        net[b] += load
    for s, d, amount in flows:
        net[f"node{cluster.node_of[s]}/gpu{cluster.local_rank[s]}"] += amount
        net[f"node{cluster.node_of[d]}/gpu{cluster.local_rank[d]}"] -= amount
    np.testing.assert_allclose(list(net.values()), 0.0, atol=1e-9)


@given(clusters())
def test_path_latency_is_the_sum_of_the_slowest_path(cluster: Cluster) -> None:
    """The vectorised latency equals the sum over the links of the worst of the paths."""
    pairs = _all_pairs(cluster)
    src, dst = (np.array([pair[i] for pair in pairs]) for i in range(2))
    slow = [max(cluster.link_latency[list(path)].sum() for path, _ in cluster.paths(*pair)) for pair in pairs]
    np.testing.assert_allclose(cluster.path_latency(src, dst), slow, atol=1e-15)


@given(clusters())
def test_the_graph_holds_every_link_that_exists_under_its_name(cluster: Cluster) -> None:
    """graph() has one edge for each link with bandwidth, with the Link it stands for."""
    graph = cluster.graph()
    assert graph.number_of_edges() == int((cluster.link_bandwidth > 0).sum())
    for src, dst, edge in graph.edges(data=True):
        assert cluster.link_name(edge["number"]) == f"{src}->{dst}"
        assert edge["link"].usable == cluster.link_usable[edge["number"]]


@given(specs())
def test_the_explicit_form_reads_back_equal(spec: ClusterSpec) -> None:
    """Writing a cluster link by link and reading it again gives the same cluster, to the last digit."""
    again = parse_cluster(dump_cluster(spec), where="written")
    assert dump_cluster(again) == dump_cluster(spec)
    assert np.array_equal(Cluster(again).link_usable, Cluster(spec).link_usable)
    assert again.fabric == spec.fabric


@given(st.permutations(range(4)), st.data())
def test_renaming_nodes_renames_loads(order: list[int], data: st.DataObject) -> None:
    """Equal nodes on one switch: flows between renamed nodes load the renamed links alike."""
    cluster = load_preset("p4d.24xlarge", 4)
    rank = st.integers(0, cluster.size - 1)
    flows = data.draw(st.lists(st.tuples(rank, rank), min_size=1, max_size=8))
    src, dst = (np.array([flow[i] for flow in flows]) for i in range(2))
    nbytes = np.arange(1.0, len(flows) + 1)

    def renamed(ranks: np.ndarray) -> np.ndarray:
        return np.array(order)[ranks // 8] * 8 + ranks % 8

    def by_name(links: np.ndarray, loads: np.ndarray, new: dict[str, str]) -> dict[str, float]:
        names = [cluster.link_name(int(link)) for link in links]
        return {
            "->".join(_node_renamed(end, new) for end in n.split("->")): b for n, b in zip(names, loads, strict=True)
        }

    new = {f"node{old}": f"node{to}" for old, to in enumerate(order)}
    assert by_name(*cluster.loads(src, dst, nbytes), new) == by_name(
        *cluster.loads(renamed(src), renamed(dst), nbytes), {}
    )


def _node_renamed(end: str, new: dict[str, str]) -> str:
    node, slash, device = end.partition("/")
    return f"{new.get(node, node)}{slash}{device}"


@given(specs(), st.data())
def test_a_degraded_link_keeps_its_factor_and_no_other_link_changes(spec: ClusterSpec, data: st.DataObject) -> None:
    """degrade halves exactly the links that its pattern names."""
    whole = Cluster(spec)
    link = data.draw(st.integers(0, len(whole.link_usable) - 1))
    fields = {f: getattr(spec, f) for f in spec.__slots__}
    harmed = Cluster(ClusterSpec(**fields | {"degrade": {whole.link_name(link): 0.5}}))
    expected = whole.link_usable.copy()
    expected[link] *= 0.5
    np.testing.assert_array_equal(harmed.link_usable, expected)


@settings(max_examples=30)
@given(st.integers(-3, 40), st.integers(-3, 40))
def test_ranks_that_do_not_exist_are_refused(src: int, dst: int) -> None:
    """loads names the range of ranks instead of counting from the end."""
    cluster = load_preset("pcie-4x", 2)
    if 0 <= src < 8 and 0 <= dst < 8:
        cluster.loads(np.array([src]), np.array([dst]), np.array([1.0]))
    else:
        with pytest.raises(InputError, match=r"0 \.\. 7"):
            cluster.loads(np.array([src]), np.array([dst]), np.array([1.0]))
