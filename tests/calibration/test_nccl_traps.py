"""Traps of public reports, parts A and B: each is refused, or put right with a note, and the line is named.

The number in front of a test's name is the case's: a TRAP there is a number or a belief that is wrong.
"""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from foreshard.calibration.logs.collective_command import collective
from foreshard.calibration.logs.log_comparison import compare_log
from foreshard.calibration.logs.nccl_tests import parse_nccl_log
from foreshard.simulator.comms.single import run_one
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import load_preset

CELLS = "     time   algbw   busbw #wrong"
HEADER = f"#       size         count      type   redop    root{CELLS}{CELLS}\n"
OLD_HEADER = (
    "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
)


def row(nbytes=2**30, time_us=8000.0, factor=1.75, wrong="0", wrong_in_place="0", redop="sum", in_place_us=None):
    """A row as nccl-tests prints it, its bandwidths computed."""
    again = in_place_us or time_us
    first, second = (nbytes / time / 1e3 for time in (time_us, again))
    return (
        f"{nbytes:>12}  {nbytes // 4:>12}     float  {redop:>6}      -1  {time_us:.2f}  {first:.2f}  "
        f"{first * factor:.2f}  {wrong:>5}  {again:.2f}  {second:.2f}  {second * factor:.2f}  {wrong_in_place:>5}\n"
    )


def refusal(text):
    with pytest.raises(InputError) as caught:
        parse_nccl_log(text)
    return str(caught.value)


def described(text, nodes):
    return Cluster(parse_cluster(f"schema = 1\n{text}", where="case", nodes=nodes))


# -- A13 (NVIDIA/nccl#2408, #2409): chunks of 1 MiB print 87.6 GB/s on a wire of 49, with wrong data ---------------

SENDRECV = "# Collective test starting: sendrecv_perf\n" + HEADER


def sendrecv_log(wrong="0"):
    return SENDRECV + row(time_us=2**30 / 87.6e3, factor=1, wrong=wrong, wrong_in_place="N/A")


def test_a13_a_send_and_receive_above_the_wire_is_refused_with_its_line():
    log = parse_nccl_log(sendrecv_log())
    assert log.kinds == ("sendrecv",)
    for nodes, per_node in ((2, None), (2, 1)):
        with pytest.raises(InputError, match=r"line 3: 1\.0 GiB .* is faster than .*nic.* do not calibrate with it"):
            compare_log(log, load_preset("dgx-h100", nodes), "sendrecv", ranks_per_node=per_node)


def test_a13_a_send_and_receive_below_the_wire_is_compared():
    log = parse_nccl_log(SENDRECV + row(time_us=2**30 / 13.1e3, factor=1, wrong_in_place="N/A"))
    compared = compare_log(log, load_preset("dgx-h100", 2), "sendrecv", ranks_per_node=1)
    (only,) = compared.rows
    assert only.predicted.bound_s == pytest.approx(2**30 / 50e9)
    assert only.predicted.time_s >= only.predicted.bound_s
    assert only.nic_bytes_per_s == pytest.approx(13.1e9, rel=1e-3)


@pytest.mark.parametrize("wrong", ["1", "237858", "1.04858e+06"])
def test_a13_wrong_values_are_refused_out_of_place_and_in_place(wrong):
    assert f"line 3: {float(wrong):g} wrong values" in refusal(sendrecv_log(wrong))
    assert f"line 2: in place, {float(wrong):g} wrong values" in refusal(HEADER + row(wrong_in_place=wrong))


def test_a13_every_wrong_row_is_told_and_the_summary_of_them_is_not_a_further_mistake():
    text = HEADER + row(wrong="5") + row() + row(wrong_in_place="7") + "# Out of bounds values : 2 FAILED\n"
    message = refusal(text)
    assert "line 2: 5 wrong values" in message
    assert "line 4: in place, 7 wrong values" in message
    assert "line 5" not in message


