"""Which collective and how many ranks a log is of, from the ratio of its two bandwidth columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor, inf

from foreshard.calibration.logs.nccl_row import NcclRow

__all__ = ["fits", "kinds_and_ranks", "ranks_of_one_run"]

# Collectives of nccl-tests by the factor between busbw and algbw: 2 (n-1)/n, (n-1)/n, 1.
_TWICE = ("all_reduce",)
_OTHERS = ("all_gather", "reduce_scatter", "all_to_all")
_ONE = ("broadcast", "reduce", "sendrecv")
_NAMES = {"alltoall": "all_to_all"}
_REDUCING = ("all_reduce", "reduce_scatter", "reduce", "sendrecv")  # sendrecv prints sum in some versions
_HALF_DIGIT = 0.0051e9  # bandwidths are printed with two decimals of a GB/s

Interval = tuple[float, float]


def kinds_and_ranks(
    rows: Sequence[NcclRow], tool: str | None, redop: str, listed: int, notes: list[str]
) -> tuple[tuple[str, ...], int | None]:
    """Return the collectives a log can be of and its ranks, None where it does not tell.

    `tool` is the collective the log names, `redop` its operation column, `listed` the ranks of its device list (0:
    none). What disagrees is added to `notes`.
    """
    kinds, ranks = _possible(rows, tool, redop, listed, notes)
    if len(kinds) > 1:
        fitting = f"{', '.join(kinds[:-1])} and {kinds[-1]}"
        notes.append(
            f"line {rows[0].line}: no line of the log names its collective, and its columns fit {fitting} alike: what "
            "follows holds only if --kind names the right one"
        )
    return kinds, ranks


def _possible(
    rows: Sequence[NcclRow], tool: str | None, redop: str, listed: int, notes: list[str]
) -> tuple[tuple[str, ...], int | None]:
    if len({row.label for row in rows}) > 1:
        return _named(tool, redop, [(1.0 / inf, inf)]), None
    ratio = _ratio(rows)
    kinds = _named(tool, redop, [ratio])
    agreeing = tuple(kind for kind in kinds if _holds(_ranks(kind, ratio), listed))
    if listed and agreeing:
        return agreeing, listed
    counted = {_only(_ranks(kind, ratio)) for kind in kinds}
    ranks = counted.pop() if len(counted) == 1 else None
    if listed and kinds:
        notes.append(
            f"busbw / algbw = {sum(ratio) / 2:.4f} does not fit the {listed} ranks of the device list; "
            f"{ranks or 'no number of ranks'} is taken from the ratio"
        )
    elif ranks is None and kinds and ratio[1] < inf:
        notes.append(f"as {kinds[0]}, busbw / algbw means {_text(_ranks(kinds[0], ratio))}")
    return kinds, ranks


def _text(interval: Interval) -> str:
    if interval[0] == inf:
        return "no number of ranks"
    low, high = ceil(interval[0] - 1e-6), interval[1]
    if high == inf:
        return f"at least {low} ranks"
    return f"{low} ranks" if floor(high + 1e-6) <= low else f"{low} to {floor(high + 1e-6)} ranks"


def fits(row: NcclRow, kind: str, ranks: int) -> bool:
    """Whether a row's two bandwidths can be of this collective on so many ranks, as precisely as they are printed."""
    return _holds(_ranks(kind, _ratio([row])), ranks)


def ranks_of_one_run(rows: Sequence[NcclRow], kind: str) -> str:
    """What the rows together mean for a collective, as "16 to 19 ranks"; empty if they are of several runs."""
    low, high = _allowed(rows)
    return "" if len({row.label for row in rows}) > 1 or low > high else _text(_ranks(kind, (low, high)))


def _ratio(rows: Iterable[NcclRow]) -> Interval:
    """busbw / algbw as an interval that all rows allow, or the middle between rows that allow none together."""
    low, high = _allowed(rows)
    return (low, high) if low <= high else ((low + high) / 2,) * 2


def _allowed(rows: Iterable[NcclRow]) -> Interval:
    """busbw / algbw as precisely as it is printed; empty (high below low) if rows disagree."""
    low, high = 0.0, inf
    for row in rows:
        if row.whole and row.algbw_bytes_per_s > 0.1e9:
            low = max(low, (row.busbw_bytes_per_s - _HALF_DIGIT) / (row.algbw_bytes_per_s + _HALF_DIGIT))
            high = min(high, (row.busbw_bytes_per_s + _HALF_DIGIT) / (row.algbw_bytes_per_s - _HALF_DIGIT))
    return low, high


def _ranks(kind: str, ratio: Interval) -> Interval:
    """The interval of ranks that a ratio allows for a collective; empty (high below low) if none."""
    low, high = ratio
    if kind in _ONE:
        return (2, inf) if low <= 1 <= high else (inf, 0)
    most = 2.0 if kind in _TWICE else 1.0
    if low >= most:
        return inf, 0
    return max(2.0, most / (most - max(low, 0.0))), most / (most - high) if high < most else inf


def _holds(interval: Interval, ranks: int) -> bool:
    return interval[0] - 1e-6 <= ranks <= interval[1] + 1e-6


def _only(interval: Interval) -> int | None:
    """The one number of ranks in an interval, if there is only one."""
    low, high = interval
    if high == inf or low == inf:
        return None
    return ceil(low - 1e-6) if ceil(low - 1e-6) == floor(high + 1e-6) else None


def _named(tool: str | None, redop: str, ratios: Iterable[Interval]) -> tuple[str, ...]:
    if tool is not None:
        return (_NAMES.get(tool, tool),)
    possible = [kind for kind in (*_TWICE, *_OTHERS, *_ONE) if any(_some(_ranks(kind, ratio)) for ratio in ratios)]
    reducing = redop not in ("none", "")
    return tuple(kind for kind in possible if (kind in _REDUCING) == reducing or kind == "sendrecv")


def _some(interval: Interval) -> bool:
    return interval[0] != inf and ceil(interval[0] - 1e-6) <= interval[1] + 1e-6
