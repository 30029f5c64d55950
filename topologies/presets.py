"""The shipped machines: TOML files of this package, each number with its source."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.fields import near

__all__ = ["load_preset", "preset_names", "preset_text"]

_FOLDER = files("foreshard.topologies") / "presets"


def preset_names() -> tuple[str, ...]:
    """Names of all shipped machines, sorted."""
    return tuple(sorted(item.name.removesuffix(".toml") for item in _FOLDER.iterdir() if item.name.endswith(".toml")))


def preset_text(name: str) -> str:
    """TOML text of a shipped machine. Raises InputError naming the nearest ones if there is none of that name."""
    if name not in preset_names():
        raise InputError(f"there is no machine {name!r}; {near(name, preset_names())}")
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def load_preset(name: str, nodes: int = 1, degrade: Mapping[str, float] | None = None) -> Cluster:
    """Return `nodes` nodes of a shipped machine. Raises InputError for an unknown name."""
    return Cluster(parse_cluster(preset_text(name), where=f"machine {name!r}", nodes=nodes, degrade=degrade))
