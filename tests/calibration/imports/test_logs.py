"""Logs of nccl-tests as points of a profile: collective, shape, sizes and times, and what is refused by line."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foreshard.calibration.imports.log_rows import Kinds
from foreshard.simulator.measured.profile import CollectiveCurve
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import load_preset

from .writing import log_text

MIB = 2**20
ROWS = [(MIB, 50e-6), (16 * MIB, 200e-6), (256 * MIB, 2000e-6)]


def write(folder, name, *args, **more):
    path = folder / name
    path.write_text(log_text(*args, **more))
    return path


def points(curve: CollectiveCurve):
    return [(point.nbytes, point.median_s) for point in curve.points]


def test_several_logs_become_the_curves_of_one_profile(tmp_path, profile_of):
    """One curve for every collective and shape; hosts of the device list are nodes; versions and device are told."""
    files = [
        write(tmp_path, "a2a.log", "all_to_all", 16, ROWS, per_node=8),
        write(tmp_path, "ar.log", "all_reduce", 16, ROWS, per_node=8),
        write(tmp_path, "ar1.log", "all_reduce", 8, ROWS, per_node=8),
        write(tmp_path, "odd.log", "all_gather", 6, ROWS, per_node=4),
    ]
    profile = profile_of(*files)
    assert [(curve.kind, curve.ranks_per_node) for curve in profile.collectives] == [
        ("all_gather", (4, 2)), ("all_reduce", (8,)), ("all_reduce", (8, 8)), ("all_to_all", (8, 8)),
    ]  # fmt: skip
    assert all(points(curve) == [pytest.approx(row) for row in ROWS] for curve in profile.collectives)
    assert profile.ranks_per_node == (8, 8)
    assert (profile.backend, profile.device, profile.device_name) == ("nccl", "cuda", "NVIDIA H100 80GB HBM3")
    (provenance,) = profile.provenance
    assert provenance.versions == {"nccl": "2.28.7", "nccl-tests": "2.17.6"}
    assert sum("sha256" in note for note in provenance.notes) == 4
    assert "mean of 20 runs" in provenance.notes[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]),
    nodes=st.integers(1, 4),
    per_node=st.integers(1, 8),
    sizes=st.lists(st.integers(20, 33), min_size=1, max_size=6, unique=True),
    rates=st.lists(st.floats(1e9, 400e9), min_size=6, max_size=6),
)
def test_what_a_log_says_is_what_the_profile_holds(tmp_path, profile_of, kind, nodes, per_node, sizes, rates):
    """Sizes, times to the digits printed, and ranks of each node come back, for every collective and shape."""
    if nodes * per_node < 2:
        return
    rows = [(2**power, 2**power / rate) for power, rate in zip(sorted(sizes), rates, strict=False)]
    # The first row holds the set-up of connections where it is far slower than the next; the reader's own tests try it.
    rows = [(nbytes, max(time for _, time in rows[: place + 1])) for place, (nbytes, _) in enumerate(rows)]
    path = write(tmp_path, "some.log", kind, nodes * per_node, rows, per_node=per_node)
    (curve,) = profile_of(path).collectives
    assert (curve.kind, curve.ranks_per_node) == (kind, (per_node,) * nodes)
    for (nbytes, time), point in zip(rows, curve.points, strict=True):
        assert point.nbytes == nbytes
        assert point.median_s == pytest.approx(time, abs=0.006e-6)
        assert point.low_s == point.median_s == point.high_s


def test_nodes_come_from_the_options_where_no_line_tells(tmp_path, profile_of):
    """Ranks fill nodes as said; nothing is guessed, and what cannot be is refused."""
    path = write(tmp_path, "bare.log", "all_reduce", 16, ROWS)
    assert profile_of(path, per_node=4).collectives[0].ranks_per_node == (4, 4, 4, 4)
    assert profile_of(path, nodes=2).collectives[0].ranks_per_node == (8, 8)
    for said, message in (
        ({}, "does not tell which of them share a node: give --ranks-per-node or --nodes"),
        ({"per_node": 5}, "16 ranks, which do not fill nodes of 5"),
        ({"nodes": 3}, "cannot be shared evenly by --nodes 3"),
        ({"nodes": 2, "per_node": 4}, "--nodes 2 with --ranks-per-node 4 are 8"),
    ):
        with pytest.raises(InputError, match=message):
            profile_of(path, **said)


def test_a_device_list_and_options_may_not_disagree(tmp_path, profile_of):
    """What the log lists is what ran."""
    path = write(tmp_path, "listed.log", "all_reduce", 16, ROWS, per_node=8)
    assert profile_of(path, nodes=2, per_node=8).ranks_per_node == (8, 8)
    with pytest.raises(InputError, match="its nodes have 8 ranks, but --ranks-per-node says 4"):
        profile_of(path, per_node=4)
    with pytest.raises(InputError, match="lists 2 nodes, but --nodes says 4"):
        profile_of(path, nodes=4)


def test_a_device_list_with_holes_tells_no_nodes(tmp_path, profile_of):
    """Some ranks' lines, or a number that no machine has, are no list of all; nothing is made up between them."""
    path = write(tmp_path, "holes.log", "all_reduce", 16, ROWS, per_node=8)
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "Rank  3 " not in line))
    with pytest.raises(InputError, match="does not tell which of them share a node"):
        profile_of(path)
    path.write_text(whole.replace("Rank 15 ", "Rank 99999999999 "))
    assert profile_of(path, nodes=2).ranks_per_node == (8, 8)


