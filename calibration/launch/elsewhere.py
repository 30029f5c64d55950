"""Whether a run was one on the scenario's own machine, so that its prediction can stand beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foreshard.topologies.cluster import Cluster

__all__ = ["not_on_its_machine"]


def not_on_its_machine(cluster: Cluster, nodes: Sequence[int], backend: str) -> Iterator[str]:
    """Yield a sentence for everything in which a run on as many ranks differs from one on `cluster`.

    `nodes` [ranks] is the node that each rank is on, `backend` what they talk with.
    """
    if backend != cluster.backend:
        yield (
            f"the ranks talk with {backend}, on the scenario's machine, {cluster.nodes} x {cluster.name}, with "
            f"{cluster.backend}: nothing is compared"
        )
    there = cluster.node_of.tolist()
    if [nodes.index(node) for node in nodes] != [there.index(node) for node in there]:
        yield (
            f"the ranks are on nodes of {_sizes(nodes)}, on the scenario's machine on nodes of {_sizes(there)}: "
            "nothing is compared"
        )


def _sizes(nodes: Sequence[int]) -> str:
    return " + ".join(str(nodes.count(node)) for node in dict.fromkeys(nodes))
