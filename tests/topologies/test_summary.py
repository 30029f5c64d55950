"""What a summary adds up, and which nodes of a cluster a drawing shows."""

from __future__ import annotations

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.drawing_layout import shown_nodes
from foreshard.topologies.summary import describe

FABRIC = '[fabric]\nkind = "leaf_spine"\nnodes_per_leaf = 1\noversubscription = 2.0\nspines = 2\n'


def cluster(groups: str) -> Cluster:
    return Cluster(parse_cluster(f'schema = 1\nname = "t"\n{groups}{FABRIC}', where="t"))


def test_uplinks_are_added_up_in_one_direction() -> None:
    """Three leaves of eight NICs of 50 GB/s, oversubscribed 2:1: 3 x 200 GB/s."""
    fabric = describe(cluster('preset = "p5.48xlarge"\nnodes = 3\n'))["fabric"]
    assert (fabric["leaves"], fabric["uplink_bytes_per_s"]) == (3, 600e9)


def test_a_node_of_another_kind_is_drawn_before_one_on_another_leaf() -> None:
    """The third node is the first box without NVLink; node 1 is only on another leaf."""
    mixed = 'groups = [{ preset = "p5.48xlarge", nodes = 2 }, { preset = "pcie-4x", nodes = 2 }]\n'
    assert shown_nodes(cluster(mixed)) == (0, 2)
    assert shown_nodes(cluster('preset = "p5.48xlarge"\nnodes = 3\n')) == (0, 1)
    assert shown_nodes(cluster('preset = "p5.48xlarge"\nnodes = 1\n')) == (0,)
