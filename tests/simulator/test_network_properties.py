"""Laws of the network in simulated time, searched for violations by Hypothesis, and a packet-level toy beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.comms.maxmin import max_min_rates
from foreshard.simulator.comms.network import Network


@dataclass(frozen=True)
class Transfer:
    start: float
    links: tuple[int, ...]
    nbytes: tuple[float, ...]
    floor_s: float = 0.0
    stretch: float = 1.0


def simulate(capacity, transfers, watch=None):
    """Finish time of every transfer in the order given, and the network."""
    env = simpy.Environment()
    finished = {}
    network = Network(
        env, np.asarray(capacity, dtype=float), lambda keys: finished.update(dict.fromkeys(keys, env.now))
    )

    def starter(key, transfer):
        yield env.timeout(transfer.start)
        network.start(
            key, np.array(transfer.links, dtype=int), np.array(transfer.nbytes), transfer.floor_s, transfer.stretch
        )

    for key, transfer in enumerate(transfers):
        env.process(starter(key, transfer))
    while env.peek() < float("inf"):
        env.step()
        if watch is not None:
            watch(network)
    return [finished[key] for key in range(len(transfers))], network


@st.composite
def scenes(draw, max_transfers=8, floors=True):
    links = draw(st.integers(1, 6))
    capacity = draw(st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=links, max_size=links))
    transfers = []
    for _ in range(draw(st.integers(1, max_transfers))):
        used = draw(st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True))
        sizes = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0, 10.0]), min_size=len(used), max_size=len(used)))
        start = draw(st.sampled_from([0.0, 0.0, 0.25, 1.0, 2.5]))
        floor = draw(st.sampled_from([0.0, 0.0, 2.0])) if floors else 0.0
        stretch = draw(st.sampled_from([1.0, 1.0, 1.25, 2.0]))
        transfers.append(Transfer(start, tuple(used), tuple(sizes), floor, stretch))
    return capacity, transfers


def alone(capacity, transfer):
    sizes = zip(transfer.links, transfer.nbytes, strict=True)
    return max(transfer.floor_s, *(transfer.stretch * size / capacity[link] for link, size in sizes))


@given(scenes())
def test_no_link_is_ever_above_its_capacity(scene):
    capacity, transfers = scene

    def watch(network):
        assert (network.link_occupancy <= 1 + 1e-6).all()
        assert (network.link_rate <= network.link_occupancy * np.asarray(capacity) * (1 + 1e-6)).all()

    simulate(capacity, transfers, watch)


@given(scenes())
def test_bytes_are_conserved_on_every_link(scene):
    capacity, transfers = scene
    _, network = simulate(capacity, transfers)
    expected = np.zeros(len(capacity))
    for transfer in transfers:
        np.add.at(expected, list(transfer.links), transfer.nbytes)
    np.testing.assert_allclose(network.link_bytes, expected)
    assert network.active == ()


@given(scenes())
def test_moved_bytes_never_fall_and_never_exceed_what_was_sent(scene):
    capacity, transfers = scene
    seen = [np.zeros(len(capacity))]
    total = np.zeros(len(capacity))
    for transfer in transfers:
        np.add.at(total, list(transfer.links), transfer.nbytes)

    def watch(network):
        now = network.link_bytes
        assert (now >= seen[-1] - 1e-9).all()
        assert (now <= total + 1e-9).all()
        seen.append(now)

    simulate(capacity, transfers, watch)


@given(scenes())
def test_nobody_is_faster_than_alone_and_all_are_done_by_the_sum_of_all(scene):
    capacity, transfers = scene
    finish, _ = simulate(capacity, transfers)
    for transfer, end in zip(transfers, finish, strict=True):
        assert end - transfer.start >= alone(capacity, transfer) * (1 - 1e-9)
    last_start = max(transfer.start for transfer in transfers)
    together = sum(alone(capacity, transfer) for transfer in transfers)
    assert max(finish) <= last_start + together * (1 + 1e-9)


@given(scenes(max_transfers=2, floors=False))
def test_two_together_take_no_less_than_their_bytes_over_capacity(scene):
    capacity, transfers = scene
    transfers = [replace(t, start=0.0) for t in transfers]
    finish, network = simulate(capacity, transfers)
    assert max(finish) >= (network.link_bytes / np.asarray(capacity)).max() * (1 - 1e-9)


@given(scenes(), st.integers(0, 2**32 - 1))
def test_renaming_links_changes_nothing(scene, seed):
    capacity, transfers = scene
    name = np.random.default_rng(seed).permutation(len(capacity))
    renamed_capacity = np.empty(len(capacity))
    renamed_capacity[name] = capacity
    renamed = [replace(t, links=tuple(name[list(t.links)].tolist())) for t in transfers]
    np.testing.assert_allclose(simulate(capacity, transfers)[0], simulate(renamed_capacity, renamed)[0])


@given(scenes())
def test_the_same_scene_gives_the_same_bits_twice(scene):
    assert simulate(*scene)[0] == simulate(*scene)[0]


def test_two_on_disjoint_links_take_the_longer():
    finish, _ = simulate([1.0, 1.0], [Transfer(0, (0,), (3.0,)), Transfer(0, (1,), (5.0,))])
    assert finish == [3.0, 5.0]


def test_512_equal_disjoint_transfers_cost_as_many_events_as_one():
    one = simulate([1.0] * 4, [Transfer(0.0, (0, 1, 2, 3), (1.0,) * 4)])[1]
    many = simulate([1.0] * 2048, [Transfer(0.0, tuple(range(4 * g, 4 * g + 4)), (1.0,) * 4) for g in range(512)])[1]
    assert many.events == one.events


def test_a_component_that_falls_apart_is_no_longer_solved_as_one(monkeypatch):
    import foreshard.simulator.comms.network as module

    solved = []

    def counted(capacity, coflow, link, usage, ceiling):
        solved.append(len(ceiling))
        return max_min_rates(capacity, coflow, link, usage, ceiling)

    monkeypatch.setattr(module, "max_min_rates", counted)
    # One wide transfer joins 40 narrow ones; after it has ended each narrow end re-solves nobody else.
    narrow = [Transfer(0.0, (k,), (10.0 + k,)) for k in range(40)]
    _, network = simulate([10.0] * 40, [Transfer(0.0, tuple(range(40)), (0.1,) * 40), *narrow])
    assert solved == [41, 40]
    assert network.events <= 2 * 41 + 2


# -- the fluid model against packets ------------------------------------------------------------------------------

PACKET_TOLERANCE = 0.06
"""A hop stores a whole packet before it forwards it and serves packets whole: up to a packet time a hop and a turn,
1/64 of a flow each here, which two hops and two turns bring to 6 %."""


class RoundRobinLink:
    """A store-and-forward link that serves one packet of each waiting flow in turn, as fair queueing does."""

    def __init__(self, env, capacity):
        self.env, self.capacity, self.waiting, self.order = env, capacity, {}, []
        self.work = env.event()
        env.process(self.serve())

    def send(self, flow, size):
        done = self.env.event()
        if flow not in self.waiting:
            self.waiting[flow] = []
            self.order.append(flow)
        self.waiting[flow].append((size, done))
        if not self.work.triggered:
            self.work.succeed()
        return done

    def serve(self):
        while True:
            ready = [flow for flow in self.order if self.waiting[flow]]
            if not ready:
                self.work = self.env.event()
                yield self.work
            for flow in ready:
                size, done = self.waiting[flow].pop(0)
                yield self.env.timeout(size / self.capacity)
                done.succeed()


def packets(capacity, flows, size):
    """Finish times of flows (path, bytes) sent as packets, up to 8 of a flow in flight."""
    env = simpy.Environment()
    links = [RoundRobinLink(env, each) for each in capacity]
    finish = {}

    def packet(key, path, done):
        for link in path:
            yield links[link].send(key, size)
        done.succeed()

    def flow(key, path, nbytes):
        flying = []
        for _ in range(round(nbytes / size)):
            if len(flying) == 8:
                yield flying.pop(0)
            flying.append(done := env.event())
            env.process(packet(key, path, done))
        for done in flying:
            yield done
        finish[key] = env.now

    for key, (path, nbytes) in enumerate(flows):
        env.process(flow(key, path, nbytes))
    env.run()
    return [finish[key] for key in range(len(flows))]


@pytest.mark.parametrize(
    ("capacity", "flows"),
    [
        ([1.0], [((0,), 64.0)]),
        ([1.0], [((0,), 64.0), ((0,), 64.0)]),
        ([1.0], [((0,), 64.0), ((0,), 128.0)]),
        ([1.0, 2.0], [((0, 1), 64.0), ((1,), 64.0)]),
        ([1.0, 1.0, 1.0], [((0, 2), 64.0), ((1, 2), 64.0)]),
        ([4.0, 1.0], [((0, 1), 64.0), ((0,), 192.0)]),
    ],
    ids=["alone", "shared", "short and long", "two hops", "into one", "held back elsewhere"],
)
def test_packets_take_as_long_as_the_fluid(capacity, flows):
    transfers = [Transfer(0.0, path, (nbytes,) * len(path)) for path, nbytes in flows]
    fluid, _ = simulate(capacity, transfers)
    np.testing.assert_allclose(packets(capacity, flows, 1.0), fluid, rtol=PACKET_TOLERANCE)
