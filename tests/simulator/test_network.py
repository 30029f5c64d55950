"""The network in simulated time: exact small cases."""

from __future__ import annotations

import numpy as np
import pytest
import simpy

from foreshard.simulator.comms.network import Network
from foreshard.topologies.errors import InputError, NoRouteError


def run(capacity, transfers):
    """Finish time of every transfer (start, key, links, nbytes, floor_s), and the network."""
    env = simpy.Environment()
    finished = {}
    calls = []

    def on_finish(keys):
        calls.append(keys)
        finished.update(dict.fromkeys(keys, env.now))

    network = Network(env, np.asarray(capacity, dtype=float), on_finish)

    def starter(at, *args):
        yield env.timeout(at)
        network.start(*args)

    for at, *args in transfers:
        env.process(starter(at, *args))
    env.run()
    network.calls = calls
    return finished, network


def test_a_lone_transfer_takes_bytes_over_capacity_of_its_tightest_link():
    finished, network = run([10.0, 2.0], [(1.0, "a", [0, 1], [40.0, 10.0], 0.0)])
    assert finished == {"a": 6.0}
    np.testing.assert_allclose(network.link_bytes, [40.0, 10.0])


def test_two_flows_on_one_link_take_twice_as_long_as_on_two():
    shared, _ = run([5.0], [(0.0, "a", [0], [10.0], 0.0), (0.0, "b", [0], [10.0], 0.0)])
    apart, _ = run([5.0, 5.0], [(0.0, "a", [0], [10.0], 0.0), (0.0, "b", [1], [10.0], 0.0)])
    assert shared == {"a": 4.0, "b": 4.0}
    assert apart == {"a": 2.0, "b": 2.0}


def test_a_short_transfer_delays_a_long_one_by_its_own_share_only():
    finished, _ = run([1.0], [(0.0, "long", [0], [10.0], 0.0), (4.0, "short", [0], [1.0], 0.0)])
    assert finished == {"short": 6.0, "long": 11.0}


def test_a_coflow_held_back_elsewhere_leaves_its_share_to_others():
    finished, _ = run([10.0, 1.0], [(0.0, "slow", [0, 1], [9.0, 9.0], 0.0), (0.0, "fast", [0], [81.0], 0.0)])
    assert finished == pytest.approx({"slow": 9.0, "fast": 9.0})


def test_a_floor_is_the_shortest_possible_transfer():
    finished, _ = run([10.0], [(0.0, "a", [0], [10.0], 3.0), (0.0, "b", [0], [20.0], 0.0)])
    assert finished == pytest.approx({"a": 3.0, "b": 3.0})


def test_a_transfer_that_reaches_half_of_its_link_leaves_no_more_to_another_one():
    alone, network = run([10.0], [(0.0, "a", [0], [10.0], 0.0, 2.0)])
    both, _ = run([10.0], [(0.0, "a", [0], [10.0], 0.0, 2.0), (0.0, "b", [0], [10.0], 0.0, 2.0)])
    assert alone == pytest.approx({"a": 2.0})
    assert both == pytest.approx({"a": 4.0, "b": 4.0})
    np.testing.assert_allclose(network.link_bytes, [10.0])


def test_a_transfer_without_bytes_takes_its_floor():
    finished, _ = run([1.0], [(0.0, "a", [], [], 2.5), (0.0, "b", [0], [0.0], 0.0), (1.0, "c", [0], [0.0], 0.5)])
    assert finished == {"a": 2.5, "b": 0.0, "c": 1.5}


def test_equal_transfers_finish_in_one_call_in_order_of_start():
    finished, network = run([3.0] * 7, [(0.1, index, [index], [1.0], 0.0) for index in reversed(range(7))])
    assert network.calls == [list(reversed(range(7)))]
    assert network.events <= 4
    assert len(set(finished.values())) == 1


def test_starting_again_from_the_finish_call_works():
    env = simpy.Environment()
    times = []

    def on_finish(keys):
        times.append(env.now)
        if len(times) < 3:
            network.start("again", np.array([0]), np.array([2.0]))

    network = Network(env, np.array([1.0]), on_finish)
    network.start("first", np.array([0]), np.array([2.0]))
    env.run()
    assert times == [2.0, 4.0, 6.0]


def test_disjoint_coflows_are_not_solved_again_when_another_one_ends():
    transfers = [(0.0, index, [index], [1.0 + index], 0.0) for index in range(50)]
    _, network = run([1.0] * 50, transfers)
    assert network.events <= 2 * 50 + 2


def test_a_link_without_bandwidth_and_senseless_bytes_are_refused():
    network = Network(simpy.Environment(), np.array([0.0, 1.0]), lambda keys: None)
    with pytest.raises(NoRouteError, match="link 0"):
        network.start("a", np.array([0]), np.array([1.0]))
    with pytest.raises(InputError, match="not negative"):
        network.start("a", np.array([1]), np.array([-1.0]))
    with pytest.raises(InputError, match="finite"):
        network.start("a", np.array([1]), np.array([1.0]), np.inf)


def paced(paces, floor_s=4.0, nbytes=(8.0,)):
    """When a transfer over a link of 10 B/s ends whose pace changes at some times."""
    env = simpy.Environment()
    ended = []
    network = Network(env, np.array([10.0]), lambda keys: ended.append(env.now))

    def story():
        for at, pace in paces:
            yield env.timeout(at - env.now)
            network.pace("a", pace)

    env.process(story())
    network.start("a", np.arange(len(nbytes)), np.array(nbytes), floor_s)
    env.run()
    return ended


@pytest.mark.parametrize("nbytes", [(8.0,), ()])
def test_a_pace_stretches_the_floor_from_then_on(nbytes):
    """4 s at half the pace take 8 s; half of them at full pace and the others at a quarter 2 s and 8 s."""
    assert paced([(0.0, 0.5)], nbytes=nbytes) == [8.0]
    assert paced([(2.0, 0.25)], nbytes=nbytes) == [10.0]
    assert paced([(0.0, 0.5), (4.0, 1.0)], nbytes=nbytes) == [6.0]
    assert paced([(0.0, 1.0), (9.0, 0.5)], nbytes=nbytes) == [4.0]
