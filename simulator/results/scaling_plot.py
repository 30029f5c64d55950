"""Plots of a comparison: how a step scales with the machine, and step times side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foreshard.simulator.results.drawing import INK, MARKERS, SERIES, bar_lanes, house_axes, lay_out, words
from foreshard.topologies.errors import InputError
from foreshard.topologies.units import format_ms

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_comparison", "plot_scaling"]

Row = Mapping[str, Any]


def plot_comparison(rows: Sequence[Row], ax: Axes | None = None) -> Axes:
    """Axes that suit the rows of `compare`: scaling where the nodes vary, else step times side by side."""
    rows = [row for row in rows if "problem" not in row]
    if len({row.get("cluster.nodes") for row in rows}) > 1:
        return plot_scaling(rows, ax=ax)
    with house_axes(ax, 8.0, 1.0 + 0.3 * len(rows)) as axes:
        times = [float(row["step_time_s"]) * 1e3 for row in rows]
        fill = [SERIES[0] if row.get("memory_fits", True) else "white" for row in rows]
        axes.barh(range(0, -len(rows), -1), times, height=0.6, color=fill, edgecolor=SERIES[0], linewidth=1.2)
        for index, (time, row) in enumerate(zip(times, rows, strict=True)):
            note = "" if row.get("memory_fits", True) else ", does not fit in memory"
            text = f"{format_ms(time / 1e3)}, {float(row['speedup']):.2f}x{note}"
            axes.annotate(
                text, (time, -index), xytext=(5, 0), textcoords="offset points", va="center", annotation_clip=False
            )
        bar_lanes(axes, {-index: _series_name(row) for index, row in enumerate(rows)})
        axes.set_xlabel("step time, ms; speed-up in samples/s over the first row")
    return axes


def plot_scaling(rows: Sequence[Row], x: str = "cluster.nodes", ax: Axes | None = None) -> Axes:
    """Axes with the speed-up over the first row against `x`, one line for each combination of the other varied keys.

    `rows` are those of `compare`; their keys with a dot are the varied ones, and those that could not be predicted are
    left out. Both axes are logarithmic to base 2, so ideal scaling over nodes is the dashed straight line. Hollow marks
    do not fit in memory. Raises InputError without `x`.
    """
    rows = [row for row in rows if "problem" not in row]
    if not rows or any(x not in row for row in rows):
        raise InputError(f"a scaling plot needs rows that vary {x!r}: run compare with --vary {x}=1,2,4,8")
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(_series_name(row, x), []).append(row)
    with house_axes(ax, 6.4, 4.0) as axes:
        ticks = sorted({float(row[x]) for row in rows})
        first = float(rows[0][x]), float(rows[0]["speedup"])
        ideal = [first[1] * tick / first[0] for tick in ticks]
        ends = []
        if x == "cluster.nodes":
            axes.plot(ticks, ideal, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
            ends.append((f"ideal: {ideal[-1]:.3g}x", INK, ideal[-1]))
        for number, (name, points) in enumerate(series.items()):
            colour, marker = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
            last = _draw_series(axes, x, points, colour, marker)
            ends.append((f"{name}: {last:.3g}x".removeprefix(": "), colour, last))
        _log2_axis(axes.xaxis, ticks)
        shown = [float(row["speedup"]) for row in rows] + (ideal if x == "cluster.nodes" else [])
        _log2_axis(axes.yaxis, [2.0**power for power in _powers(shown)])
        _label_ends(axes, ends)
        axes.set_xlabel(words(x))
        axes.set_ylabel("speed-up, samples/s over samples/s")
        axes.grid(axis="y", color="#E5E5E5", linewidth=0.6)
        hollow = "; hollow: does not fit in memory" if not all(row.get("memory_fits", True) for row in rows) else ""
        axes.set_title(f"Speed-up over {words(x)} = {first[0]:g}{hollow}")
    return axes


def _series_name(row: Row, x: str = "") -> str:
    """The varied keys of a row but `x`, in words: "sharding group size 8"."""
    return ", ".join(f"{words(key)} {value}" for key, value in row.items() if "." in key and key != x)


def _draw_series(axes: Axes, x: str, points: Sequence[Row], colour: str, marker: str) -> float:
    """One line with marks, hollow where memory does not fit; the height of its last point."""
    ordered = sorted(points, key=lambda row: float(row[x]))
    at, speedup = [float(row[x]) for row in ordered], [float(row["speedup"]) for row in ordered]
    axes.plot(at, speedup, color=colour, linewidth=1.8)
    fill = [colour if row.get("memory_fits", True) else "white" for row in ordered]
    axes.scatter(at, speedup, marker=marker, s=30, facecolors=fill, edgecolors=colour, linewidths=1.4, zorder=3)
    return speedup[-1]


def _powers(values: Sequence[float]) -> range:
    """Powers of two that enclose positive values."""
    logs = np.log2([value for value in values if value > 0])
    return range(int(np.floor(logs.min())), int(np.ceil(logs.max())) + 1)


def _log2_axis(axis: Any, ticks: Sequence[float]) -> None:
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def _label_ends(axes: Axes, ends: Sequence[tuple[str, str, float]]) -> None:
    """Name every line at its right end, moved apart where names would touch."""
    scale = 72 / lay_out(axes).dpi
    right = axes.dataLim.x1
    points = [float(axes.transData.transform((right, value))[1]) * scale for _, _, value in ends]
    for index, place in zip(np.argsort(points), _spread(sorted(points), gap=11.0), strict=True):
        name, colour, value = ends[index]
        axes.annotate(
            name, (right, value), xytext=(8, place - points[index]), textcoords="offset points", va="center",
            color=colour, annotation_clip=False,
        )  # fmt: skip


def _spread(points: Sequence[float], gap: float) -> list[float]:
    """Ascending places at least `gap` apart, each as near above its point as the ones below it allow."""
    places: list[float] = []
    for point in points:
        places.append(max(point, places[-1] + gap) if places else float(point))
    return places
