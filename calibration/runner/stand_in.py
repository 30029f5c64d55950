"""The machine a run is counted on where there are other ranks than the scenario's machine has."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import tomli_w

from foreshard.simulator.job.scenario import Scenario
from foreshard.simulator.step.prediction import Prediction, load_cluster
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import InputError

__all__ = ["host_of", "stand_in"]

_HOST = "cpu-host"
_MOST_RANKS = 64


def host_of(ranks: int, nodes: int = 1) -> Cluster:
    """Shipped hosts of CPU ranks, `ranks` on each: work is counted on them, nothing of their rates is used."""
    if ranks > _MOST_RANKS:
        raise InputError(
            f"{ranks} ranks on a host, at most {_MOST_RANKS}: name a cluster of {ranks} ranks in the scenario"
        )
    text = files("foreshard.topologies").joinpath("machines", f"{_HOST}.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    document["node"]["ranks"] = ranks
    return Cluster(parse_cluster(tomli_w.dumps(document), where=_HOST, nodes=nodes))


def stand_in(scenario: Scenario, ranks: int, local_ranks: int) -> tuple[Prediction, list[str]]:
    """Return the prediction of a run on `ranks` ranks, `local_ranks` on a node, and a note if they are not those of
    the scenario's machine.

    Raises InputError for nodes of different numbers of ranks, which only a cluster file describes.
    """
    cluster = load_cluster(scenario.cluster)
    if cluster.size == ranks:
        return Prediction(scenario, cluster), []
    if ranks % local_ranks:
        raise InputError(
            f"{ranks} ranks with {local_ranks} on this node, and the scenario's machine has {cluster.size}: name a "
            "cluster file with these nodes (--set cluster.file=...)"
        )
    counted = "1 rank" if ranks == 1 else f"{ranks} ranks"
    nodes = f" on {ranks // local_ranks} nodes" if ranks > local_ranks else ""
    return Prediction(scenario, host_of(local_ranks, ranks // local_ranks)), [
        f"run on {counted}{nodes}, while the scenario's machine, {cluster.nodes} x {cluster.name}, has "
        f"{cluster.size}: owners and bytes are those of {counted}, and no prediction is compared"
        + _as_many(cluster, ranks)
    ]


def _as_many(cluster: Cluster, ranks: int) -> str:
    """Which of the scenario's machines have as many ranks."""
    nodes, rest = divmod(ranks, cluster.local_world_size)
    return "" if rest or not nodes else f" (--set cluster.nodes={nodes} would be a machine of {ranks} ranks)"
