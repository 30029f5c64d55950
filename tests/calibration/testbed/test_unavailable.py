"""Machines that cannot build a testbed: one sentence, exit code 2."""

from __future__ import annotations

import subprocess

import pytest

from foreshard.calibration.testbed import namespaces
from foreshard.topologies import cli

COMMAND = ["testbed", "--shape", "2x1", "--rate", "1 Gbit/s"]


def told(capsys) -> str:
    assert cli.run(COMMAND) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_without_root(monkeypatch, capsys):
    """What to do is said."""
    monkeypatch.setattr(namespaces, "_tool", lambda name: f"/sbin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "needs root: use sudo" in told(capsys)


def test_without_iproute2(monkeypatch, capsys):
    """Both tools are missing: the package that has them is named."""
    monkeypatch.setattr(namespaces, "_tool", lambda name: None)
    assert "ip and tc: install the package iproute2" in told(capsys)


def test_on_another_system(monkeypatch, capsys):
    """Only Linux has what it takes."""
    monkeypatch.setattr("sys.platform", "darwin")
    assert "this is darwin" in told(capsys)


@pytest.mark.parametrize(
    ("refused", "said", "why"),
    [
        ("qdisc", "Error: Specified qdisc kind is unknown.", "no token bucket filter (sch_tbf)"),
        ("bridge", "Error: Unknown device type.", "no virtual Ethernet or no bridge"),
        ("netns add", 'mount --make-shared /run/netns failed: Operation not permitted', "CAP_SYS_ADMIN"),
        ("netns add", "something new", "something new"),
    ],
)  # fmt: skip
def test_what_the_kernel_refuses_is_explained_and_taken_back(monkeypatch, capsys, refused, said, why):
    """The first step that fails names what is missing; what was there already is removed."""
    there: list[str] = []

    def run(arguments, **_):
        line = " ".join(arguments[1:])
        if refused in line:
            return subprocess.CompletedProcess(arguments, 2, "", said)
        if line.startswith("netns add"):
            there.append(arguments[-1])
        if line.startswith("netns delete"):
            there.remove(arguments[-1])
        return subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(namespaces, "_tool", lambda name: f"/sbin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(namespaces, "_namespaces", lambda: iter(tuple(there)))
    monkeypatch.setattr(namespaces.subprocess, "run", run)
    assert why in told(capsys)
    assert there == []
