"""The shipped machines: every number has a source, and they say what the vendors' datasheets say."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import load_preset, preset_names
from foreshard.topologies.shipped import parts

EXPECTED = {
    # GPUs a node, GB/s that leave a node by its NICs, nominal NVLink GB/s a GPU (0: none)
    "p4d.24xlarge": (8, 50, 300),
    "p4de.24xlarge": (8, 50, 300),
    "p5.48xlarge": (8, 400, 450),
    "p5en.48xlarge": (8, 400, 450),
    "p6-b200.48xlarge": (8, 400, 900),
    "dgx-a100": (8, 200, 300),
    "dgx-h100": (8, 400, 450),
    "dgx-h200": (8, 400, 450),
    "a3-mega": (8, 200, 450),
    "a3-mega-tcp": (8, 25, 450),
    "zionex": (8, 200, 300),
    "gb200-nvl72": (4, 200, 900),
    "dgx1-v100": (8, 50, 150),
    "pcie-4x": (4, 12.5, 0),
    "cpu-host": (4, 0.125, 0),
}


def test_all_machines_of_the_issue_are_shipped() -> None:
    """No machine is missing and none is untested."""
    assert set(preset_names()) == set(EXPECTED)


@pytest.mark.parametrize("name", preset_names())
def test_a_machine_has_the_bandwidths_of_its_datasheet(name: str) -> None:
    """GPUs a node, NIC bandwidth a node and NVLink bandwidth a GPU."""
    cluster = load_preset(name, 2)
    gpus, nic_gb, nvlink_gb = EXPECTED[name]
    of_node = cluster.links_of_node(0)
    kind, names = cluster.link_kind[of_node], [cluster.link_name(int(i)) for i in of_node]
    out = cluster.link_bandwidth[of_node][[("->leaf" in n) for n in names]].sum()
    nvlink = cluster.link_bandwidth[of_node][(kind == "nvlink") & [n.startswith("node0/gpu0->") for n in names]].sum()
    assert (cluster.local_world_size, out / 1e9, nvlink / 1e9) == (gpus, nic_gb, nvlink_gb)


@pytest.mark.parametrize("name", preset_names())
def test_no_number_of_a_machine_is_without_a_source(name: str) -> None:
    """GPUs, links, nodes, fabrics and constants all say where they are from."""
    spec = load_preset(name, 2).spec
    sources = [spec.fabric.source, *(constant.source for constant in spec.constants.values())]
    for group in spec.groups:
        sources += [group.node.source, *(k.source for k in group.node.links), *(g.source for g in group.node.gpus)]
    assert all(len(source) > 8 for source in sources)


@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind in ("gpu", "cpu", "link") for part in parts(kind)])
def test_every_number_of_a_part_has_a_source_of_its_own(kind: str, part: str) -> None:
    """The catalogue gives a source a number, not one for the row."""
    table = parts(kind)[part]
    numbers = set(table) - {"architecture", "source", "kind"}
    assert set(table["source"]) == numbers
    assert all(len(text) > 8 for text in table["source"].values())


@pytest.mark.parametrize("name", preset_names())
def test_a_link_carries_at_most_what_it_has(name: str) -> None:
    """Usable bandwidth lies above 0 and not above the nominal one."""
    cluster = load_preset(name, 2)
    assert ((cluster.link_usable > 0) & (cluster.link_usable <= cluster.link_bandwidth)).all()


@pytest.mark.parametrize("name", preset_names())
def test_nodes_multiply_ranks_and_links(name: str) -> None:
    """Four nodes have four times the ranks of one, and every rank reaches every other."""
    cluster = load_preset(name, 4)
    assert cluster.size == 4 * load_preset(name, 1).size
    ranks = np.arange(cluster.size)
    links, _ = cluster.outer_loads(ranks, np.ones(cluster.size), np.ones(cluster.size))
    assert len(links) > 0
    assert cluster.path_latency(ranks[:1], ranks[-1:])[0] > 0


def test_no_bare_number_with_a_dimension_stands_in_a_machines_file() -> None:
    """Bandwidths, times and sizes are texts with a unit; bare numbers are counts and constants with a unit field."""
    folder = files("foreshard.topologies") / "machines"
    for item in folder.iterdir():
        if item.name.endswith(".toml"):
            table = tomllib.loads(item.read_text(encoding="utf-8"))
            table.pop("constants", None)
            assert not [path for path in _floats(table) if "oversubscription" not in path], item.name


def _floats(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in _floats(inner, f"{path}.{key}")]
    return [path] if isinstance(value, float) else []


def test_an_unknown_machine_names_the_nearest() -> None:
    """A misspelt name is answered with the ones that are like it."""
    with pytest.raises(InputError, match=r"there is no machine 'p5.48xlarg'; did you mean 'p5.48xlarge'"):
        load_preset("p5.48xlarg")


def test_a_constant_that_a_machine_lacks_is_an_error() -> None:
    """A collective that needs a constant does not get a silent zero."""
    cluster: Cluster = load_preset("pcie-4x")
    with pytest.raises(InputError, match="has no constant 'warp_speed'"):
        cluster.constant("warp_speed")
