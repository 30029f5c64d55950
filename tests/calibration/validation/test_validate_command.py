"""What `foreshard validate` refuses before anything is measured, and which testbeds a list names."""

import pytest

from foreshard.calibration.validation.validate_command import beds_of
from foreshard.topologies import cli
from foreshard.topologies.errors import InputError


def test_beds_are_named_alike_however_they_are_written():
    assert beds_of(" 2x2@500 Mbit/s,4X1@1 Gbit/s,") == [("2x2", "500 Mbit/s"), ("4x1", "1 Gbit/s")]


def test_a_bed_that_is_named_twice_counts_once():
    assert beds_of("2x2@500 Mbit/s,2x1@500 Mbit/s,2x2@500 Mbit/s") == [("2x2", "500 Mbit/s"), ("2x1", "500 Mbit/s")]


def test_every_mistake_of_every_bed_is_told():
    with pytest.raises(InputError) as caught:
        beds_of("2y2@500,2x2,3x0@500 Mbit/s")
    told = caught.value.problems
    assert len(told) == 4
    for problem, part in zip(told, ("2y2", "has no unit", "'2x2': expected a shape and a rate", "3x0"), strict=True):
        assert part in problem


@pytest.mark.parametrize("beds", ["", " , "])
def test_no_bed_is_a_mistake(beds):
    with pytest.raises(InputError, match="names no testbed"):
        beds_of(beds)


def test_a_wrong_rate_of_the_last_bed_and_a_wrong_plot_end_it_before_the_first_bed_is_built(tmp_path, capsys):
    beds = "2x2@500 Mbit/s,2x1@fast"
    output = ["-o", str(tmp_path / "kept"), "--plot", str(tmp_path / "found.jpeg")]
    assert cli.run(["validate", "--testbed", beds, *output]) == 2
    told = capsys.readouterr().err
    assert "2 mistakes" in told
    assert "'fast'" in told
    assert "found.jpeg" in told
    assert not list((tmp_path / "kept").iterdir())
