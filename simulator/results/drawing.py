"""How every plot looks: palette, type, legend, files. matplotlib is imported only when something is drawn.

Colours are those of Okabe and Ito (jfly.uni-koeln.de/color, 2008), which the common forms of colour blindness tell
apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from foreshard.simulator.job.program import Stage
from foreshard.topologies.errors import InputError, MissingDependencyError
from foreshard.topologies.output import check_writable, replaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "GLYPH", "IDLE", "INK", "MARKERS", "SERIES", "STAGE_COLOURS", "bar_lanes", "check_plot", "draw_legend",
    "house_axes", "house_style", "ink_on", "lay_out", "points_per_unit", "save_plot", "words",
]  # fmt: skip

STAGE_COLOURS: dict[Stage, str] = {
    "batch_input": "#F0E442",
    "lookup_routing": "#56B4E9",
    "vector_return": "#0072B2",
    "local_compute": "#009E73",
    "sparse_gradient_return": "#D55E00",
    "dense_gradient_sync": "#CC79A7",
    "optimizer_update": "#E69F00",
}
IDLE = "#D9D9D9"
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
INK, _PALE_INK = "#222222", "#FFFFFF"
_DARK = frozenset({"#0072B2", "#009E73", "#D55E00", "#000000"})  # colours that need pale text on them
_STYLE: dict[str, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.axisbelow": True,
    "text.color": INK,
    "figure.dpi": 110.0,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "svg.hashsalt": "foreshard",
    "svg.fonttype": "none",
}
# Without the time and the version that matplotlib writes into files, the same plot gives the same bytes.
_METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_NO_MATPLOTLIB = "plots need matplotlib, which is not installed: pip install 'foreshard[plot]'"
GLYPH = 0.6  # mean width of a character over the font size


@contextmanager
def house_style() -> Iterator[Any]:
    """pyplot under the house style. Raises MissingDependencyError without matplotlib."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingDependencyError(_NO_MATPLOTLIB) from error
    pyplot.draw_if_interactive()  # load the backend now: what it sets while loading must outlive the style
    with pyplot.rc_context(_STYLE):
        yield pyplot


@contextmanager
def house_axes(ax: Axes | None, width: float, height: float) -> Iterator[Axes]:
    """The axes to draw in, new ones of that size in inches if there are none, under the house style."""
    with house_style() as pyplot:
        yield pyplot.subplots(figsize=(width, height))[1] if ax is None else ax


def draw_legend(axes: Axes, colours: Mapping[str, str], columns: int = 9) -> None:
    """Colour keys above the axes, at most so many in a row."""
    from matplotlib.patches import Patch

    legend = axes.legend(
        handles=[Patch(color=colour, label=label) for label, colour in colours.items()],
        ncols=min(columns, len(colours)),
        loc="lower left", bbox_to_anchor=(0.0, 1.0), fontsize=7.5, handlelength=1.0, handleheight=1.0,
        columnspacing=1.0, handletextpad=0.4, borderaxespad=0.2,
    )  # fmt: skip
    legend.set_in_layout(False)


def bar_lanes(axes: Axes, names: Mapping[float, str]) -> None:
    """Name horizontal bars by their heights, without an axis line."""
    axes.set_yticks(list(names), list(names.values()))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def ink_on(colour: str) -> str:
    """The colour of text that can be read on a bar of that colour."""
    return _PALE_INK if colour in _DARK else INK


def points_per_unit(axes: Axes) -> float:
    """Points that one unit of the horizontal axis takes on paper."""
    figure = lay_out(axes)
    return float(axes.transData.get_matrix()[0, 0]) * 72 / figure.dpi


def lay_out(axes: Axes) -> Figure:
    """Give the axes their final place and scale, and return their figure."""
    figure = cast("Figure", axes.figure)
    figure.draw_without_rendering()
    return figure


def words(key: str) -> str:
    """A key or stage in words: "layout.sharding_group_size" is "sharding group size"."""
    return key.rsplit(".", 1)[-1].replace("_", " ")


def check_plot(path: str | Path) -> None:
    """Return if a plot can be drawn and written at `path`, before any work for it is done.

    Raises InputError for a suffix that is no format or a path that cannot be written, MissingDependencyError without
    matplotlib.
    """
    target = Path(path)
    if target.suffix not in _METADATA:
        raise InputError(
            f"{target}: plots are written as {', '.join(sorted(_METADATA))}: name a file with one of these"
        )
    check_writable(target)
    if find_spec("matplotlib") is None:
        raise MissingDependencyError(_NO_MATPLOTLIB)


def save_plot(plot: Axes | Figure, path: str | Path) -> Path:
    """Return the path written, as PNG, SVG or PDF by its suffix; the same plot gives the same bytes.

    Raises InputError for another suffix or a path that cannot be written.
    """
    target = Path(path)
    check_plot(target)
    figure: Any = plot if hasattr(plot, "savefig") else plot.figure
    with house_style(), replaced(target) as part:
        figure.savefig(part, metadata=_METADATA[target.suffix])
    return target
