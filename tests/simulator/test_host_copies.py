"""Copies between host memory and GPUs share PCIe links with whatever else crosses them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.comms.single import run_collectives, uniform_collective
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective, Compute, Dep, HostCopy, Op, StepProgram
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.step.engine import Engine
from foreshard.simulator.step.prediction import Prediction, simulate_program
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.presets import load_preset

GB = 1e9


def copy_op(ranks, nbytes, direction="to_device", name="copy", stream="copy", floor_s=0.0, seconds=0.0, **more):
    amount = np.broadcast_to(np.asarray(nbytes, dtype=float), (ranks,))
    copies = (HostCopy(nbytes=amount, direction=direction, floor_s=floor_s),)
    work = Compute(seconds=np.full(ranks, seconds), copies=copies)
    return Op(name=name, label=name, stage="batch_input", stream=stream, work=work, **more)


def collective_op(work, name="exchange", **more):
    return Op(name=name, label=name, stage="vector_return", stream="comm", work=work, **more)


def run(cluster, *ops):
    """Start and end of every operation of one step, [ops, ranks], and the engine's timeline."""
    timeline = Engine(StepProgram(world_size=cluster.size, ops=ops, warmup_steps=0), cluster, 1).run()
    return timeline.start[0], timeline.end[0], timeline


def crossing(cluster, nbytes):
    """All ranks of node 0 send to the ranks of node 1."""
    matrix = np.zeros((cluster.size, cluster.size))
    half = cluster.size // 2
    matrix[np.arange(half), half + np.arange(half)] = nbytes
    return Collective(kind="all_to_all", groups=Groups.world(cluster.size), traffic=(PairBytes.dense(matrix),))


@pytest.mark.parametrize(("machine", "rate"), [("p5.48xlarge", 12.5 * GB), ("p5en.48xlarge", 55 * GB)])
def test_a_copy_alone_takes_its_bytes_over_the_hosts_links(machine, rate):
    cluster = load_preset(machine, 2)
    start, end, _ = run(cluster, copy_op(16, 1e9))
    np.testing.assert_allclose(end - start, 1e9 / rate)


def test_a_copy_that_takes_no_time_on_the_links_takes_its_floor():
    cluster = load_preset("p5.48xlarge", 1)
    _, end, _ = run(cluster, copy_op(8, 1.0, floor_s=2e-6))
    np.testing.assert_allclose(end, 2e-6)


def test_a_machine_without_a_host_link_copies_for_free():
    whole = load_preset("pcie-4x", 1)
    links = tuple(link for link in whole.spec.groups[0].node.links if "mem" not in link.src + link.dst)
    node = replace(whole.spec.groups[0].node, links=links)
    cluster = Cluster(replace(whole.spec, groups=(replace(whole.spec.groups[0], node=node),)))
    _, end, timeline = run(cluster, copy_op(4, 1e9, seconds=0.5))
    np.testing.assert_array_equal(end, 0.5)
    assert not timeline.link_bytes.any()


def test_ranks_without_bytes_do_not_wait_for_those_that_copy():
    cluster = load_preset("p5.48xlarge", 1)
    _, end, _ = run(cluster, copy_op(8, [1e9, *[0.0] * 7], seconds=1.0))
    np.testing.assert_allclose(end[0], [1.0 + 1e9 / (25 * GB), *[1.0] * 7])


def test_copies_of_one_operation_follow_each_other_and_its_work_comes_last():
    cluster = load_preset("p5en.48xlarge", 1)
    there = HostCopy(nbytes=np.full(8, 55e9), direction="to_device")
    back = HostCopy(nbytes=np.full(8, 110e9), direction="from_device")
    work = Compute(seconds=np.full(8, 0.25), copies=(there, back))
    op = Op(name="update", label="update", stage="optimizer_update", stream="compute", work=work)
    _, end, timeline = run(cluster, op)
    np.testing.assert_allclose(end, 3.25)
    np.testing.assert_allclose(timeline.copied_s[0], 3.0)


def test_a_copy_and_messages_through_the_same_pcie_link_slow_each_other():
    """On the PCIe box messages come over the CPU to the GPU as copies do: together they take both of their times where
    that link is the narrowest, which it is once NICs are as fast as PCIe."""
    narrow = load_preset("pcie-4x", 2, {"*cpu*->*gpu*": 0.1})  # 2.5 GB/s a GPU, less than its share of a NIC
    exchange, nbytes = crossing(narrow, 1e9), 1e9
    ((alone,),), _ = run_collectives(narrow, [(0.0, exchange)])
    _, copied, _ = run(narrow, copy_op(8, nbytes))
    _, both, _ = run(narrow, copy_op(8, nbytes), collective_op(exchange))
    here = slice(4, 8)  # the ranks that receive
    assert both[:, here].max() == pytest.approx(copied[0, here].max() + alone, rel=1e-3)
    assert both[0, :4].max() == pytest.approx(copied[0, :4].max())


def test_a_copy_over_other_links_than_the_messages_slows_nothing():
    cluster = load_preset("p5.48xlarge", 1)
    exchange = uniform_collective("all_to_all", range(8), 1e9)
    ((alone,),), _ = run_collectives(cluster, [(0.0, exchange)])
    _, both, _ = run(cluster, copy_op(8, 1e9), collective_op(exchange))
    assert both[1].max() == pytest.approx(alone)
    assert both[0].max() == pytest.approx(1e9 / (12.5 * GB))


@given(
    st.sampled_from(["p5.48xlarge", "p4d.24xlarge", "pcie-4x", "dgx1-v100"]),
    st.lists(st.just(0.0) | st.floats(1.0, 1e9), min_size=16, max_size=16),
    st.sampled_from(["to_device", "from_device"]),
    st.floats(1e6, 1e9),
)
def test_what_shares_the_links_takes_no_longer_than_one_after_the_other(machine, amounts, direction, size):
    cluster = load_preset(machine, 2)
    copied = copy_op(cluster.size, amounts[: cluster.size], direction)
    exchange = collective_op(crossing(cluster, size))
    apart = [run(cluster, op)[1].max() for op in (copied, exchange)]
    _, end, timeline = run(cluster, copied, exchange)
    assert max(apart) * (1 - 1e-9) <= end.max() <= sum(apart) * (1 + 1e-9) + 4e-12
    busy = timeline.link_bytes / cluster.link_usable
    assert end.max() >= busy.max() * (1 - 1e-9)


def test_events_of_a_step_do_not_grow_with_the_ranks():
    def events(nodes):
        scenario = read_scenario("mlperf-dcnv2-p5", [f"cluster.nodes={nodes}", "layout.sharding_group_size=8"])
        prediction = Prediction(scenario)
        return simulate_program(prediction.program(None), prediction.cluster).events

    assert events(32) == events(2)


def test_a_step_waits_for_copies_that_share_its_links():
    """Rows in host memory: a lookup fetches while the next batch comes in, and both take longer than alone."""
    cluster = load_preset("p5.48xlarge", 1)
    fetch = copy_op(8, 1e9, name="lookup", stream="compute")
    batch = copy_op(8, 1e9)
    after = copy_op(8, 0.0, name="forward", stream="compute", deps=(Dep("copy"),))
    _, end, _ = run(cluster, batch, fetch, after)
    np.testing.assert_allclose(end[:2], 2e9 / (12.5 * GB))