@pytest.mark.parametrize(
    "footer",
    [
        "# Out of bounds values : 2 FAILED",
        "[1,0]<stdout>:# Out of bounds values : 2 FAILED",
        "    Out of bounds values : 2 FAILED",
        "# Out of bounds values : 2",
    ],
)
def test_a13_a_summary_that_failed_is_refused_even_if_no_row_shows_it(footer):
    assert "line 3: the tool itself says that 2 of its checks FAILED" in refusal(HEADER + row() + footer + "\n")


def test_a13_a_summary_that_passed_is_accepted():
    assert parse_nccl_log(HEADER + row() + "# Out of bounds values : 0 OK\n").rows


def test_a13_what_was_not_validated_is_accepted():
    for cell in ("N/A", "-1"):
        (only,) = parse_nccl_log(HEADER + row(wrong=cell, wrong_in_place=cell)).rows
        assert only.wrong is None


def test_deviations_of_old_versions_are_held_against_what_those_versions_passed():
    old = "   268435456   67108864   {type}   sum   122131   2.20   4.33  {error}   122165   2.20   4.33  {again}\n"
    for kind, error in (("float", "2e-06"), ("half", "1e-02"), ("double", "1e-13"), ("int32", "0e+00")):
        assert parse_nccl_log(OLD_HEADER + old.format(type=kind, error=error, again="0e+00")).rows
    for kind, error in (("float", "1e-04"), ("half", "1e+00"), ("double", "1e-06"), ("int32", "1e-01")):
        text = OLD_HEADER + old.format(type=kind, error=error, again="0e+00")
        assert f"line 2: values deviate by {float(error):g}" in refusal(text)
        text = OLD_HEADER + old.format(type=kind, error="0e+00", again=error)
        assert f"line 2: in place, values deviate by {float(error):g}" in refusal(text)


def test_an_all_to_all_of_an_old_version_has_no_valid_in_place_data_and_is_accepted():
    text = "   268435456  1048576  float  520935  0.52  0.51  0e+00  519562  0.52  0.51  1e+00\n"
    named = parse_nccl_log("# ./build/alltoall_perf -b 256M\n" + OLD_HEADER + text)
    assert not any("in place" in note for note in named.notes)
    unnamed = parse_nccl_log(OLD_HEADER + text)
    assert any(note.startswith("line 2: the values in place are wrong") for note in unnamed.notes)


# -- A23 (nccl-tests#181): a busbw of 3.92 is argued about; what left each node says more --------------------------


def test_a23_the_bytes_per_nic_stand_beside_busbw(tmp_path):
    file = tmp_path / "alltoall.log"
    file.write_text(
        "# alltoall_perf\n" + HEADER + row(time_us=2**30 / (3.92e3 * 16 / 15), factor=15 / 16, redop="none")
    )
    args = ["--cluster", "dgx-a100", "--nodes", "2", "--kind", "all_to_all", "--compare", str(file)]
    header, _, line = CliRunner().invoke(collective, args).output.splitlines()[:3]
    shown = dict(zip(re.split(r"\s{2,}", header.strip()), line.split(), strict=True))
    assert shown["busbw (GB/s)"] == "3.92"
    assert shown["per NIC (GB/s)"] == f"{16.7 / 8:.2f}"  # 16.7 GB/s leave each node, over 8 NICs


# -- A25 (nccl#1037): the first all-to-all sets up its connections -------------------------------------------------


def test_a25_the_first_all_to_all_does_not_count_the_setting_up_of_connections():
    def first(**cells):
        text = "# alltoall_perf\n" + HEADER + row(2**20, factor=7 / 8, redop="none", **cells)
        return parse_nccl_log(text + row(2**21, 600.0, factor=7 / 8, redop="none", wrong_in_place="N/A"))

    log = first(time_us=9012.0, in_place_us=561.0, wrong_in_place="N/A")
    assert [r.time_s for r in log.rows] == pytest.approx([561e-6, 600e-6])
    assert any(note.startswith("line 3: out of place took 16.1 times as long") for note in log.notes)


def test_a25_a_first_row_without_in_place_time_is_held_against_the_next():
    text = "# alltoall_perf\n" + HEADER + "1048576 262144 float none -1 9012.0 0.12 0.10 0\n"
    log = parse_nccl_log(text + row(2**21, 600.0, factor=7 / 8, redop="none", wrong_in_place="N/A"))
    assert [r.nbytes for r in log.rows] == [2**21]
    assert any(note.startswith("line 3: took 15.0 times as long as the next row") for note in log.notes)


