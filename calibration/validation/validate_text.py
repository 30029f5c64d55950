"""A validation as tables and as a plot: predicted against measured, configuration by configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from foreshard.calibration.validation.records import Outcome
from foreshard.calibration.validation.scoring import Score, errors_of, score, stage_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["outcomes_table", "plot_outcomes", "scores_of", "scores_table", "validation_dict", "validation_text"]


def scores_of(outcomes: Sequence[Outcome]) -> dict[str, Score]:
    """foreshard's score, and that of bytes over bandwidth as TorchRec's planner makes it."""
    return {
        "foreshard": score(outcomes, lambda one: one.predicted_s, intervals=True),
        "bytes over bandwidth": score(outcomes, lambda one: one.estimate_s, intervals=False),
    }


def validation_text(outcomes: Sequence[Outcome]) -> str:
    """Every configuration, then scores, stages and the noise floor."""
    return "\n\n".join([outcomes_table(outcomes), scores_table(outcomes), _stages(outcomes), _noise(outcomes)])


def outcomes_table(outcomes: Sequence[Outcome]) -> str:
    """Every configuration: measured, predicted, interval, and bytes over bandwidth, in ms."""
    rows = [
        [
            one.bed, one.job, one.way, f"{one.measured_s * 1e3:.1f}", f"{one.predicted_s * 1e3:.1f}",
            f"{one.error:+.1%}", f"{one.interval_s[0] * 1e3:.1f} to {one.interval_s[1] * 1e3:.1f}",
            "yes" if one.covered else "no", f"{one.noise:.1%}", f"{one.estimate_s * 1e3:.1f}",
        ]
        for one in outcomes
    ]  # fmt: skip
    head = ["testbed", "job", "configuration", "measured ms", "predicted ms", "error", "80 % interval", "inside"]
    return str(tabulate(rows, headers=[*head, "repeated", "bytes/bandwidth"], disable_numparse=True))


def scores_table(outcomes: Sequence[Outcome]) -> str:
    """Errors, order, best configuration and coverage, of foreshard and of bytes over bandwidth."""
    rows = [
        [
            name, one.errors.count, f"{one.errors.median:.1%}", f"{one.errors.p90:.1%}", f"{one.errors.worst:.1%}",
            f"{one.tau:.2f}", f"{one.best_found:.0%} of {one.contests}", f"{one.best_loss:.1%}",
            "" if one.coverage is None else f"{one.coverage:.0%}",
        ]
        for name, one in scores_of(outcomes).items()
    ]  # fmt: skip
    head = ["step time by", "steps", "median", "90th", "worst", "tau", "best found", "lost at most", "in interval"]
    return str(tabulate(rows, headers=head, disable_numparse=True))


def _stages(outcomes: Sequence[Outcome]) -> str:
    rows = [
        [stage, one.count, f"{one.median:.1%}", f"{one.p90:.1%}", f"{one.worst:.1%}"]
        for stage, one in stage_errors(outcomes).items()
    ]
    head = ["stage, where it takes 2 % of the step", "steps", "median", "90th", "worst"]
    return str(tabulate(rows, headers=head, disable_numparse=True))


def _noise(outcomes: Sequence[Outcome]) -> str:
    noise = errors_of([max(one.runs_s) for one in outcomes], [min(one.runs_s) for one in outcomes])
    return (
        f"noise floor, the same configuration run again: median {noise.median:.1%}, 90th percentile {noise.p90:.1%}, "
        f"worst {noise.worst:.1%}"
    )


def validation_dict(outcomes: Sequence[Outcome], provenance: dict[str, Any]) -> dict[str, Any]:
    """JSON values of everything, in seconds."""
    import msgspec

    return {
        "provenance": provenance,
        "configurations": [
            msgspec.to_builtins(one)
            | {"measured_s": one.measured_s, "error": one.error, "noise": one.noise, "inside": one.covered}
            for one in outcomes
        ],
        "scores": msgspec.to_builtins(scores_of(outcomes)),
        "stages": msgspec.to_builtins(stage_errors(outcomes)),
    }


def plot_outcomes(outcomes: Sequence[Outcome], ax: Axes | None = None) -> Axes:
    """Predicted over measured step times in ms, both logarithmic, with predicted intervals; returns the axes."""
    import matplotlib.pyplot as plt

    ax = ax or plt.subplots(figsize=(6.4, 5.6), layout="constrained")[1]
    for bed in dict.fromkeys(one.bed for one in outcomes):
        own = [one for one in outcomes if one.bed == bed]
        measured, predicted = [one.measured_s * 1e3 for one in own], [one.predicted_s * 1e3 for one in own]
        below = [max(0.0, one.predicted_s - one.interval_s[0]) * 1e3 for one in own]
        above = [max(0.0, one.interval_s[1] - one.predicted_s) * 1e3 for one in own]
        ax.errorbar(measured, predicted, yerr=(below, above), fmt="o", markersize=4, linewidth=1, alpha=0.8, label=bed)
    ends = [f(v for one in outcomes for v in (one.measured_s, one.predicted_s)) * 1e3 for f in (min, max)]
    line = [ends[0] / 1.2, ends[1] * 1.2]
    ax.plot(line, line, color="0.3", linewidth=1, label="equal")
    ax.fill_between(
        line, [v * 0.85 for v in line], [v * 1.15 for v in line], color="0.85", zorder=0, label="within 15 %"
    )
    ax.set(xscale="log", yscale="log", xlabel="measured step, ms", ylabel="predicted step, ms", xlim=line, ylim=line)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    ax.set_title("Real steps on testbeds, predicted from microbenchmarks")
    ax.legend(fontsize=8)
    return ax
