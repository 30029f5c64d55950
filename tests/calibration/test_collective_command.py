"""`foreshard collective`: rows as nccl-tests prints them, and a measured log beside them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from foreshard.calibration.logs.collective_command import collective, parse_sizes
from foreshard.calibration.logs.log_comparison import compare_log
from foreshard.calibration.logs.nccl_tests import parse_nccl_log
from foreshard.simulator.comms.single import run_one
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import load_preset


def run(*args):
    result = CliRunner().invoke(collective, args)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def log_of(kind, cluster, sizes, slower=1.0, ranks=None):
    """A log as nccl-tests would print it of our own predictions, `slower` times as long."""
    tool = "alltoall" if kind == "all_to_all" else kind
    lines = [f"# Collective test starting: {tool}_perf"]
    for nbytes in sizes:
        result = run_one(cluster, kind, nbytes)
        time = result.time_s * slower
        ratio = result.busbw_bytes_per_s / result.algbw_bytes_per_s
        algbw = nbytes / time / 1e9
        lines.append(f"{nbytes:.0f} {nbytes / 4:.0f} float sum -1 {time * 1e6:.1f} {algbw:.2f} {algbw * ratio:.2f} 0")
    return "\n".join(lines) + "\n"


def test_json_rows_are_in_bytes_and_seconds():
    rows = json.loads(
        run("--cluster", "p5.48xlarge", "--nodes", "4", "--kind", "all_to_all", "--bytes", "32MiB,1GiB", "--json")
    )
    assert [row["bytes"] for row in rows] == [32 * 2**20, 2**30]
    for row in rows:
        assert {"bytes", "time_s", "bound_s", "algbw_bytes_per_s", "busbw_bytes_per_s"} <= set(row)
        assert row["algbw_bytes_per_s"] == pytest.approx(row["bytes"] / row["time_s"])
        assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] * 31 / 32)
        assert row["time_s"] >= row["bound_s"] > 0
        assert row["nic_bytes"] == pytest.approx(row["bytes"] * 24 / 32)


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 2 * 15 / 16),
        ("all_gather", 15 / 16),
        ("reduce_scatter", 15 / 16),
        ("all_to_all", 15 / 16),
        ("broadcast", 1),
    ],
)
def test_busbw_has_the_factor_of_nccl_tests(kind, factor):
    (row,) = json.loads(run("--cluster", "p5.48xlarge", "--nodes", "2", "--kind", kind, "--bytes", "64MiB", "--json"))
    assert row["busbw_bytes_per_s"] / row["algbw_bytes_per_s"] == pytest.approx(factor)


def test_the_table_names_machine_ranks_bound_and_algorithm():
    text = run("--cluster", "dgx-a100", "--nodes", "2", "--kind", "all_reduce", "--bytes", "1GiB")
    for expected in ("2 x dgx-a100", "16 ranks", "busbw (GB/s)", "time/bound", "ring", "nic"):
        assert expected in text


def test_two_steps_can_be_asked_for():
    args = ("--cluster", "p5.48xlarge", "--nodes", "2", "--kind", "all_to_all", "--bytes", "1MiB", "--json")
    (plain,), (two,) = json.loads(run(*args)), json.loads(run(*args, "--all-to-all", "hierarchical"))
    assert (plain["algorithm"], two["algorithm"]) == ("pairwise", "hierarchical")


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv"])
@pytest.mark.parametrize("steps", ["pairwise", "hierarchical"])
def test_steps_of_an_all_to_all_are_refused_for_what_is_none(kind, steps):
    with pytest.raises(InputError, match=f"--all-to-all {steps} means nothing for {kind}"):
        run("--cluster", "p5.48xlarge", "--kind", kind, "--bytes", "1MiB", "--all-to-all", steps)


def test_a_buffer_that_no_gpu_can_hold_is_refused():
    with pytest.raises(InputError, match=r"1e\+30 B do not fit into the 79\.1 GiB of HBM of H100-SXM5-80GB"):
        run("--cluster", "p5.48xlarge", "--kind", "all_reduce", "--bytes", "1MiB,1e30B")


def test_one_rank_alone_is_refused():
    with pytest.raises(InputError, match=r"one rank only.*give more --nodes or --ranks-per-node"):
        run("--cluster", "p5.48xlarge", "--kind", "all_reduce", "--bytes", "1MiB", "--ranks-per-node", "1")


def test_some_gpus_of_every_node_can_be_asked_for():
    args = ("--cluster", "dgx-h100", "--nodes", "4", "--ranks-per-node", "2", "--kind", "sendrecv", "--bytes", "1GiB")
    assert "sendrecv over 8 ranks, 4 x dgx-h100" in run(*args)
    with pytest.raises(InputError, match="9 ranks a node: the nodes of dgx-h100 have 8 GPUs"):
        run(*args[:5], "9", *args[6:])


def test_notes_of_a_comparison_do_not_vanish_beside_json(tmp_path):
    file = tmp_path / "nccl.log"
    file.write_text("1048576 16384 float none -1 100.0 10.49 9.18 0 99.0 10.59 9.27 N/A\n")
    args = ["--cluster", "dgx-h100", "--kind", "all_to_all", "--compare", str(file), "--json"]
    result = CliRunner().invoke(collective, args)
    assert len(json.loads(result.stdout)) == 1
    assert "note: line 1: no line of the log names its collective" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0B", "'0B' is less than one byte"),
        ("0.5B", "'0.5B' is less than one byte"),
        ("32M", "write 32MiB for 32 x 2\\^20, which is nccl-tests' 32M, or 32MB"),
        ("1048576", "has no unit: write 1048576B"),
        ("1Gb", "ambiguous"),
        ("lots", "not a number with a unit"),
        ("", "not a number with a unit"),
        ("-1MiB", "not negative"),
    ],
)
def test_sizes_without_a_clear_unit_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_sizes(text)


def test_all_bad_sizes_are_told_at_once():
    with pytest.raises(InputError) as caught:
        parse_sizes("32M,1GiB,12")
    assert len(caught.value.problems) == 2


def test_the_same_mistake_is_told_once():
    with pytest.raises(InputError) as caught:
        parse_sizes("1GiB,,,")
    assert len(caught.value.problems) == 1


def test_neither_sizes_nor_log_is_refused():
    with pytest.raises(InputError, match="--bytes"):
        run("--cluster", "p5.48xlarge", "--kind", "all_reduce")


def test_a_log_is_compared_row_by_row(tmp_path):
    cluster = load_preset("p5.48xlarge", nodes=2)
    file = tmp_path / "nccl.log"
    file.write_text(log_of("all_to_all", cluster, [2.0**25, 2.0**28, 2.0**30], slower=1.1))
    args = ("--cluster", "p5.48xlarge", "--nodes", "2", "--kind", "all_to_all", "--compare", str(file))
    text = run(*args)
    assert "median error 9.1%, worst 9.1% over 3 rows" in text
    rows = json.loads(run(*args, "--json"))
    assert [round(row["error"], 3) for row in rows] == [-0.091] * 3


def test_a_log_of_other_ranks_or_another_kind_is_refused():
    cluster = load_preset("p5.48xlarge", nodes=2)
    log = parse_nccl_log(log_of("all_to_all", cluster, [2.0**28, 2.0**30]))
    with pytest.raises(InputError, match="of all_to_all, not of all_gather"):
        compare_log(log, cluster, "all_gather")
    with pytest.raises(InputError, match=r"16 ranks.*give --nodes 2"):
        compare_log(log, load_preset("p5.48xlarge", nodes=4), "all_to_all")


def test_a_bandwidth_above_the_wire_is_refused():
    cluster = load_preset("dgx-h100", nodes=2)
    log = parse_nccl_log(log_of("all_to_all", cluster, [2.0**32], slower=0.5))
    with pytest.raises(InputError, match=r"line 2: 4\.0 GiB .* is faster than .*nic.* do not calibrate with it"):
        compare_log(log, cluster, "all_to_all")


def test_a_busbw_above_the_line_is_accepted_where_switches_reduce():
    # 8 H100 print 480 GB/s of busbw on 450 GB/s links (NVIDIA/nccl-tests#212): NVLS sends the buffer once.
    row = "8589934592 2147483648 float sum -1 31289 274.53 480.43 0 31294 274.49 480.36 0\n"
    log = parse_nccl_log("# Collective test starting: all_reduce_perf\n" + row)
    compared = compare_log(log, load_preset("dgx-h100", nodes=1), "all_reduce")
    assert compared.worst_error < 0.1


def test_a_tree_on_two_nodes_is_not_taken_for_the_rate_of_the_nics():
    # NVIDIA/nccl-tests#196: busbw of two nodes exceeds the NIC: a tree sends the buffer once, not 2 (n-1)/n times.
    row = "8589934592 2147483648 float sum -1 33605 255.62 479.28 0 33628 255.44 478.95 0\n"
    log = parse_nccl_log(row)
    compared = compare_log(log, load_preset("p5.48xlarge", nodes=2), "all_reduce")
    assert any("tree" in note and "NCCL_ALGO=RING" in note for note in compared.notes)
    assert compared.rows[0].nic_bytes_per_s == pytest.approx(255.62e9 / 8, rel=1e-3)


def test_rows_of_several_node_counts_are_told_apart():
    # NVIDIA/nccl#527: 1, 2, 3 and 4 p4d in one table, the number of nodes in front.
    text = """\
   p4dn        size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
   1   1073741824     268435456     float     sum   8142.6  131.87  230.77  2e-07   8141.2  131.89  230.81  2e-07
   2   1073741824     268435456     float     sum    35215   30.49   57.17  4e-07    35198   30.51   57.20  4e-07
   4   1073741824     268435456     float     sum    70253   15.28   29.61  1e-06    70207   15.29   29.63  1e-06
