"""What ranks hand to collectives and get from them, own parts included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as searched
from hypothesis import strategies as st

from foreshard.simulator.job.handed import given, received
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.traffic import PairBytes

GROUPS = Groups([[0, 2], [1, 3]])


@searched(values=st.lists(st.floats(0, 1e6), min_size=8, max_size=8), shared=st.booleans())
def test_an_all_to_all_hands_over_rows_and_gets_columns(values: list[float], shared: bool) -> None:
    first, second = (np.array(part).reshape(2, 2) for part in (values[:4], values[4:]))
    traffic = (PairBytes.dense(first),) if shared else (PairBytes.dense(first), PairBytes.dense(second))
    work = Collective(kind="all_to_all", groups=GROUPS, traffic=traffic)
    matrices = (first, first) if shared else (first, second)
    sent, got = np.zeros(4), np.zeros(4)
    for members, matrix in zip(GROUPS.members, matrices, strict=True):
        for row, source in enumerate(members):
            for column, target in enumerate(members):
                sent[source] += matrix[row, column]
                got[target] += matrix[row, column]
    assert given(work) == pytest.approx(sent)
    assert received(work) == pytest.approx(got)
    assert given(work).sum() == pytest.approx(received(work).sum())


@pytest.mark.parametrize(
    ("kind", "hands", "gets"),
    [
        ("reduce_scatter", [10, 20, 10, 20], [5, 10, 5, 10]),
        ("all_gather", [5, 10, 5, 10], [10, 20, 10, 20]),
        ("all_reduce", [10, 20, 10, 20], [10, 20, 10, 20]),
        ("broadcast", [10, 20, 10, 20], [10, 20, 10, 20]),
    ],
)
def test_sizes_are_counted_as_nccl_tests_counts_them(kind: str, hands: list[float], gets: list[float]) -> None:
    """Two groups of two ranks, sizes 10 and 20."""
    work = Collective(kind=kind, groups=GROUPS, nbytes=(10.0, 20.0))  # type: ignore[arg-type]
    assert given(work).tolist() == hands
    assert received(work).tolist() == gets