# -- B12 (nccl-tests#169, #196): busbw of two nodes above their NICs ------------------------------------------------

ONE_NIC = (
    'preset = "pcie-4x"\nname = "8 H100 PCIe, one 100 Gbit/s NIC"\ngpu = "H100-SXM5-80GB"\n'
    '[node]\ngpus = 8\nnics = 1\nnic = "edr-100g"\n'
)


def test_b12_a_busbw_above_the_nic_of_two_nodes_is_explained_by_the_tree_with_its_line():
    cluster = described(ONE_NIC, 2)
    # 20 GB/s of busbw over a NIC of 12.5: 10.7 GB/s of algbw went through it once.
    log = parse_nccl_log("# all_reduce_perf\n" + HEADER + row(time_us=2**30 * 1.875 / 20e3, factor=1.875))
    compared = compare_log(log, cluster, "all_reduce")
    assert any(note.startswith("line 3: busbw of a tree on two nodes") for note in compared.notes)
    assert compared.rows[0].measured.busbw_bytes_per_s > 12.5e9


def test_b12_a_busbw_above_the_nics_of_three_nodes_is_refused():
    cluster = described(ONE_NIC, 3)
    log = parse_nccl_log("# all_reduce_perf\n" + HEADER + row(time_us=2**30 * 2 * 23 / 24 / 20e3, factor=2 * 23 / 24))
    with pytest.raises(InputError, match=r"line 3: .*faster than"):
        compare_log(log, cluster, "all_reduce")


def test_b12_a_ring_on_two_nodes_is_not_warned_about():
    log = parse_nccl_log("# all_gather_perf\n" + HEADER + row(time_us=30000.0, factor=15 / 16, redop="none"))
    assert not any("tree" in note for note in compare_log(log, load_preset("p5.48xlarge", 2), "all_gather").notes)


# -- B15 (nccl-tests#212): 480 GB/s of busbw on 450 GB/s of NVLink, only where a switch adds -------------------------


def test_b15_a_busbw_above_the_nvlinks_is_accepted_where_switches_add_and_refused_elsewhere():
    h100 = parse_nccl_log("# all_reduce_perf\n" + HEADER + row(2**33, 2**33 * 1.75 / 480e3))
    assert compare_log(h100, load_preset("dgx-h100", 1), "all_reduce").rows
    a100 = parse_nccl_log("# all_reduce_perf\n" + HEADER + row(2**33, 2**33 * 1.75 / 320e3))
    with pytest.raises(InputError, match=r"line 3: .* is faster than"):
        compare_log(a100, load_preset("dgx-a100", 1), "all_reduce")


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_b15_what_no_switch_can_add_is_refused_above_the_nvlinks(kind):
    log = parse_nccl_log(f"# {kind}_perf\n" + HEADER + row(2**33, 2**33 * 0.875 / 480e3, factor=0.875))
    with pytest.raises(InputError, match=r"line 3: .* is faster than"):
        compare_log(log, load_preset("dgx-h100", 1), kind)


# -- B25 (nccl-tests#107, #287): a tool built without MPI ------------------------------------------------------------

DEVICE = "#  Rank  0 Group  0 Pid {pid} on {host} device  0 [0x07] NVIDIA V100\n"


def test_b25_two_jobs_of_one_rank_are_refused_with_the_line_of_the_second():
    text = DEVICE.format(pid=1, host="node01") + DEVICE.format(pid=2, host="node02") + HEADER + row(factor=0.0)
    assert "line 2: rank 0 appears 2 times" in refusal(text)


@given(
    st.lists(st.sampled_from([2**power for power in range(3, 30)]), min_size=1, max_size=6, unique=True), st.booleans()
)
def test_b25_one_rank_is_known_by_a_busbw_of_zero_however_small_the_first_rows_are(sizes, absurd):
    """One rank copies inside its memory: algbw is absurd from some size on, busbw is always 0."""
    text = "".join(row(size, 5.0, factor=0.0, in_place_us=0.16 if absurd else None) for size in sorted([*sizes, 2**30]))
    assert "one rank only, so nothing crossed a link" in refusal(HEADER + text)


