"""One mistake in a cluster file is told once: every key of every form, spoilt in every way, gives one message."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import tomli_w

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.explicit import dump_cluster

SHORT = tomllib.loads("""
schema = 1
name = "mine"
nodes = 2
gpu = "H100-SXM5-80GB"
nodes_per_domain = 1
backend = "nccl"
assumptions = ["x"]
[node]
name = "n"
gpus = 2
cpus = 2
nics = 2
pcie_switches = 1
host_memory = "1 TiB"
nvlink_topology = "mesh"
nvlink_pairs = [[0, 1, 2]]
nvlink = { bandwidth = "450 GB/s", usable = "370 GB/s", latency = "0.3 us", source = "mine", kind = "nvlink" }
pcie = "pcie5-x16"
pcie_uplink = "pcie5-x16"
nic_pcie = "pcie5-x16"
nics_at = "switch"
smp = "upi-sapphire-rapids"
memory = "ddr5-4800-x8"
nic = "ndr-400g"
nvlink_relay = false
nvls = false
gpu_nics = [[0], [1]]
source = "my own server"
[fabric]
kind = "rail"
spines = 2
oversubscription = 2.0
latency = "1 us"
routing = "even"
source = "x"
[constants]
all_to_all_peer_s = { value = 5, unit = "us", source = "measured here" }
ring_network_share = { value = 0.9, source = "measured here" }
[degrade]
"node0/nic*" = 0.5
""")
OWN_GPU = SHORT | {
    "gpu": {
        "name": "g", "architecture": "hopper", "hbm": "80 GiB", "hbm_bandwidth": "3 TB/s", "l2": "50 MiB",
        "flops": {"bf16": "900 TFLOP/s"}, "source": "x",
    }
}  # fmt: skip
GROUPS = tomllib.loads("""
schema = 1
name = "t"
groups = [{ preset = "pcie-4x", nodes = 1 }, { preset = "pcie-4x", nodes = 1 }]
fabric = { kind = "single_switch" }
""")
CPUS = tomllib.loads("""
schema = 1
name = "c"
backend = "gloo"
cpu = "x86-avx2-core"
nodes = 2
[node]
ranks = 4
cores = 2
memory = "ddr4-3200-x2"
host_memory = "16 GiB"
loopback = "tcp-loopback"
nic = { bandwidth = "500 Mbit/s", usable = "478 Mbit/s", latency = "50 us", source = "tc" }
source = "x"
""")
EXPLICIT = tomllib.loads(dump_cluster(parse_cluster(tomli_w.dumps(SHORT), where="file")))
FORMS = {"short": SHORT, "own gpu": OWN_GPU, "groups": GROUPS, "cpus": CPUS, "explicit": EXPLICIT}
GONE = object()
JUNK = ["", "nonsense", -1, 0, 1e300, float("nan"), True, [], [1], "é\x07", "5 GB", "5 Gb/s", 10**30, GONE]
# Without one of its two GPUs, or any links, a node contradicts itself in two places.
TWO_SYMPTOMS = [
    (("kinds", 0, "gpus", 0), repr(GONE)),
    (("kinds", 0, "links"), "[]"),
    (("kinds", 0, "links"), repr(GONE)),
]


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key below a table, and the first entry of every list."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, below in items:
        yield (*path, key)
        yield from paths(below, (*path, key))


def spoilt(table: dict[str, Any], path: tuple[Any, ...], junk: Any) -> str:
    copied = copy.deepcopy(table)
    holder = copied
    for key in path[:-1]:
        holder = holder[key]
    if junk is GONE:
        del holder[path[-1]]
    else:
        holder[path[-1]] = junk
    return tomli_w.dumps(copied)


@pytest.mark.parametrize("form", FORMS)
def test_a_spoilt_key_is_told_once_or_is_no_mistake(form: str) -> None:
    told_twice = {}
    for path in paths(FORMS[form]):
        for junk in JUNK:
            try:
                Cluster(parse_cluster(spoilt(FORMS[form], path, junk), where="file"))
            except InputError as error:
                expected = 2 if (path, repr(junk)) in TWO_SYMPTOMS else 1
                if len(error.problems) != expected:
                    told_twice[path, repr(junk)] = error.problems
    assert told_twice == {}


def test_a_key_that_is_not_known_is_told_once_wherever_it_stands() -> None:
    for table in FORMS.values():
        for path in [(), *paths(table)]:
            copied = copy.deepcopy(table)
            holder: Any = copied
            for key in path:
                holder = holder[key]
            if not isinstance(holder, dict):
                continue
            holder["bogus_key"] = 1
            with pytest.raises(InputError) as caught:
                Cluster(parse_cluster(tomli_w.dumps(copied), where="file"))
            assert len(caught.value.problems) == 1, path
            assert "bogus_key" in str(caught.value)
