"""Logs of nccl-tests: every published shape is read, and what cannot be trusted is refused with line and reason."""

from __future__ import annotations

import re

import pytest

from foreshard.calibration.logs.nccl_tests import parse_nccl_log, read_nccl_log
from foreshard.topologies.errors import InputError

HEADER = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROW = "  1073741824   268435456   float   sum   -1   8000.0  134.22  234.88  0   8010.0  134.05  234.59  0\n"
OLD_HEADER = """\
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def devices(*rows):
    return "# Using devices\n" + "".join(
        f"#  Rank {rank:2d} Group  0 Pid   {100 + rank} on {host} device {device:2d} [0x{bus:02x}] NVIDIA A100\n"
        for rank, host, device, bus in rows
    )


def eight():
    return devices(*((rank, "node01", rank, rank) for rank in range(8)))


def only_row(text):
    (row,) = parse_nccl_log(text).rows
    return row


def test_a_row_is_read_in_bytes_seconds_and_bytes_per_second():
    row = only_row(HEADER + ROW)
    assert (row.nbytes, row.time_s) == (1073741824.0, 8000.0e-6)
    assert (row.algbw_bytes_per_s, row.busbw_bytes_per_s) == (134.22e9, 234.88e9)
    assert (row.wrong, row.line) == (0.0, 4)


def test_ranks_and_kind_follow_from_the_ratio_of_busbw_and_algbw():
    log = parse_nccl_log(ROW)
    assert (log.kind, log.ranks) == ("all_reduce", 8)


def test_what_the_tool_says_of_itself_decides_between_kinds_of_equal_ratio():
    row = "  1048576   16384   float   none   -1   100.0   10.49   9.18   0   99.0   10.59   9.27   N/A\n"
    assert parse_nccl_log(row).kinds == ("all_gather", "all_to_all")
    assert parse_nccl_log("# Collective test starting: alltoall_perf\n" + row).kinds == ("all_to_all",)
    assert parse_nccl_log("$ mpirun -n 8 ./build/all_gather_perf -b 1M\n" + row).kinds == ("all_gather",)


@pytest.mark.parametrize(
    "prefix",
    ["[1,0]<stdout>:", "   [1,0]<stdout>:", "0: ", "[0] ", "    ", "2024-05-01T10:11:12.345Z ", "12: [1,0]<stdout>:"],
)
def test_prefixes_of_launchers_and_loggers_are_stripped(prefix):
    text = "".join(prefix + line + "\n" for line in (HEADER + eight() + ROW).splitlines())
    assert parse_nccl_log(text).ranks == 8
    assert only_row(text) == only_row(HEADER + eight() + ROW)


def test_a_prefix_inside_a_row_is_stripped():
    text = (
        "[0]  1048576  262144  float  sum  -1[0]   1626.5    0.64    1.23      0[0]   1626.0    0.64    1.23      0\n"
    )
    assert only_row(text).time_s == pytest.approx(1626.5e-6)


def test_noise_between_header_and_rows_is_skipped():
    noise = "node01:23:75 [3] NCCL INFO Connected NVLS tree\n...\nWarning: Permanently added 'node02' (ECDSA)\n\n"
    assert only_row(HEADER + noise + ROW + "# Avg bus bandwidth    : 114.556\n") == replace_line(
        only_row(HEADER + ROW), 8
    )


def replace_line(row, line):
    from dataclasses import replace

    return replace(row, line=line)


def test_headers_without_hash_are_headers():
    bare = HEADER.replace("#", " ").replace(" wrong", " wrong")
    assert parse_nccl_log(bare + ROW).ranks == 8


def test_a_time_without_decimals_is_not_taken_for_the_root():
    old = (
        OLD_HEADER
        + "   268435456   67108864   float   sum   122131   2.20   4.33  2e-06   122165   2.20   4.33  2e-06\n"
    )
    assert only_row(old).time_s == pytest.approx(122131e-6)
    bare = (
        "   268435456      67108864   float     sum    122131    2.20    4.33  2e-06   122165    2.20    4.33  2e-06\n"
    )
    assert only_row(bare).time_s == pytest.approx(122131e-6)


def test_a_blank_operation_and_a_missing_root_shift_no_cell():
    row = (
        "     1048576         32768   float             87.42   11.99   10.50    N/A    87.10   12.04   10.53    N/A\n"
    )
    log = parse_nccl_log(OLD_HEADER + eight() + row)
    assert (log.kinds, log.ranks) == (("all_gather", "all_to_all"), 8)
    assert log.rows[0].wrong is None


def test_a_root_column_without_operation_is_read():
    header = (
        "#       size         count    type    root     time   algbw   busbw  error     time   algbw   busbw  error\n"
    )
    row = "     1048576        262144   float       0    60.00   17.48   17.48    N/A    61.00   17.19   17.19    N/A\n"
    log = parse_nccl_log(header + eight() + row)
    assert log.kinds == ("broadcast", "sendrecv")
    assert log.rows[0].time_s == pytest.approx(60e-6)


def test_a_tool_that_prints_no_type_is_read():
    text = (
        "#                                    in-place                       out-of-place\n"
        "#       size         count     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\n"
        "  1073741824      33554432                                    7186.2  149.42  130.74      0\n"
    )
    assert only_row(text).time_s == pytest.approx(7186.2e-6)


def test_rows_without_bytes_and_half_rows_are_left_out():
    text = HEADER + eight()
    text += "           0           0   float   sum   -1     3.91    0.00    0.00   0     3.88    0.00    0.00   0\n"
    text += ROW + "  2147483648     536870912     float     sum      -1  16000.0"
    log = parse_nccl_log(text)
    assert [row.nbytes for row in log.rows] == [1073741824.0]
    assert any("line 15" in note and "cut off" in note for note in log.notes)


def test_a_row_that_ends_with_the_file_does_not_tell_the_ranks():
    text = HEADER + ROW + "  2147483648     536870912     float     sum      -1  16000.0  134.22  234.8"
    log = parse_nccl_log(text)
    assert [row.whole for row in log.rows] == [True, False]
    assert log.ranks == 8


def test_the_first_row_does_not_count_the_setting_up_of_connections():
    first = "           8           2   float   sum   -1    983.2    0.00    0.00   0    166.1    0.00    0.00   0\n"
    rows = parse_nccl_log(HEADER + first + ROW).rows
    assert rows[0].time_s == pytest.approx(166.1e-6)
    assert rows[1].time_s == pytest.approx(8000e-6)


def test_in_place_is_ignored_where_it_means_nothing():
    row = (
        "   268435456       1048576     float           520935    0.52    0.51  0e+00   519562    0.52    0.51  1e+00\n"
    )
    assert only_row(OLD_HEADER + row).wrong == 0.0


def test_swapped_columns_are_put_right_and_said():
    swapped = ROW.replace("134.22  234.88", "234.88  134.22")
    log = parse_nccl_log(HEADER + swapped)
    assert log.rows[0].algbw_bytes_per_s == pytest.approx(134.22e9)
    assert any("swapped" in note for note in log.notes)


def test_a_device_list_that_contradicts_the_ratio_gives_way_to_it():
    log = parse_nccl_log(HEADER + devices(*((rank, "node01", rank, rank) for rank in range(4))) + ROW)
    assert log.ranks == 8
    assert any("4 ranks of the device list" in note for note in log.notes)


REFUSED = {
    "wrong data": (HEADER + ROW.replace("234.88  0", "234.88  1024"), "line 4: 1024 wrong values"),
    "invented numbers": (HEADER + ROW.replace("134.22", "250.00"), "line 4: .*not one nccl-tests printed"),
    "placeholders": (HEADER + ROW.replace("8000.0", "XXXX"), "line 4: 'XXXX' stands where a number belongs"),
    "a size by hand": (HEADER + ROW.replace("1073741824", "1GiB"), "line 4: the size is '1GiB'"),
    "one rank": (
        HEADER + devices((0, "node01", 0, 0)) + ROW.replace("234.88", "0.00"),
        "one rank only.*MPI=1",
    ),
    "two ranks 0": (
        devices((0, "node01", 0, 0), (0, "node02", 0, 0)) + HEADER + ROW,
        "line 3: rank 0 appears 2 times.*MPI=1",
    ),
    "two ranks on a device": (
        devices((0, "node01", 0, 2), (1, "node01", 0, 2)) + HEADER + ROW,
        "line 3: 2 ranks share device 0 of node01",
    ),
    "no log": ("payload | busbw\n32KiB | 0.92GBps\n", "line 1: 'payload | busbw' is not a row"),
    "empty": ("", "holds no row of nccl-tests"),
    "header only": (HEADER, "holds no row of nccl-tests"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trusted_is_refused_with_line_and_reason(name):
    text, message = REFUSED[name]
    with pytest.raises(InputError, match=re.compile(message, re.DOTALL)):
        parse_nccl_log(text)


def test_every_reason_is_told_at_once():
    text = HEADER + ROW.replace("234.88  0", "234.88  7") + ROW.replace("134.22", "250.00")
    with pytest.raises(InputError) as caught:
        parse_nccl_log(text)
    assert len(caught.value.problems) == 2


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_nccl_log(tmp_path / "absent.log")


# -- real logs ----------------------------------------------------------------------------------------------------

# Rows with bytes, peak busbw in GB/s and ranks (None: it does not tell), as the index of the specimens has them.
SPECIMENS = {
    "aicr_test_gke_mixed": (2, 333.51, 16),
    "aws_batch_p5_mpi_prefix": (32, 483.05, 8),
    "aws_eks_mpi_prefix_truncated": (6, 437.79, 16),
    "aws_srun_label_prefix_allreduce_2": (32, 487.09, 16),
    "aws_topology_aware_short": (3, 369.86, 128),
    "awsdoeks_efa_info_interleaved": (29, 3.15, 2),
    "awsdoeks_p5_2node": (1, 438.85, 16),
    "cscs_gh200_ofi_1": (25, 122.57, 8),
    "cw_gb200_1440_allreduce": (6, 405.74, 1440),
    "cw_gb200_72_allreduce": (5, 839.16, 72),
    "cw_h100_mpijob_allreduce": (5, 386.56, 96),
    "deepops_netop_v100_old_error_col": (30, 188.53, 16),
    "dstack_gcp_1_nohash": (11, 683.52, 16),
    "gcp_a3high_allgather_na_wrong": (10, 70.90, 16),
    "issue_bottlerocket313_efa_alltoall_16ranks": (9, 2.31, 16),
    "issue_mscclpp87_alltoall_8ranks_missing_inplace": (1, 130.74, 8),
    "issue_nccl1453_h100_rank_prefix_midrow": (10, 29.50, 24),
    "issue_nccl1531_h800x64_alltoall_ellipsis_cut": (1, 24.44, 64),
    "issue_nccl2169_h100x4_alltoall_cut": (1, 120.77, 4),
    "issue_nccl2169_h100x4_alltoall_registered_R1_cut": (1, 358.40, 4),
    "issue_nccl258_v100_dgx_slow_latency_error_col_cut": (5, 0.00, 4),
    "issue_nccl527_p4d_extra_node_column": (4, 230.77, None),
    "issue_nccltests78_dgx2x256_allreduce_cut": (7, 78.70, None),
    "sb_a100x8_alltoall_old_header": (29, 224.31, 8),
    "sb_a100x8_reduce_old_root": (32, 230.99, 8),
}
REFUSED_SPECIMENS = {
    "issue_nccltests107_two_rank0_doubled_headers_cut": "rank 0 appears 2 times",
    "lab_rtx5090_two_ranks_one_gpu_mpi_noise_cut": "2 ranks share device 0",
    "other_alpa_fastchat9_bytes_time_bw": "line 1: .*not a row of nccl-tests",
    "other_distributedjoin50_alltoall_mb_seconds": "line 1: .*not a row of nccl-tests",
    "torch_all_reduce_bench_1": "line 1: .*not a row of nccl-tests",
    "torch_all_reduce_bench_3": "line 3: .*not a row of nccl-tests",
    "torch_nccl820_pg_allreduce_seconds": "line 1: .*not a row of nccl-tests",
}


def test_every_specimen_is_read_or_refused_with_its_line(specimens):
    files = sorted((specimens / "nccl").glob("*.log"))
    assert len(files) >= 55
    refused = {}
    for file in files:
        try:
            assert read_nccl_log(file).rows
        except InputError as error:
            refused[file.stem] = str(error)
    assert set(refused) == set(REFUSED_SPECIMENS)
    for name, message in REFUSED_SPECIMENS.items():
        assert re.search(message, refused[name], re.DOTALL), refused[name]


@pytest.mark.parametrize("name", SPECIMENS)
def test_a_specimen_holds_what_its_index_says(specimens, name):
    log = read_nccl_log(specimens / "nccl" / f"{name}.log")
    peak = max(row.busbw_bytes_per_s for row in log.rows) / 1e9
    assert (len(log.rows), round(peak, 2), log.ranks) == SPECIMENS[name]
