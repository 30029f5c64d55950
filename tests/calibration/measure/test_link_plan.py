"""What is measured of links: sizes, groups as layouts make them, pairs, uneven patterns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.calibration.measure.link_plan import (
    ELEMENT_BYTES,
    UNEVEN,
    LinkPlan,
    group_shapes,
    pairs_of,
    uneven_splits,
)
from foreshard.simulator.job.layout import Layout, resolve_layout

NODES = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(lambda sizes: np.repeat(np.arange(len(sizes)), sizes))


@given(NODES)
def test_every_group_shape_covers_the_world_with_groups_that_are_alike(node_of):
    """No rank is left out, all groups have their ranks in as many nodes, and no shape is measured twice."""
    shapes = group_shapes(node_of)
    for shape in shapes:
        assert sorted(np.concatenate(shape.groups.members).tolist()) == list(range(len(node_of)))
        for group in shape.groups.members:
            counts = np.unique(node_of[group], return_counts=True)[1]
            assert tuple(sorted(counts.tolist(), reverse=True)) == shape.ranks_per_node
    assert len({shape.key for shape in shapes}) == len(shapes)
    if len(node_of) > 1:
        assert len(shapes[0].groups) == 1


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (2, 4), (4, 2), (1, 8), (4, 1), (3, 4)])
@pytest.mark.parametrize("placement", ["contiguous", "interleaved"])
def test_the_groups_of_every_layout_are_measured(nodes, ranks, placement):
    """Sharding and replica groups of each size, if all lie alike: as many ranks in as many nodes, as many at once."""
    node_of = np.repeat(np.arange(nodes), ranks)
    world = nodes * ranks
    measured = {shape.key for shape in group_shapes(node_of)}
    for size in (size for size in range(1, world + 1) if world % size == 0):
        layout = resolve_layout(Layout(sharding_group_size=size, placement=placement), world)
        for groups in filter(None, (layout.sharding, layout.replica)):
            members = [np.unique(node_of[group], return_counts=True) for group in groups.members]
            shapes = {tuple(sorted(counts.tolist(), reverse=True)) for _, counts in members}
            if len(groups.members[0]) > 1 and len(shapes) == 1:
                in_node = np.bincount(np.concatenate([found for found, _ in members])).max()
                assert (shapes.pop(), len(groups), in_node) in measured


def test_two_nodes_of_two_have_three_shapes():
    """The world, a group in each node, and two across."""
    shapes = group_shapes(np.array([0, 0, 1, 1]))
    assert [shape.key for shape in shapes] == [((2, 2), 1, 1), ((2,), 2, 1), ((1, 1), 2, 2)]
    assert [group.tolist() for group in shapes[2].groups.members] == [[0, 2], [1, 3]]


@given(st.integers(1, 9), st.integers(4, 5000), st.integers(2, 7))
def test_sizes_divide_among_the_members_and_rise(members, smallest, factor):
    """Whole elements for each, none twice, none above what was asked for."""
    sizes = LinkPlan(smallest=smallest, largest=1 << 20, factor=factor).sizes(members)
    assert all(size % (ELEMENT_BYTES * members) == 0 for size in sizes)
    assert sizes == sorted(set(sizes))
    assert max(sizes) <= 1 << 20


def test_sizes_stop_where_buffers_would_not_fit():
    """Four buffers of a size fit into what a rank may take."""
    assert max(LinkPlan(buffer_bytes=1 << 20).sizes(1)) == 1 << 18


@given(NODES)
def test_one_pair_of_each_kind(node_of):
    """Two ranks of one node, if any node has two; two of different nodes, if there are two."""
    pairs = pairs_of(node_of)
    assert [pair.same_node for pair in pairs] == sorted({pair.same_node for pair in pairs}, reverse=True)
    for pair in pairs:
        assert pair.ranks[0] != pair.ranks[1]
        assert pair.same_node == (node_of[pair.ranks[0]] == node_of[pair.ranks[1]])
    assert {pair.same_node for pair in pairs} == {
        same for same, there in ((True, np.bincount(node_of).max() > 1), (False, node_of.max() > 0)) if there
    }


@given(st.sampled_from(UNEVEN), st.integers(2, 9), st.integers(1, 1 << 16), st.integers(0, 3))
def test_uneven_patterns_send_the_same_from_every_rank(pattern, members, elements, seed):
    """Everything of the size leaves every rank, as in the even one, but not in equal parts."""
    splits = uneven_splits(pattern, members, elements * ELEMENT_BYTES, seed)
    assert (splits >= 0).all()
    assert (splits.sum(axis=1) == elements).all()
    assert (splits == uneven_splits(pattern, members, elements * ELEMENT_BYTES, seed)).all()


def test_towards_one_rank_means_half_of_everything():
    """5/8 of each buffer of four ranks: half, and an eighth as the others get."""
    splits = uneven_splits("towards one rank", 4, 32 * ELEMENT_BYTES, 0)
    assert splits[1:].tolist() == [[20, 4, 4, 4]] * 3
