"""Whether the data of a run arrived as sent: a row's wrong values and deviations, and what the tool says at its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from foreshard.calibration.logs.nccl_lines import Cells, Footer, LogRow

__all__ = ["footer_problems", "in_place_problems", "out_of_place_problem"]

# The largest deviation that old versions passed (NVIDIA/nccl-tests src/common.cu before 2.13, DeltaMaxValue; for half
# the test of NCCL 1): sums of other types, and whatever is only moved, must be exact.
_PASSED = {"half": 5e-2, "bfloat16": 5e-2, "float": 1e-5, "double": 1e-12}
# These have no valid in-place form: new versions print N/A, old ones a deviation that means nothing.
_WITHOUT_IN_PLACE = ("all_to_all", "alltoallv", "sendrecv")
_WHY = "the data did not arrive as sent, so its time means nothing; find the fault before measuring"


def out_of_place_problem(row: LogRow) -> str | None:
    """One sentence if the out-of-place data of a row are wrong; None if not, or if they were not validated."""
    wrong = _wrong(row, row.out_of_place)
    return f"line {row.line}: {wrong}: {_WHY}" if wrong else None


def _wrong(row: LogRow, cells: Cells | None) -> str:
    if cells is None or cells.wrong is None:
        return ""
    if not cells.deviation:
        return f"{cells.wrong:g} wrong values" if cells.wrong > 0 else ""
    passed = _PASSED.get(row.data_type, 0.0)
    return f"values deviate by {cells.wrong:g}, more than {passed:g}" if cells.wrong > passed else ""


def in_place_problems(rows: Iterable[LogRow], kinds: Sequence[str], notes: list[str]) -> Iterator[str]:
    """One sentence for each row whose in-place data are wrong; `kinds` are what the log can be of.

    Deviations of an all_to_all or sendrecv in place mean nothing; where the log can be of something else as well, a
    note says so.
    """
    meaningless = [kind for kind in kinds if kind in _WITHOUT_IN_PLACE]
    doubtful = []
    for row in rows:
        wrong = _wrong(row, row.in_place)
        if wrong and row.in_place is not None and row.in_place.deviation and meaningless:
            doubtful.append(str(row.line))
        elif wrong:
            yield f"line {row.line}: in place, {wrong}: {_WHY}"
    others = [kind for kind in kinds if kind not in _WITHOUT_IN_PLACE]
    if doubtful and others:
        notes.append(
            f"line{'s' * (len(doubtful) > 1)} {', '.join(doubtful)}: the values in place are wrong, as old versions "
            f"print it for every {' and '.join(meaningless)}; if this is {' or '.join(others)}, its data did not "
            "arrive as sent: do not use it"
        )


def footer_problems(footers: Iterable[Footer]) -> Iterator[str]:
    """One sentence for each summary of the tool that says that its validation failed."""
    for footer in footers:
        if footer.failed or footer.count:
            yield (
                f"line {footer.line}: the tool itself says that {footer.count} of its checks FAILED ('Out of bounds "
                f"values'): {_WHY}"
            )