def test_every_file_that_cannot_be_used_is_named_with_its_line(tmp_path, profile_of):
    """All mistakes of all files at once: wrong values, one rank, a missing file, an archive, an empty file."""
    wrong = write(tmp_path, "wrong.log", "all_reduce", 16, ROWS, per_node=8, wrong=3)
    single = write(tmp_path, "single.log", "all_reduce", 1, ROWS, per_node=1)
    archive = tmp_path / "logs.tar"
    archive.write_bytes(b"\0" * 257 + b"ustar" + b"\0" * 300)
    empty = tmp_path / "empty.log"
    empty.write_bytes(b" \n")
    with pytest.raises(InputError) as error:
        profile_of(wrong, single)
    text = str(error.value)
    assert "wrong.log: line 25: 3 wrong values" in text
    assert "single.log: line 10: one rank only" in text
    with pytest.raises(InputError) as error:
        profile_of(archive, empty, tmp_path / "none.log")
    text = str(error.value)
    assert "logs.tar: is an archive: unpack it" in text
    assert "empty.log: is empty" in text
    assert "none.log: cannot be read: No such file" in text


def test_rows_faster_than_the_wires_of_the_machine_are_refused(tmp_path, profile_of):
    """With the machine named, a row that no link of it carries is told with its line."""
    path = write(tmp_path, "fast.log", "all_to_all", 16, [(MIB, 50e-6), (1024 * MIB, 1000e-6)], per_node=8)
    profile_of(path)
    with pytest.raises(InputError, match=r"fast.log: line 26: 1.0 GiB in .* is faster than the .* of p5.48xlarge"):
        profile_of(path, cluster_of=lambda nodes: load_preset("p5.48xlarge", nodes))


def test_a_log_that_names_no_collective_needs_to_be_told(tmp_path, profile_of):
    """--kind for all such logs, or for one by its name; a log that names its own is not changed by it."""
    named = write(tmp_path, "ar.log", "all_reduce", 16, ROWS, per_node=8)
    bare = tmp_path / "bare.log"
    bare.write_text(log_text("all_gather", 16, ROWS, per_node=8).replace("all_gather_perf", "it"))
    with pytest.raises(InputError, match="does not name its collective, and its columns fit all_gather, all_to_all"):
        profile_of(named, bare)
    for kinds in (Kinds(every="all_to_all"), Kinds(by_file={"bare.log": "all_to_all"})):
        assert [curve.kind for curve in profile_of(named, bare, kinds=kinds).collectives] == [
            "all_reduce",
            "all_to_all",
        ]
    with pytest.raises(InputError, match="is a log of all_reduce, but --kind says all_to_all"):
        profile_of(named, bare, kinds=Kinds(every="all_to_all", by_file={"ar.log": "all_to_all"}))
    with pytest.raises(InputError, match=r"--kind other.log=all_to_all: no such log is given"):
        profile_of(named, kinds=Kinds(by_file={"other.log": "all_to_all"}))


