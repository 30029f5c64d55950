"""Drawing a cluster: one or two of its nodes with their devices, the fabric above, links coloured by kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.drawing_layout import Box, Layout, device_kind, device_number, shown_nodes
from foreshard.topologies.errors import InputError, MissingDependencyError
from foreshard.topologies.machine import Link
from foreshard.topologies.output import check_writable, replaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check_drawing", "draw_cluster", "save_drawing"]

# Colours that stay apart for colour-blind readers (Okabe and Ito); NVLink in the vendor's green.
_COLOURS = {
    "nvlink": "#5a9a00",
    "c2c": "#009e73",
    "pcie": "#0072b2",
    "smp": "#e69f00",
    "dram": "#888888",
    "loopback": "#b0763c",
    "network": "#8e44ad",
    "uplink": "#c0392b",
}
_NAMES = {
    "nvlink": "NVLink",
    "c2c": "NVLink-C2C",
    "pcie": "PCIe",
    "smp": "between CPUs",
    "dram": "host memory",
    "loopback": "loopback",
    "network": "NIC port",
    "uplink": "leaf - spine",
}
_FILLS = {
    "gpu": "#dcedc8",
    "nvswitch": "#aed581",
    "pcie": "#bbdefb",
    "cpu": "#ffe0b2",
    "mem": "#eeeeee",
    "nic": "#e1bee7",
    "leaf": "#d7bde2",
    "spine": "#f5b7b1",
}
_HALF = 0.26
# Kinds of file, and what to leave out of them: the same cluster gives the same bytes.
_UNDATED: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def check_drawing(path: str | Path) -> None:
    """Return if a drawing can be written at `path`; raises InputError for a path or a kind of file that cannot be."""
    if Path(path).suffix not in _UNDATED:
        kinds = ", ".join(_UNDATED)
        raise InputError(f"{path}: drawings are written as {kinds}: name a file that ends with one of these")
    check_writable(path)


def save_drawing(cluster: Cluster, path: str | Path) -> None:
    """Write the drawing as PNG, SVG or PDF by the path's suffix; the file is never left half written.

    Raises MissingDependencyError without matplotlib, InputError for another suffix or a path that cannot be written.
    """
    check_drawing(path)
    figure: Any = draw_cluster(cluster).figure
    from matplotlib import rc_context

    with replaced(path) as part, rc_context({"svg.hashsalt": cluster.name}):
        figure.savefig(part, dpi=150, bbox_inches="tight", facecolor="white", metadata=_UNDATED[part.suffix])


def draw_cluster(cluster: Cluster, ax: Axes | None = None) -> Axes:
    """Return axes with the drawing. Raises MissingDependencyError without matplotlib (extra `plot`)."""
    layout = Layout(cluster, shown_nodes(cluster))
    ax = ax if ax is not None else _new_axes(layout.width, layout.height)
    _Painter(layout).paint(ax)
    return ax


def _new_axes(width: float, height: float) -> Axes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "drawing a cluster needs matplotlib, which is not installed: pip install 'foreshard[plot]'"
        ) from error
    figure = Figure(figsize=(min(max(9.0, 0.62 * width), 18.0), 1.2 + 0.78 * height))
    FigureCanvasAgg(figure)
    return figure.add_subplot()


class _Painter:
    """Paints a layout on axes."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.cluster, self.boxes, self.links, self.width = layout.cluster, layout.boxes, layout.links, layout.width

    def paint(self, ax: Axes) -> None:
        """Draw frames, links, boxes, legend and title."""
        for node, left, right in self.layout.frames:
            self._frame(ax, node, left, right)
        labelled: set[tuple[str, float]] = set()
        for number, link in self.links:
            if link.src in self.boxes and link.dst in self.boxes:
                self._line(ax, number, link)
                whole = self.cluster.link_factor[number] == 1.0
                if whole and (link.kind, link.bandwidth) not in labelled:
                    labelled.add((link.kind, link.bandwidth))
                    self._bandwidth(ax, link)
        for name, box in self.boxes.items():
            self._box(ax, name, box)
        self._legend(ax)
        ax.set_title(self._title(), fontsize=12, loc="left", pad=10)
        ax.set_xlim(-1.0, self.width + 0.4)
        ax.set_ylim(self.layout.bottom - 0.2, max(y for _, y, _ in self.boxes.values()) + 0.5)
        ax.axis("off")

    def _title(self) -> str:
        cluster = self.cluster
        gpus = ", ".join(gpu.name for gpu in cluster.gpus)
        nodes = f"{cluster.nodes:,} nodes" if cluster.nodes > 1 else "1 node"
        hidden = cluster.nodes - len(self.layout.nodes)
        rest = f"   ({hidden:,} more nodes not drawn)" if hidden > 1 else "   (1 more node not drawn)" if hidden else ""
        return f"{cluster.name}: {nodes}, {cluster.size:,} ranks, {gpus}{rest}"

    def _frame(self, ax: Axes, node: int, left: float, right: float) -> None:
        from matplotlib.patches import FancyBboxPatch

        inside = [box for name, box in self.boxes.items() if name.startswith(f"node{node}/")]
        bottom, top = min(y for _, y, _ in inside) - self.layout.hanging, max(y for _, y, _ in inside) + 0.45
        patch = FancyBboxPatch(
            (left - 0.1, bottom),
            right - left + 0.2,
            top - bottom,
            boxstyle="round,pad=0.05,rounding_size=0.15",
            facecolor="#fafafa",
            edgecolor="#bbbbbb",
            zorder=0,
        )
        ax.add_patch(patch)
        middle = (bottom + top) / 2
        ax.text(left - 0.3, middle, f"node {node}", fontsize=9, color="#666666", ha="right", va="center", rotation=90)

    def _box(self, ax: Axes, name: str, box: Box) -> None:
        from matplotlib.patches import FancyBboxPatch

        (x, y, half), kind = box, device_kind(name)
        ax.add_patch(
            FancyBboxPatch(
                (x - half, y - _HALF),
                2 * half,
                2 * _HALF,
                boxstyle="round,pad=0.02,rounding_size=0.08",
                facecolor=_FILLS[kind],
                edgecolor="#555555",
                linewidth=0.8,
                zorder=3,
            )
        )
        ax.text(x, y, self._label(name), ha="center", va="center", fontsize=7.5 if half < 0.7 else 8.5, zorder=4)

    def _label(self, name: str) -> str:
        short = name.split("/")[-1]
        if device_kind(name) != "gpu":
            return name.replace("/", " ") if name.startswith("domain") else short
        node = int(name[4 : name.index("/")])
        rank = int(np.searchsorted(self.cluster.node_of, node)) + device_number(name)
        return f"{short}\nrank {rank}"

    def _ends(self, link: Link) -> tuple[tuple[tuple[float, float], tuple[float, float]], str]:
        """Where a link's line begins and ends, and its curve: links of one row bow around what is between."""
        (x0, y0, half0), (x1, y1, half1) = self.boxes[link.src], self.boxes[link.dst]
        pair = {device_kind(link.src), device_kind(link.dst)}
        sign = 1.0 if x0 < x1 else -1.0
        if pair == {"gpu"}:
            return ((x0, y0 - _HALF), (x1, y1 - _HALF)), f"arc3,rad={0.3 * sign}"
        if pair == {"cpu"} and abs(device_number(link.src) - device_number(link.dst)) > 1:
            return ((x0, y0 - _HALF), (x1, y1 - _HALF)), f"arc3,rad={0.1 * sign}"
        x0, x1 = _dock(x0, half0, x1, half1), _dock(x1, half1, x0, half0)
        return ((x0, y0), (x1, y1)), "arc3"

    def _line(self, ax: Axes, number: int, link: Link) -> None:
        from matplotlib.patches import FancyArrowPatch

        ends, curve = self._ends(link)
        factor = float(self.cluster.link_factor[number])
        ax.add_patch(
            FancyArrowPatch(
                *ends,
                arrowstyle="-",
                connectionstyle=curve,
                color=self._colour(link) if factor == 1.0 else "#d00000",
                linestyle={0.0: ":", 1.0: "-"}.get(factor, "--"),
                linewidth=self._thickness(link),
                shrinkA=0,
                shrinkB=0,
                zorder=2,
            )
        )
        if factor != 1.0:
            text = "missing" if factor == 0.0 else f"x {factor:g}"
            self._note(ax, link, text, "#d00000")

    def _bandwidth(self, ax: Axes, link: Link) -> None:
        """The nominal bandwidth on the first link of its sort; the many curves of a mesh have only the legend."""
        self._note(ax, link, _gb(link.bandwidth), self._colour(link))

    def _note(self, ax: Axes, link: Link, text: str, colour: str) -> None:
        ((x0, y0), (x1, y1)), curve = self._ends(link)
        if curve != "arc3" and text[0].isdigit():
            return
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9}
        aside = 0.0 if link.kind != "dram" else -0.5 if x0 == x1 else 0.5
        x, y = (x0 + x1) / 2 + aside, (y0 + y1) / 2
        ax.text(x, y, text, color=colour, fontsize=7, ha="center", va="center", zorder=6, bbox=box)

    def _colour(self, link: Link) -> str:
        """Colour of the kind; slower links of a kind are paler."""
        fastest = max(other.bandwidth for _, other in self.links if other.kind == link.kind)
        base = _COLOURS[link.kind]
        if link.bandwidth >= fastest or fastest == 0.0:
            return base
        channels = (int(base[i : i + 2], 16) for i in (1, 3, 5))
        return "#" + "".join(f"{round(c + (255 - c) * 0.45):02x}" for c in channels)

    def _thickness(self, link: Link) -> float:
        """Line width by bandwidth: tenfold bandwidth adds one and a half points."""
        return float(np.clip(0.6 + 1.1 * np.log10(max(link.bandwidth, 1e9) / 1e9), 0.8, 4.0))

    def _legend(self, ax: Axes) -> None:
        from matplotlib.lines import Line2D

        rows: dict[tuple[str, float, float], Line2D] = {}
        for number, link in self.links:
            if self.cluster.link_factor[number] == 1.0:
                text = f"{_NAMES[link.kind]}: {_gb(link.usable)} of {_gb(link.bandwidth)} GB/s"
                line = Line2D([], [], color=self._colour(link), lw=self._thickness(link), label=text)
                rows.setdefault((link.kind, link.bandwidth, link.usable), line)
        handles: list[Any] = sorted(rows.values(), key=lambda line: str(line.get_label()))
        ax.legend(
            handles=handles,
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            ncol=min(4 if self.width > 13 else 3, len(handles)),
            fontsize=8.5,
            frameon=False,
            title="usable of nominal bandwidth of a link, per direction; numbers at lines: nominal GB/s",
            title_fontsize=8.5,
        )


def _dock(x: float, half: float, other: float, other_half: float) -> float:
    """Where a line leaves a box: a narrow one in its middle, a wide one where the other end is."""
    return x if half <= other_half else float(np.clip(other, x - half + 0.1, x + half - 0.1))


def _gb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.4g}"
