"""How good predictions were: errors, order of configurations, best layout, how often an interval held the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

import numpy as np

from foreshard.calibration.validation.records import Outcome

__all__ = ["Errors", "Score", "errors_of", "pairs_in_order", "score", "stage_errors"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Absolute relative errors of `count` values: median, 90th percentile, worst."""

    count: int
    median: float
    p90: float
    worst: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What predictions of step times are worth.

    `tau` is Kendall's between predicted and measured, the mean over testbeds (orders across testbeds are easy).
    `best_found` is the share of (testbed, job) whose predicted best way is the measured best one, and `best_loss` the
    most that the chosen way was slower than the best. `coverage` is the share of steps inside their interval, None
    where there are none.
    """

    errors: Errors
    tau: float
    best_found: float
    best_loss: float
    contests: int
    coverage: float | None


def errors_of(predicted: Iterable[float], measured: Iterable[float]) -> Errors:
    """Return the errors of predicted against measured values, |predicted / measured - 1|."""
    off = np.abs(np.fromiter(predicted, float) / np.fromiter(measured, float) - 1)
    return Errors(
        count=len(off), median=float(np.median(off)), p90=float(np.quantile(off, 0.9)), worst=float(off.max())
    )


def score(outcomes: Sequence[Outcome], says: Callable[[Outcome], float], *, intervals: bool) -> Score:
    """Return the score of what `says` predicts for every outcome, in seconds."""
    from scipy.stats import kendalltau  # half a second, which no other command needs

    contests = _grouped(outcomes, lambda one: (one.bed, one.job))
    chosen = [(min(group, key=says).measured_s, min(one.measured_s for one in group)) for group in contests]
    taus = [
        float(kendalltau([says(one) for one in group], [one.measured_s for one in group]).statistic)
        for group in _grouped(outcomes, lambda one: (one.bed, ""))
        if len(group) > 1
    ]
    return Score(
        errors=errors_of(map(says, outcomes), [one.measured_s for one in outcomes]),
        tau=float(np.mean(taus)) if taus else float("nan"),
        best_found=float(np.mean([got == best for got, best in chosen])),
        best_loss=max(got / best - 1 for got, best in chosen),
        contests=len(contests),
        coverage=float(np.mean([one.covered for one in outcomes])) if intervals else None,
    )


def pairs_in_order(outcomes: Sequence[Outcome], says: Callable[[Outcome], float]) -> tuple[int, int]:
    """Return how many pairs of outcomes of one testbed are in the measured order, and how many pairs there are."""
    pairs = [pair for group in _grouped(outcomes, lambda one: (one.bed, "")) for pair in combinations(group, 2)]
    right = sum((says(one) < says(other)) == (one.measured_s < other.measured_s) for one, other in pairs)
    return right, len(pairs)


def _grouped(outcomes: Sequence[Outcome], key: Callable[[Outcome], tuple[str, str]]) -> list[list[Outcome]]:
    return [list(group) for _, group in groupby(sorted(outcomes, key=key), key=key)]


def stage_errors(outcomes: Sequence[Outcome], share: float = 0.02) -> dict[str, Errors]:
    """Return the errors of every stage, over the outcomes in which it takes at least a `share` of the step."""
    found = {}
    for stage in outcomes[0].stages_measured_s:
        rows = [one for one in outcomes if one.stages_measured_s[stage] >= share * one.measured_s]
        if rows:
            found[stage] = errors_of(
                [one.stages_predicted_s[stage] for one in rows], [one.stages_measured_s[stage] for one in rows]
            )
    return found
