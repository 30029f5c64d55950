"""Beds that are really built: what is in them, where bytes go, and that nothing stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foreshard.calibration.testbed.bed import Testbed
from foreshard.calibration.testbed.starting import run_in_bed
from foreshard.topologies import cli

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("can_build")]

RATE = "200 Mbit/s"
MIB = 1 << 20

# One rank sends so many bytes to another, which says how long it waited for them from the first one on.
TRANSFER = """
import os, socket, sys, time
sender, peer, node, nbytes = map(int, sys.argv[1:])
rank, address = int(os.environ["RANK"]), f"10.77.0.{node + 1}"
if rank == peer:
    with socket.create_server((address, 7000)) as listening:
        into = listening.accept()[0]
    received = len(into.recv(1))
    begin = time.perf_counter()
    while received < nbytes:
        received += len(into.recv(1 << 20))
    print(time.perf_counter() - begin)
elif rank == sender:
    for _ in range(1000):
        try:
            out = socket.create_connection((address, 7000))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    out.sendall(bytes(nbytes))
"""


def transfer(bed: Testbed, sender: int, peer: int, nbytes: int) -> float:
    node = next(node for node in range(bed.shape.nodes) if sum(bed.shape.ranks_per_node[: node + 1]) > peer)
    command = [sys.executable, "-c", TRANSFER, *map(str, (sender, peer, node, nbytes))]
    results = bed.run(command, capture=True, timeout_s=60)
    assert [result.exit_code for result in results] == [0] * bed.shape.world_size, results
    return float(results[peer].stdout)


def namespaces_of(pid: int) -> list[str]:
    folder = Path("/run/netns")
    return [name for name in os.listdir(folder) if name.startswith(f"foreshard-{pid}-")] if folder.exists() else []


def test_bytes_between_nodes_pass_their_links_and_bytes_inside_one_its_loopback():
    """4 MiB to the other node are sent by the first and received by the second; 4 MiB inside load no link."""
    with Testbed("2x2", RATE) as bed:
        before = bed.counters()
        transfer(bed, sender=0, peer=2, nbytes=4 * MIB)
        across = bed.counters()
        transfer(bed, sender=0, peer=1, nbytes=4 * MIB)
        inside = bed.counters()
    sent, received = across[0].sent - before[0].sent, across[1].received - before[1].received
    assert 4 * MIB <= sent <= 4.1 * MIB
    assert 4 * MIB <= received <= 4.1 * MIB
    assert across[0].looped - before[0].looped < 0.01 * MIB
    assert 4 * MIB <= inside[0].looped - across[0].looped <= 4.1 * MIB
    assert inside[0].sent - across[0].sent < 0.01 * MIB


@pytest.mark.parametrize("sender", [0, 1])
def test_no_link_carries_more_than_its_rate(sender):
    """What comes in needs its bytes over the rate, less what a burst at each end of the cable lets through at once."""
    nbytes = 16 * MIB
    with Testbed("2x1", RATE) as bed:
        took = transfer(bed, sender=sender, peer=1 - sender, nbytes=nbytes)
        assert took >= (nbytes - 3 * bed.link.burst_bytes) / bed.link.rate_bytes_per_s


def test_every_node_is_shaped_in_both_directions():
    """The node's end of the cable and the switch's have a token bucket of the rate asked for."""
    with Testbed("3x1", RATE, burst="256 KiB") as bed:
        places = [(name, "eth0") for name in bed.namespaces]
        places += [(bed._network.switch, f"port{node}") for node in range(3)]
        for namespace, interface in places:
            shown = subprocess.run(
                ["tc", "-n", namespace, "-j", "qdisc", "show", "dev", interface],
                env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin"},
                capture_output=True, check=True,
            )  # fmt: skip
            (queue,) = json.loads(shown.stdout)
            assert queue["kind"] == "tbf"
            assert queue["options"]["rate"] == 25e6
            assert queue["options"]["burst"] == pytest.approx(256 * 1024, rel=0.01)


def test_nodes_may_have_different_numbers_of_ranks():
    """2+1: three ranks, the third in a namespace of its own."""
    with Testbed("2+1", RATE) as bed:
        where = bed.run(["readlink", "/proc/self/ns/net"], capture=True)
    names = [result.stdout for result in where]
    assert names[0] == names[1] != names[2]
    assert os.readlink("/proc/self/ns/net") not in {name.strip() for name in names}


def test_pinned_ranks_keep_to_one_core():
    """Rank after rank, one core each."""
    with Testbed("1x2", RATE) as bed:
        shown = bed.run([sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"], capture=True, pinned=True)
    cores = sorted(os.sched_getaffinity(0))
    assert [int(result.stdout) for result in shown] == [cores[rank % len(cores)] for rank in range(2)]


def test_the_host_keeps_its_interfaces():
    """Nothing of a bed is to be seen outside its namespaces."""
    before = Path("/proc/net/dev").read_text().count("\n")
    with Testbed("2x1", RATE):
        assert Path("/proc/net/dev").read_text().count("\n") == before
    assert Path("/proc/net/dev").read_text().count("\n") == before


def test_an_exception_inside_takes_the_bed_down():
    """Nothing is left after an error of whoever uses the bed."""
    bed = Testbed("2x1", RATE)
    with pytest.raises(ZeroDivisionError), bed:
        raise ZeroDivisionError
    assert not set(bed.namespaces) & set(namespaces_of(os.getpid()))


def test_one_failed_rank_ends_the_others(monkeypatch):
    """Rank 1 fails at once; rank 0 would sleep for an hour and is ended by a signal."""
    monkeypatch.setattr("foreshard.calibration.testbed.ranks._GRACE_S", 0.1)
    with Testbed("2x1", RATE) as bed:
        results = bed.run(["sh", "-c", 'test "$RANK" = 1 && exit 3; sleep 3600'])
    assert [result.exit_code for result in results] == [-signal.SIGTERM, 3]


def test_a_rank_that_ignores_being_asked_is_killed_after_the_time_is_over(monkeypatch):
    """A time-out ends everything that was started, children of ranks too."""
    monkeypatch.setattr("foreshard.calibration.testbed.ranks._KILL_S", 0.2)
    with Testbed("1x1", RATE) as bed:
        (result,) = bed.run(["sh", "-c", "trap '' TERM; sleep 3600 & wait; wait"], timeout_s=0.5)
        assert result.exit_code == -signal.SIGKILL


class Held:
    """`foreshard testbed` in another process, whose only rank sleeps."""

    def __init__(self) -> None:
        code = "import sys; from foreshard.topologies.cli import run; sys.exit(run(sys.argv[1:]))"
        command = ["testbed", "--shape", "2x1", "--rate", RATE, "--", "sh", "-c", "echo $$; exec sleep 3600"]
        self.process = subprocess.Popen([sys.executable, "-c", code, *command], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.ranks = [int(self.process.stdout.readline()) for _ in range(2)]

    def all_gone(self) -> bool:
        """Whether the ranks ended within some seconds."""
        return wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in self.ranks))


def wait_until(condition) -> bool:
    until = time.monotonic() + 20
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_command_leaves_nothing(number, code):
    """No namespace, no rank, and the exit code that shells expect."""
    held = Held()
    assert len(namespaces_of(held.process.pid)) == 3
    held.process.send_signal(number)
    assert held.process.wait(30) == code
    assert namespaces_of(held.process.pid) == []
    assert held.all_gone()


def test_what_a_killed_run_left_is_removed_by_the_next():
    """Its ranks die with it; its namespaces are found by the dead owner in their names. Those in use stay."""
    with Testbed("1x1", RATE) as in_use:
        held = Held()
        held.process.kill()
        held.process.wait(30)
        left = namespaces_of(held.process.pid)
        assert len(left) == 3
        assert held.all_gone()
        with Testbed("1x1", RATE) as bed:
            assert set(left) <= set(bed.leftovers)
            assert namespaces_of(held.process.pid) == []
            assert set(in_use.namespaces) <= set(namespaces_of(os.getpid()))


def test_the_command_ends_as_its_first_failed_rank(capsys):
    """Codes go through, signals as 128 and their number."""
    assert cli.run(["testbed", "--shape", "1x2", "--rate", RATE, "--", "true"]) == 0
    assert cli.run(["testbed", "--shape", "1x2", "--rate", RATE, "--", "sh", "-c", "exit 7"]) == 7
    assert cli.run(["testbed", "--shape", "1x1", "--rate", RATE, "--", "sh", "-c", "kill -KILL $$"]) == 137


def test_a_command_that_is_not_there_is_named(capfd):
    """One sentence from the rank."""
    assert cli.run(["testbed", "--shape", "1x1", "--rate", RATE, "--", "no-such-command"]) == 1
    assert "cannot start 'no-such-command'" in capfd.readouterr().err


def test_a_rank_that_is_killed_is_named_and_those_that_are_ended_for_it_are_not(capfd, monkeypatch, tmp_path):
    """Rank 1 falls at once; rank 0 would go on for a minute."""
    monkeypatch.setattr("foreshard.calibration.testbed.ranks._GRACE_S", 0.1)
    falls = "import os, time; os.kill(os.getpid(), 9) if os.environ['RANK'] == '1' else time.sleep(60)"
    (tmp_path / "rank_module.py").write_text(falls, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Testbed("2x1", RATE) as bed:
        assert run_in_bed(bed, ["rank_module"]) == 1
    assert capfd.readouterr().err == "error: rank 1 was ended by SIGKILL: was it out of memory (dmesg tells)?\n"