def test_b25_one_rank_in_the_list_of_devices_is_refused():
    assert "line 3: one rank only" in refusal(DEVICE.format(pid=1, host="node01") + HEADER + row(factor=1.0))


# -- B27 (nccl-tests#209): GB/s and Gb/s mixed up --------------------------------------------------------------------


def test_b27_gigabits_in_the_columns_are_put_right_with_the_line():
    bits = f"{2**30} {2**28} float sum -1 8000.00 {134.22 * 8:.2f} {234.88 * 8:.2f} 0\n"
    log = parse_nccl_log(HEADER + bits)
    assert log.rows[0].busbw_bytes_per_s == pytest.approx(234.88e9)
    assert any(note.startswith("line 2: algbw and busbw are gigabits") for note in log.notes)
    assert log.ranks == 8


def test_b27_a_bandwidth_in_ambiguous_units_is_refused_in_a_cluster_file():
    with pytest.raises(InputError, match=r"nic\.bandwidth: '100 Gb/s' is ambiguous"):
        described(
            'preset = "dgx-a100"\nname = "x"\n[node]\n'
            'nic = { bandwidth = "100 Gb/s", usable = "98 Gbit/s", latency = "1 us", source = "x" }\n',
            2,
        )


# -- what a log does not name ----------------------------------------------------------------------------------------


def test_all_gather_and_all_to_all_alike_get_a_note_with_the_line():
    log = parse_nccl_log(HEADER + row(factor=7 / 8, redop="none"))
    assert log.kinds == ("all_gather", "all_to_all")
    assert any(note.startswith("line 2: no line of the log names its collective") for note in log.notes)
    compared = compare_log(log, load_preset("dgx-h100", 1), "all_gather")
    assert any("all_gather and all_to_all alike" in note for note in compared.notes)
    named = parse_nccl_log("# alltoall_perf\n" + HEADER + row(factor=7 / 8, redop="none"))
    assert not any("names its collective" in note for note in named.notes)


def test_a_collective_that_is_not_predicted_is_refused_without_advice_to_ask_for_it():
    log = parse_nccl_log("# reduce_perf\n" + HEADER + row(factor=1.0))
    with pytest.raises(InputError, match=r"the log is of reduce, not of all_reduce: only all_to_all, .* are predicted"):
        compare_log(log, load_preset("dgx-h100", 1), "all_reduce")


def test_a_log_of_some_gpus_of_a_node_says_how_to_ask_for_them():
    log = parse_nccl_log("# all_reduce_perf\n" + HEADER + row(factor=1.5))
    with pytest.raises(InputError, match=r"4 ranks, but dgx-h100 with 1 node has 8: .*--ranks-per-node"):
        compare_log(log, load_preset("dgx-h100", 1), "all_reduce")
    assert compare_log(log, load_preset("dgx-h100", 1), "all_reduce", ranks_per_node=4).rows


@given(st.integers(2, 6), st.integers(1, 8), st.sampled_from(["sendrecv", "all_to_all", "all_gather", "all_reduce"]))
def test_some_ranks_of_each_node_are_predicted_no_faster_than_their_bound(nodes, per_node, kind):
    result = run_one(load_preset("dgx-a100", nodes), kind, 2.0**28, ranks_per_node=per_node)
    assert result.ranks == nodes * per_node
    assert result.time_s >= result.bound_s * (1 - 1e-9)
    assert result.bound_s > 0


def test_sendrecv_sends_the_whole_buffer_to_the_next_rank_only():
    inside = run_one(load_preset("dgx-h100", 1), "sendrecv", 2.0**30)
    assert (inside.nic_bytes, inside.bound_s) == (0.0, pytest.approx(2**30 / 450e9))
    across = run_one(load_preset("dgx-h100", 2), "sendrecv", 2.0**30)
    assert (across.nic_bytes, across.bound_s) == (2.0**30, pytest.approx(2**30 / 50e9))
    assert across.busbw_bytes_per_s == across.algbw_bytes_per_s
