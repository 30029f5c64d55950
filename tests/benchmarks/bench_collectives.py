"""How long collectives take to lower and to simulate; `make bench` prints it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from foreshard.simulator.comms.single import run_collectives
from foreshard.simulator.job.layout import Groups, Layout, resolve_layout
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.traffic import PairBytes
from foreshard.topologies.presets import load_preset

machine = cache(load_preset)


def uneven(members, seed=0):
    return np.random.default_rng(seed).random((members, members)) * 1e6


def test_bench_one_uneven_all_to_all_over_2048_ranks(benchmark):
    cluster = machine("p5.48xlarge", 256)
    collective = Collective(kind="all_to_all", groups=Groups.world(2048), traffic=(PairBytes.dense(uneven(2048)),))
    benchmark.pedantic(run_collectives, (cluster, [(0.0, collective)]), rounds=5, warmup_rounds=1)
    assert benchmark.stats["min"] < 0.5


@pytest.mark.parametrize("placement", ["contiguous", "interleaved"])
@pytest.mark.parametrize("groups", [1, 512])
def test_bench_concurrent_all_to_alls_of_groups_of_8(benchmark, placement, groups):
    cluster = machine("p5.48xlarge", 512)
    layout = resolve_layout(Layout(sharding_group_size=8, placement=placement), cluster.size).sharding
    chosen = Groups(layout.members[:groups])
    traffic = tuple(PairBytes.dense(uneven(8, seed)) for seed in range(groups))
    collective = Collective(kind="all_to_all", groups=chosen, traffic=traffic)
    benchmark.pedantic(run_collectives, (cluster, [(0.0, collective)]), rounds=5, warmup_rounds=1)


def test_bench_an_expected_all_to_all_over_16384_ranks(benchmark):
    cluster = machine("p5.48xlarge", 2048)
    traffic = PairBytes.uniform(16384, 1e9)
    collective = Collective(kind="all_to_all", groups=Groups.world(16384), traffic=(traffic,))
    benchmark.pedantic(run_collectives, (cluster, [(0.0, collective)]), rounds=5, warmup_rounds=1)


def test_bench_all_reduces_of_2048_groups_of_8(benchmark):
    cluster = machine("p5.48xlarge", 2048)
    layout = resolve_layout(Layout(sharding_group_size=8, placement="interleaved"), cluster.size).sharding
    collective = Collective(kind="all_reduce", groups=layout, nbytes=(1e8,))
    benchmark.pedantic(run_collectives, (cluster, [(0.0, collective)]), rounds=3, warmup_rounds=1)
