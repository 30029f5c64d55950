"""Constants of a machine that its collectives use: the cluster's own, else defaults with their sources."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from math import inf
from types import MappingProxyType

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.machine import Sourced

__all__ = ["default_constants", "machine_constant", "machine_constants"]


@cache
def default_constants() -> Mapping[str, Sourced]:
    """The defaults of data/collectives.toml, in seconds and plain numbers."""
    text = resources.files("foreshard.simulator").joinpath("data/collectives.toml").read_text(encoding="utf-8")
    return MappingProxyType({name: _sourced(name, **entry) for name, entry in tomllib.loads(text).items()})


def _sourced(name: str, value: float, source: str) -> Sourced:
    return Sourced(value=value, unit="s" if name.endswith("_s") else "1", source=source)


def machine_constants(cluster: Cluster) -> Mapping[str, Sourced]:
    """Every constant the collectives of this cluster use, with its source."""
    own = {name: constant for name, constant in cluster.constants.items() if name in default_constants()}
    return {**default_constants(), **own}


def machine_constant(cluster: Cluster, name: str) -> float:
    """One constant of this cluster in its base unit, its own or the default.

    Raises InputError for one outside its range: shares from above 0 to 1, `ring_overlap` from 1, the rest from 0.
    """
    value = (cluster.constants.get(name) or default_constants()[name]).value
    low, high = (1.0, 100.0) if name == "ring_overlap" else (0.0, 1.0 if name.endswith("_share") else inf)
    if not low <= value <= high or (value == 0 and name.endswith("_share")):
        expected = "at least 1" if low else "above 0, at most 1" if high < inf else "0 or more"
        raise InputError(f"constant {name} = {value:g} of {cluster.name!r}: expected {expected}")
    return value
