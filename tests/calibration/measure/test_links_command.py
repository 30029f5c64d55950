"""`foreshard calibrate links` from the outside: mistakes, and two ranks that really talk."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from foreshard.simulator.measured.profile import Profile, Provenance
from foreshard.simulator.measured.profile_file import read_profile, save_profile
from foreshard.topologies import cli


@pytest.fixture(autouse=True)
def _no_torchrun(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)


def run(tmp_path, *arguments):
    return cli.run(["calibrate", "links", "-o", str(tmp_path / "bed.json"), *arguments])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "torchrun --nproc-per-node"),
        (["--nproc", "2", "--testbed", "2x1", "--rate", "1 Gbit/s"], "both start ranks"),
        (["--testbed", "2x2"], "needs --rate"),
        (["--nproc", "2", "--pin"], "of a testbed"),
        (["--nproc", "2", "--kinds", "gather"], "'gather' is none of"),
        (["--nproc", "2", "--largest", "5"], "--largest: '5' has no unit"),
        (["--nproc", "2", "--smallest", "2 MiB", "--largest", "1 MiB"], "no more than --largest"),
    ],
)
def test_mistakes_end_before_anything_is_measured(tmp_path, capsys, arguments, told):
    """Exit code 2, a sentence, and no file."""
    assert run(tmp_path, *arguments) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_all_mistakes_are_told_at_once(tmp_path, capsys):
    """Of the start, the testbed, the plan and the output."""
    wrong = ["--nproc", "2", "--rate", "fast", "--burst", "1", "--kinds", "gather", "--largest", "5"]
    (tmp_path / "bed.json").mkdir()
    assert run(tmp_path, *wrong) == 2
    told = capsys.readouterr().err
    assert "4 mistakes" in told
    for part in ("are of a testbed", "'gather' is none of", "'5' has no unit", "is a folder"):
        assert part in told


@pytest.mark.parametrize("command", ["links", "device"])
def test_a_profile_of_another_machine_is_refused_before_anything_is_measured(tmp_path, capsys, command):
    """Another processor, and four ranks where two are started now."""
    profile = Profile(
        name="other", backend="gloo", device="cpu", device_name="another processor", ranks_per_node=(4,),
        provenance=(Provenance(name="links", created="then", command="made up", hardware="there"),),
    )  # fmt: skip
    save_profile(profile, tmp_path / "bed.json")
    assert cli.run(["calibrate", command, "-o", str(tmp_path / "bed.json"), "--nproc", "2"]) == 2
    told = capsys.readouterr().err
    assert "device_name = 'another processor' in the profile, but now it is" in told
    assert "ranks_per_node = (4,) in the profile, but now it is (2,)" in told
    assert [path.name for path in tmp_path.iterdir()] == ["bed.json"]


def test_a_file_that_is_no_profile_is_refused_before_anything_is_measured(tmp_path, capsys):
    """It stays as it is."""
    (tmp_path / "bed.json").write_text("{}")
    assert run(tmp_path, "--nproc", "2") == 2
    assert (tmp_path / "bed.json").read_text() == "{}"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
def test_two_ranks_on_one_node_make_a_profile(tmp_path, capsys):
    """All kinds and the pair, each size once; the points' own file is gone."""
    quick = ["--factor", "64", "--smallest", "16 KiB", "--largest", "1 MiB", "--point-time", "10 ms", "--json"]
    assert run(tmp_path, "--nproc", "2", *quick) == 0
    profile = read_profile(tmp_path / "bed.json")
    assert profile.backend == "gloo"
    assert profile.ranks_per_node == (2,)
    assert sorted(curve.kind for curve in profile.collectives) == [
        "all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter",
    ]  # fmt: skip
    for curve in (*profile.collectives, *profile.pairs):
        assert [point.nbytes for point in curve.points] == [1 << 14, 1 << 20]
    assert {constant.name for constant in profile.constants} == {"gloo_base_s", "gloo_step_s"}
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 12
    assert [path.name for path in tmp_path.iterdir()] == ["bed.json"]
