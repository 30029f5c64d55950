"""Constants of a machine that its collectives use: the cluster's own, else defaults with their sources."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.constants import MACHINE_CONSTANTS
from foreshard.topologies.errors import InputError
from foreshard.topologies.machine import Sourced

__all__ = ["default_constants", "machine_constant", "machine_constants"]


@cache
def default_constants() -> Mapping[str, Sourced]:
    """The defaults of data/collectives.toml, in seconds and plain numbers."""
    text = resources.files("foreshard.simulator").joinpath("data/collectives.toml").read_text(encoding="utf-8")
    return MappingProxyType({name: _sourced(name, **entry) for name, entry in tomllib.loads(text).items()})


def _sourced(name: str, value: float, source: str) -> Sourced:
    return Sourced(value=value, unit=MACHINE_CONSTANTS[name].unit, source=source)


def machine_constants(cluster: Cluster) -> Mapping[str, Sourced]:
    """Every constant the collectives of this cluster use, with its source."""
    own = {name: constant for name, constant in cluster.constants.items() if name in default_constants()}
    return {**default_constants(), **own}


def machine_constant(cluster: Cluster, name: str) -> float:
    """One constant of this cluster in its base unit, its own or the default. Raises InputError outside its range."""
    value = (cluster.constants.get(name) or default_constants()[name]).value
    problem = MACHINE_CONSTANTS[name].problem(value)
    if problem is not None:
        raise InputError(f"constant {name} of {cluster.name!r}: {problem}")
    return value
