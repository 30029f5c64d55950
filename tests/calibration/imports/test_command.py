"""`foreshard calibrate import`: whole or not at all, the same every time, beside what a profile has already."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from foreshard.calibration.imports.imported_profile import joined
from foreshard.simulator.measured.profile import WorkFit
from foreshard.simulator.measured.profile_file import read_profile, save_profile
from foreshard.topologies.cli import main
from foreshard.topologies.errors import InputError

from .writing import collective_event, log_text, published, write_trace

MIB = 2**20
ROWS = [(MIB, 50e-6), (16 * MIB, 200e-6)]
README = Path(__file__).parents[3] / "README.md"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with two logs and a trace of one of two ranks, and the command run in it."""
    for name, kind, ranks in (("a2a.log", "all_to_all", 16), ("ar.log", "all_reduce", 8)):
        (tmp_path / name).write_text(log_text(kind, ranks, ROWS, per_node=8))
        os.utime(tmp_path / name, (1_700_000_000, 1_700_000_000))
    write_trace(tmp_path / "rank0.json.gz", [collective_event(1_700_000_000_000_000, 50)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(here, monkeypatch, capsys):
    """The command as a shell starts it: exit code, standard output and standard error."""

    def start(*args):
        monkeypatch.setattr(sys, "argv", ["foreshard", "calibrate", "import", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return start


def test_the_profile_is_written_and_the_tables_say_what_is_in_it(run):
    """Curves with their range, points and rows; notes of what is not known."""
    code, out, err = run("a2a.log", "ar.log", "-o", "p.json")
    assert code == 0
    assert re.search(r"all_to_all of 8\+8 ranks +1.0 MiB +16.0 MiB +2 +2 ", out)
    assert "4 points are one row each" in out
    assert "profile written to p.json" in err
    profile = read_profile("p.json")
    assert profile.name == "p"
    assert profile.provenance[0].command == "foreshard calibrate import a2a.log ar.log -o p.json"
    assert profile.provenance[0].created == "2023-11-14T22:13:20+00:00"


def test_the_same_files_give_the_same_bytes(run, here):
    """Written anew, and laid over what they gave before."""
    run("a2a.log", "rank0.json.gz", "--nodes", "2", "-o", "p.json")
    first = (here / "p.json").read_bytes()
    run("a2a.log", "rank0.json.gz", "--nodes", "2", "-o", "p.json")
    assert (here / "p.json").read_bytes() == first
    (here / "p.json").unlink()
    run("a2a.log", "rank0.json.gz", "--nodes", "2", "-o", "p.json")
    assert (here / "p.json").read_bytes() == first


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("a2a.log", "no.log"), "no.log: cannot be read: No such file"),
        (("a2a.log", "ar.log", "--nodes", "4"), "a2a.log: it lists 2 nodes, but --nodes says 4"),
        (("a2a.log", "--kind", "alltoall"), "'alltoall' is none of all_to_all, all_reduce"),
        (("a2a.log", "--kind", "all_reduce", "--kind", "all_gather"), "is said twice"),
        (("a2a.log", "--cluster", "p5"), "'p5' is neither a machine nor a file"),
        (("rank0.json.gz",), "give --ranks-per-node or --nodes"),
        (("half.json",), "half.json: event 0: the file ends within it: it is cut off"),
        (("text.log",), "text.log: line 1: 'hello' is not a row of nccl-tests"),
    ],
)
def test_a_mistake_ends_with_exit_code_2_and_nothing_written(run, here, args, message):
    """One sentence, no traceback, no file, nothing half written beside it."""
    (here / "half.json").write_text('{"traceEvents": [{"name": ')
    (here / "text.log").write_text("hello\n")
    before = sorted(here.iterdir())
    code, _, err = run(*args, "-o", "p.json")
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert sorted(here.iterdir()) == before


def test_an_existing_profile_stays_as_it_is_if_anything_is_wrong(run, here):
    """A later mistake does not touch it, nor does another machine's file."""
    run("a2a.log", "-o", "p.json")
    first = (here / "p.json").read_bytes()
    (here / "other.log").write_text(log_text("all_reduce", 8, ROWS, per_node=8, gpu="NVIDIA H200"))
    code, _, err = run("other.log", "-o", "p.json")
    assert (code, "device_name = 'NVIDIA H100 80GB HBM3' in the profile, but 'NVIDIA H200' was imported" in err) == (
        2,
        True,
    )
    assert (here / "p.json").read_bytes() == first


def test_imports_one_after_the_other_lie_in_one_profile(run):
    """Curves of other collectives and shapes stay, those of the same give way; provenance of both is kept."""
    run("a2a.log", "-o", "p.json")
    run("ar.log", "-o", "p.json")
    run("rank0.json.gz", "--nodes", "1", "-o", "p.json")
    profile = read_profile("p.json")
    assert [(curve.kind, curve.ranks_per_node) for curve in profile.collectives] == [
        ("all_to_all", (8, 8)), ("all_reduce", (8,)), ("all_reduce", (2,)),
    ]  # fmt: skip
    assert len(profile.provenance) == 3
    assert profile.ranks_per_node == (8, 8)


def test_measured_work_stays_where_only_collectives_are_imported(run):
    """What calibrate device measured of the same GPU is not touched."""
    run("a2a.log", "-o", "p.json")
    fit = WorkFit(kind="pad", features=("bytes",), coefficients=(1e-12,), residuals=())
    save_profile(replace(read_profile("p.json"), work=(fit,)), "p.json")
    run("ar.log", "-o", "p.json")
    assert read_profile("p.json").work == (fit,)


def test_backends_are_not_joined(run):
    """gloo on CPUs and NCCL on GPUs are not one machine; every difference is told."""
    run("a2a.log", "-o", "p.json")
    new = read_profile("p.json")
    with pytest.raises(InputError) as error:
        joined(replace(new, backend="gloo", device="cpu"), new)
    assert [problem.split()[0] for problem in error.value.problems] == ["backend", "device"]


def test_json_has_every_point_in_bytes_and_seconds(run):
    """Notes go to standard error then."""
    _, out, err = run("a2a.log", "-o", "p.json", "--json")
    rows = json.loads(out)["collectives"]
    assert [row["bytes"] for row in rows] == [MIB, 16 * MIB]
    assert rows[1]["busbw_bytes_per_s"] == pytest.approx(16 * MIB / 200e-6 * 15 / 16, rel=1e-4)
    assert "note: " in err


def test_the_readme_shows_what_is_printed(run, here):
    """The example of the README is what logs of the published rows of two nodes give."""
    shown = re.search(r" {4}\$ foreshard calibrate import (.*)\n((?: {4}.*\n|\n)+)", README.read_text(encoding="utf-8"))
    assert shown is not None
    for kind, points in ((key[0], points) for key, points in published("collectives_p5.csv").items() if key[1] == 2):
        (here / f"{kind}-2-nodes.log").write_text(log_text(kind, 16, points, per_node=8))
    code, out, _ = run(*shown[1].split())
    assert code == 0
    assert out.split() == shown[2].split()
