"""The shipped machines: TOML files of this package, each number with its source."""

from __future__ import annotations

from collections.abc import Mapping

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import load_cluster_file, parse_cluster
from foreshard.topologies.shipped import preset_names, preset_text

__all__ = ["load_cluster_file", "load_preset", "preset_names", "preset_text"]


def load_preset(name: str, nodes: int = 1, degrade: Mapping[str, float] | None = None) -> Cluster:
    """Return `nodes` nodes of a shipped machine; `degrade` maps link-name patterns to a factor, 0 for missing.

    Raises InputError for an unknown name or pattern, NoRouteError if a missing link cuts ranks off.
    """
    return Cluster(parse_cluster(preset_text(name), where=f"machine {name!r}", nodes=nodes, degrade=degrade))