def test_a_size_that_two_logs_measure_has_their_median_and_spread(tmp_path, profile_of):
    """Contradicting rows are neither dropped nor chosen from: the interval holds both."""
    files = [
        write(tmp_path, f"{number}.log", "all_reduce", 8, [(MIB, time), (2 * MIB, 90e-6)], per_node=8)
        for number, time in enumerate([50e-6, 80e-6])
    ]
    first, second = profile_of(*files).collectives[0].points
    assert first.median_s == pytest.approx(65e-6)
    assert (first.low_s, first.high_s) == (pytest.approx(53e-6), pytest.approx(77e-6))
    assert (first.runs, second.runs) == (2, 2)
    assert second.low_s == second.high_s == pytest.approx(90e-6)


def test_the_same_content_is_refused_a_second_time(tmp_path, profile_of):
    """One measurement under two names would count twice."""
    first = write(tmp_path, "a.log", "all_reduce", 8, ROWS, per_node=8)
    second = write(tmp_path, "b.log", "all_reduce", 8, ROWS, per_node=8)
    with pytest.raises(InputError, match=r"b.log: has the content of .*a.log: give every measurement once"):
        profile_of(first, second)


def test_logs_of_different_devices_are_no_profile(tmp_path, profile_of):
    """A profile is of one machine; with and without NVIDIA in front is one device."""
    first = write(tmp_path, "a.log", "all_reduce", 8, ROWS, per_node=8, gpu="NVIDIA A100-SXM4-40GB")
    old = write(tmp_path, "b.log", "all_gather", 8, ROWS, per_node=8, gpu="A100-SXM4-40GB")
    other = write(tmp_path, "c.log", "all_to_all", 8, ROWS, per_node=8, gpu="NVIDIA H200")
    assert profile_of(first, old).device_name == "NVIDIA A100-SXM4-40GB"
    with pytest.raises(InputError, match="the files are of different devices"):
        profile_of(first, other)


def test_packed_logs_are_read(tmp_path, profile_of):
    """A log that gzip packed is the same log; one that is cut off is refused."""
    path = write(tmp_path, "a.log", "all_reduce", 8, ROWS, per_node=8)
    packed = tmp_path / "a.log.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert profile_of(packed).collectives == profile_of(path).collectives
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"a.log.gz: cannot be unpacked .*: is the file cut off"):
        profile_of(packed)


def test_sendrecv_is_no_part_of_a_profile(tmp_path, profile_of):
    """All ranks at once in a ring are neither a collective of training nor a pair of ranks."""
    text = log_text("broadcast", 8, ROWS, per_node=8).replace("broadcast_perf", "sendrecv_perf")
    path = tmp_path / "sr.log"
    path.write_text(text)
    with pytest.raises(InputError, match="is a log of sendrecv: a profile holds"):
        profile_of(path)


A100 = ("allreduce_old_header", "alltoall_old_header", "allgather_old_noredop", "reducescatter_old")


def test_real_logs_of_a_machine_make_a_profile(specimens, profile_of):
    """Four tools' logs of one node of A100s, two of which do not name their collective."""
    files = [specimens / "nccl" / f"sb_a100x8_{name}.log" for name in A100]
    kinds = Kinds(every="all_gather", by_file={"sb_a100x8_alltoall_old_header.log": "all_to_all"})
    profile = profile_of(*files, kinds=kinds)
    assert {(curve.kind, curve.ranks_per_node): len(curve.points) for curve in profile.collectives} == {
        ("all_reduce", (8,)): 32, ("all_to_all", (8,)): 29, ("all_gather", (8,)): 29, ("reduce_scatter", (8,)): 29,
    }  # fmt: skip
    assert profile.device_name == "A100-SXM4-40GB"


def test_every_real_log_is_taken_or_refused_with_a_reason(specimens, profile_of):
    """Whatever people publish ends in a profile or in an InputError with the file's name."""
    taken, refused = [], []
    for path in sorted((specimens / "nccl").glob("*.log")):
        try:
            taken.append(profile_of(path, per_node=1, kinds=Kinds(every="all_to_all")))
        except InputError as error:
            refused.append((path.name, str(error)))
    assert len(taken) > 10
    assert all(name in message for name, message in refused)
