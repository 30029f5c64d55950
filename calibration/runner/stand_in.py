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


def host_of(ranks: int) -> Cluster:
    """The shipped host of CPU ranks, with so many of them: work is counted on it, nothing of its rates is used."""
    if ranks > _MOST_RANKS:
        raise InputError(
            f"{ranks} ranks on a host, at most {_MOST_RANKS}: name a cluster of {ranks} ranks in the scenario"
        )
    text = files("foreshard.topologies").joinpath("machines", f"{_HOST}.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    document["node"]["ranks"] = ranks
    return Cluster(parse_cluster(tomli_w.dumps(document), where=_HOST))


def stand_in(scenario: Scenario, ranks: int) -> tuple[Prediction, list[str]]:
    """Return the prediction of a run on `ranks` ranks, and a note if they are not those of the scenario's machine."""
    cluster = load_cluster(scenario.cluster)
    if cluster.size == ranks:
        return Prediction(scenario, cluster), []
    machine = f"{cluster.nodes} x {cluster.name}"
    note = (
        f"run on {ranks} ranks of this host; the scenario's machine, {machine}, has {cluster.size}: nothing is compared"
    )
    return Prediction(scenario, host_of(ranks)), [note]