"""
    log = parse_nccl_log(text)
    for nodes, time_us in ((1, 8142.6), (2, 35215), (4, 70253)):
        compared = compare_log(log, load_preset("p4d.24xlarge", nodes=nodes), "all_reduce")
        assert [row.measured.time_s for row in compared.rows] == [pytest.approx(time_us * 1e-6)]


def test_rows_too_small_to_tell_are_of_as_many_ranks_as_the_rest_of_their_log():
    """From the ratio of its last row the log is of some 15 to 19 ranks, so its first row is not of 2 either."""
    small, large = (
        f"{size} {size // 4} float sum {time} {algbw} {busbw} N/A {time} {algbw} {busbw} N/A\n"
        for size, time, algbw, busbw in ((128, 87.59, 0.00, 0.00), (262144, 262.0, 1.00, 1.88))
    )
    log = parse_nccl_log(small + large)
    assert log.ranks is None
    with pytest.raises(InputError, match=r"mean 1\d to \d\d ranks as all_reduce, but dgx-h100 with 1 node has 2"):
        compare_log(log, load_preset("dgx-h100"), "all_reduce", ranks_per_node=2)
    assert len(compare_log(log, load_preset("dgx-h100", 2), "all_reduce").rows) == 2


def test_lines_of_a_note_are_told_in_runs():
    row = "{size} 1 float sum -1 {time} 100.00 187.50 0 {time} 100.00 187.50 0\n"
    log = parse_nccl_log("".join(row.format(size=size * 10**9, time=size * 10**4) for size in (1, 2, 3)) + "noise\n")
    (note,) = compare_log(log, load_preset("dgx-h100", 2), "all_reduce").notes
    assert note.startswith("lines 1-3: busbw of a tree on two nodes")


@pytest.mark.parametrize(("text", "nbytes"), [("1.3GiB", 1395864371.0), ("1.5B", 2.0), ("0.001 KiB", 1.0)])
def test_sizes_are_whole_bytes(text, nbytes):
    assert parse_sizes(text) == [nbytes]


@pytest.mark.parametrize(
    ("machine", "nodes", "kind", "told", "not_told"),
    [
        ("p5.48xlarge", "2", "all_to_all", ["a NIC sustains"], ["NCCL's documented constants", "gloo"]),
        ("p5.48xlarge", "2", "all_reduce", ["a NIC sustains", "NCCL's documented constants"], ["gloo"]),
        ("p5.48xlarge", "1", "all_reduce", ["NCCL's documented constants"], ["a NIC sustains", "gloo"]),
        ("cpu-host", "2", "all_reduce", ["gloo's algorithms"], ["a NIC sustains", "NCCL"]),
    ],
)
def test_only_what_a_prediction_assumes_is_said(machine, nodes, kind, told, not_told):
    text = run("--cluster", machine, "--nodes", nodes, "--kind", kind, "--bytes", "1MiB").split("assumed:")[1]
    assert all(words in text for words in [*told, "max-min fairness"])
    assert not any(words in text for words in not_told)


def test_the_first_message_on_a_wrong_machine_names_the_right_ones():
    with pytest.raises(InputError, match="neither a machine nor a file"):
        run("--cluster", "p5.48xlrge", "--kind", "all_reduce", "--bytes", "1MiB")


@pytest.mark.parametrize(("nodes", "peers", "extrapolated"), [(8, 56, 0.0), (16, 120, 64 * 5.8e-6)])
def test_an_all_to_all_with_more_peers_than_were_measured_says_so(nodes, peers, extrapolated):
    asked = ["--cluster", "p5.48xlarge", "--nodes", str(nodes), "--kind", "all_to_all", "--bytes", "1MiB"]
    assert (f"beyond measurement: {peers} remote peers" in run(*asked)) == (extrapolated > 0)
    (row,) = json.loads(run(*asked, "--json"))
    assert (row["remote_peers"], row["extrapolated_s"]) == (peers, pytest.approx(extrapolated))


def test_only_all_to_alls_have_peers_to_post_to():
    asked = ["--cluster", "p5.48xlarge", "--nodes", "32", "--kind", "all_reduce", "--bytes", "1MiB"]
    (row,) = json.loads(run(*asked, "--json"))
    assert (row["remote_peers"], row["extrapolated_s"]) == (0, 0.0)
    assert "beyond measurement" not in run(*asked)
