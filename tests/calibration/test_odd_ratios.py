"""Logs whose bandwidth columns fit no collective, or several: compared, or refused in a sentence."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from foreshard.calibration.logs.log_comparison import compare_log
from foreshard.calibration.logs.nccl_tests import parse_nccl_log
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import load_preset

HEADS = ["", "# all_reduce_perf\n", "# alltoall_perf\n"]
ROW = "{size:>12} {count:>12}     float     sum      -1 {time:8.1f} {alg:7.2f} {bus:7.2f}      0\n"


@given(
    head=st.sampled_from(HEADS),
    ratios=st.lists(st.floats(0, 3), min_size=1, max_size=4),
    kind=st.sampled_from(["all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast"]),
)
def test_any_ratio_ends_in_a_comparison_or_in_a_sentence(head: str, ratios: list[float], kind: str) -> None:
    """busbw / algbw of any size, equal or different from row to row, raises nothing but an InputError."""
    rows = []
    for index, ratio in enumerate(ratios):
        size = 2 ** (20 + index)
        alg = 20.0 + index
        rows.append(ROW.format(size=size, count=size // 4, time=size / alg / 1e3, alg=alg, bus=alg * ratio))
    columns = "#       size  count  type  redop  root  time  algbw  busbw #wrong\n"
    with suppress(InputError):
        compare_log(parse_nccl_log(head + columns + "".join(rows)), load_preset("p5.48xlarge", 1), kind)
