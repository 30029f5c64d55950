"""Plots of predicted and measured steps: stage breakdown, timeline, memory, scaling; each returns its Axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from foreshard.simulator.job.program import STAGES, Stream
from foreshard.simulator.job.trace import StepTrace
from foreshard.simulator.results.drawing import (
    GLYPH,
    IDLE,
    INK,
    STAGE_COLOURS,
    bar_lanes,
    draw_legend,
    house_axes,
    house_style,
    ink_on,
    points_per_unit,
    save_plot,
    words,
)  # fmt: skip
from foreshard.simulator.results.exposure import Breakdown, breakdown, slowest_rank
from foreshard.simulator.results.scaling_plot import plot_comparison, plot_scaling
from foreshard.simulator.step.memory import Memory
from foreshard.topologies.errors import InputError
from foreshard.topologies.units import format_ms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "plot_comparison", "plot_memory", "plot_scaling", "plot_stages", "plot_step", "plot_timeline", "save_plot",
]  # fmt: skip

_STREAMS: tuple[Stream, ...] = ("copy", "data_dist", "compute", "comm", "dense_comm", "replica_comm")


# Stages


class HasBreakdown(Protocol):
    """Anything that knows where the time of a step goes, such as a report."""

    @property
    def breakdown(self) -> Breakdown:
        """The step of the slowest rank."""


Step = StepTrace | Breakdown | HasBreakdown


def plot_stages(steps: Step | Mapping[str, Step], ax: Axes | None = None) -> Axes:
    """Axes with one bar for each step: compute and, hatched, exposed time of its stages, and idle time, in ms.

    The parts of a bar add up to the step time. A thin bar below shows what other operations hide. Traces are shown by
    their slowest rank.
    """
    named = {name: _breakdown(step) for name, step in (steps if isinstance(steps, Mapping) else {"": steps}).items()}
    with house_axes(ax, 8.6, 1.3 + 0.62 * len(named)) as axes:
        for row, step in enumerate(named.values()):
            _draw_stages(axes, -row, step)
        axes.set_xlim(0, axes.dataLim.x1 * 1.1)
        bar_lanes(axes, {-row: name for row, name in enumerate(named)})
        axes.set_xlabel("ms of the step; hatched: compute waits for it; thin: hidden behind other work")
        colours = {words(stage): colour for stage, colour in STAGE_COLOURS.items()}
        draw_legend(axes, colours | {"idle, launches": IDLE}, columns=4)
        axes.set_title("Where the time of a step goes, slowest rank", pad=34)
        _label_parts(axes, list(named.values()))
    return axes


def _breakdown(step: Step) -> Breakdown:
    if isinstance(step, Breakdown):
        return step
    return breakdown(step, slowest_rank(step)) if isinstance(step, StepTrace) else step.breakdown


def _draw_stages(axes: Axes, y: float, step: Breakdown) -> None:
    """One step: compute and exposed time of each stage end to end, then idle time; what is hidden below."""
    parts, hidden = [], []
    for stage, times in step.stages.items():
        colour = STAGE_COLOURS[stage]
        parts += [(times.compute_s, colour, ""), (times.exposed_s, colour, "////")]
        hidden.append((max(0.0, times.time_s - times.compute_s - times.exposed_s), colour, ""))
    _stack(axes, y, 0.5, [*parts, (step.idle_s, IDLE, "")])
    _stack(axes, y - 0.34, 0.1, hidden)
    axes.annotate(
        format_ms(step.step_time_s), (step.step_time_s * 1e3, y), xytext=(6, 0), textcoords="offset points",
        va="center", weight="bold", annotation_clip=False,
    )  # fmt: skip


def _stack(axes: Axes, y: float, height: float, parts: Sequence[tuple[float, str, str]]) -> None:
    """Bars of (seconds, colour, hatch) end to end, on an axis in ms."""
    widths = np.array([seconds for seconds, _, _ in parts]) * 1e3
    axes.barh(
        [y] * len(parts), widths, left=np.cumsum(widths) - widths, height=height, edgecolor="white", linewidth=0.4,
        color=[colour for _, colour, _ in parts], hatch=[hatch for _, _, hatch in parts],
    )  # fmt: skip


def _label_parts(axes: Axes, steps: Sequence[Breakdown]) -> None:
    """Write the ms of every part into it where there is room."""
    scale = points_per_unit(axes)
    for row, step in enumerate(steps):
        end = 0.0
        for stage, times in step.stages.items():
            for length in (times.compute_s * 1e3, times.exposed_s * 1e3):
                end += length
                text, colour = f"{length:.1f}", STAGE_COLOURS[stage]
                if length * scale > len(text) * 8.0 * GLYPH + 8:
                    box = {"boxstyle": "square,pad=0.3", "facecolor": colour, "linewidth": 0}  # over the hatching
                    axes.text(
                        end - length / 2, -row, text, ha="center", va="center", fontsize=8.0, weight="bold",
                        color=ink_on(colour), bbox=box,
                    )  # fmt: skip


# Timeline


class _Bar(NamedTuple):
    """An operation on one lane: the time axis in ms, the waiting part first."""

    y: float
    start: float
    wait: float
    end: float
    colour: str
    label: str


def plot_timeline(
    trace: StepTrace, ranks: Sequence[int] | None = None, ax: Axes | None = None, *, which: str = ""
) -> Axes:
    """Axes with what `ranks` do during one steady-state step, in ms, one lane a stream; pale parts wait for others.

    `ranks` None takes the slowest and the one that waits most. What a pipeline does ahead for later batches appears
    where it runs in the step, as every step does it for the next ones. `which` says in the title which of several kinds
    of step it is. Raises InputError for ranks not in the trace.
    """
    titles = _telling(trace) if ranks is None else {rank: f"rank {rank}" for rank in ranks}
    if wrong := [rank for rank in titles if not 0 <= rank < trace.world_size]:
        raise InputError(f"ranks {wrong} are not in the trace: it has ranks 0 to {trace.world_size - 1}")
    used = [stream for stream in _STREAMS if any(op.stream == stream for op in trace.ops)]
    lanes = [(rank, stream) for rank in titles for stream in used]
    height = {lane: -(index + 0.6 * (index // len(used))) for index, lane in enumerate(lanes)}
    bars = list(_bars(trace, height))
    with house_axes(ax, 10.0, 1.2 + 0.27 * len(lanes)) as axes:
        _draw_bars(axes, bars)
        axes.set_xlim(0.0, trace.step_time_s * 1e3)
        _label_lanes(axes, height, titles)
        note = "; pale: waits for other ranks" if any(bar.wait > 0 for bar in bars) else ""
        axes.set_xlabel(f"time in the step, ms{note}")
        title = f"One {trace.source} step of {trace.world_size} ranks: {format_ms(trace.step_time_s)}"
        axes.set_title(title + (f" ({which})" if which else ""), pad=22)
        stages = [stage for stage in STAGES if any(op.stage == stage for op in trace.ops)]
        draw_legend(axes, {words(stage): STAGE_COLOURS[stage] for stage in stages})
        _label_bars(axes, bars)
    return axes


def _telling(trace: StepTrace) -> dict[int, str]:
    slow, waiting = slowest_rank(trace), int(np.argmax(np.nansum(trace.wait_s, axis=0)))
    if slow == waiting:
        return {slow: f"rank {slow}"}
    return {slow: f"rank {slow}\nslowest", waiting: f"rank {waiting}\nwaits most"}


def _bars(trace: StepTrace, height: Mapping[tuple[int, Stream], float]) -> Iterator[_Bar]:
    """Operations of a lane in every period that reaches into the step, cut at its ends."""
    step = trace.step_time_s
    for (rank, stream), y in height.items():
        for index, op in enumerate(trace.ops):
            start, end = float(trace.start_s[index, rank]), float(trace.end_s[index, rank])
            if op.stream != stream or not start < end:
                continue
            times = np.array([start, start + float(trace.wait_s[index, rank]), end])
            for period in range(-int(end // step), -int(start // step) + 1):
                begin, begun, stop = np.clip(times + period * step, 0.0, step) * 1e3
                if stop > begin:
                    yield _Bar(y, begin, begun - begin, stop, STAGE_COLOURS[op.stage], op.label)


def _draw_bars(axes: Axes, bars: Sequence[_Bar]) -> None:
    """Bars in the colours of their stages, with a hairline between neighbours."""
    y, colours = [bar.y for bar in bars], [bar.colour for bar in bars]
    starts, waits = np.array([bar.start for bar in bars]), np.array([bar.wait for bar in bars])
    longest = max((bar.end for bar in bars), default=0.0)
    edges = ["white" if bar.end - bar.start > longest / 300 else bar.colour for bar in bars]  # or it would vanish
    style: dict[str, Any] = {"height": 0.8, "color": colours, "edgecolor": edges, "linewidth": 0.4}
    axes.barh(y, waits, left=starts, alpha=0.35, **style)
    axes.barh(y, np.array([bar.end for bar in bars]) - starts - waits, left=starts + waits, **style)


def _label_lanes(axes: Axes, height: Mapping[tuple[int, Stream], float], titles: Mapping[int, str]) -> None:
    bar_lanes(axes, {y: stream for (_, stream), y in height.items()})
    axes.set_ylim(min(height.values()) - 0.6, 0.6)
    for rank, title in titles.items():
        lanes = [y for (of, _), y in height.items() if of == rank]
        axes.annotate(
            title, (0, (lanes[0] + lanes[-1]) / 2), xycoords=axes.get_yaxis_transform(),
            xytext=(-78, 0), textcoords="offset points", rotation=90, va="center", ha="center", weight="bold",
        )  # fmt: skip


def _label_bars(axes: Axes, bars: Sequence[_Bar]) -> None:
    """Write its operation into every bar that is wide enough for it, once the axes have their size."""
    scale = points_per_unit(axes)
    for bar in bars:
        room = (bar.end - bar.start - bar.wait) * scale - 2
        for text, size in ((bar.label, 7.0), ("\n".join(bar.label.rsplit("_", 1)), 6.0)):
            if max(map(len, text.split("\n"))) * size * GLYPH < room:
                style: dict[str, Any] = {"fontsize": size, "color": ink_on(bar.colour), "linespacing": 0.9}
                axes.text((bar.start + bar.wait + bar.end) / 2, bar.y, text, ha="center", va="center", **style)
                break


# Both


def plot_step(
    trace: StepTrace, step: Step | None = None, ranks: Sequence[int] | None = None, *, which: str = ""
) -> Figure:
    """A figure of one step: where its time goes above, its timeline below.

    `step` is what the breakdown shows (a report averages steps with and without replica synchronisation); None takes
    the trace itself. `which` says in the timeline's title which of several kinds of step it shows.
    """
    lanes = len({op.stream for op in trace.ops}) * (len(_telling(trace)) if ranks is None else len(ranks))
    with house_style() as pyplot:
        heights = [1.9, 1.2 + 0.27 * lanes]
        figure, (above, below) = pyplot.subplots(2, 1, figsize=(10.0, sum(heights)), height_ratios=heights)
        plot_stages(trace if step is None else step, ax=above)
        if which and step is not None:
            above.set_title(f"{above.get_title('left')}, average over all kinds of step", pad=34)
        plot_timeline(trace, ranks, ax=below, which=which)
        below.get_legend().remove()  # the same colours as above
        below.set_title(below.get_title("left"), pad=8)
    return cast("Figure", figure)


# Memory

_PARTS = {
    "tables": ("weights_sharded", "cache", "weights_gathered", "weights_replicated"),
    "optimizer and gradients of tables": ("optimizer_sharded", "optimizer_replicated", "gradients_replicated"),
    "dense model": ("dense_parameters", "dense_gradients", "dense_optimizer", "gradient_buckets"),
    "ids": ("input_batches", "input_dist"),
    "vectors and their gradients": ("output_forward", "output_backward", "replica_sync"),
    "activations": ("activations",),
    "runtime": ("runtime_reserve",),
}
_PART_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#F0E442", "#D55E00", "#CC79A7", "#999999")


def plot_memory(memories: Memory | Mapping[str, Memory], ax: Axes | None = None) -> Axes:
    """Axes with the HBM of the fullest rank in GiB, one bar for each scenario, item by item, against what it has."""
    named = {"": memories} if isinstance(memories, Memory) else dict(memories)
    with house_axes(ax, 8.0, 1.3 + 0.5 * len(named)) as axes:
        for row, memory in enumerate(named.values()):
            _draw_memory(axes, -row, memory)
        bar_lanes(axes, {-row: name for row, name in enumerate(named)})
        axes.set_xlim(0, axes.dataLim.x1 * 1.12)
        axes.set_xlabel("GiB of the fullest rank; the mark is its HBM")
        draw_legend(axes, dict(zip(_PARTS, _PART_COLOURS, strict=True)), columns=4)
        axes.set_title("Memory", pad=34)
    return axes


def _draw_memory(axes: Axes, y: float, memory: Memory) -> None:
    rank, left = memory.peak_rank, 0.0
    for part, colour in zip(_PARTS.values(), _PART_COLOURS, strict=True):
        size = sum(float(memory.items[item][rank]) for item in part) / 2**30
        axes.barh(y, size, left=left, height=0.6, color=colour, edgecolor="white", linewidth=0.4)
        left += size
    cap = float(memory.hbm_cap_bytes[rank]) / 2**30
    axes.plot([cap, cap], [y - 0.4, y + 0.4], color=INK, linewidth=2.0)
    verdict = "fits" if memory.fits else "does not fit"
    axes.annotate(
        f"{left:.0f} of {cap:.0f} GiB, {verdict}", (max(left, cap), y), xytext=(6, 0), textcoords="offset points",
        va="center", fontsize=8, weight="normal" if memory.fits else "bold", annotation_clip=False,
    )  # fmt: skip
