"""What the plots show, read back from their artists; and that files are small, equal and free of dates."""

import builtins
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from foreshard.simulator.results.drawing import STAGE_COLOURS
from foreshard.simulator.results.exposure import breakdown
from foreshard.simulator.results.plot import (
    plot_comparison,
    plot_memory,
    plot_scaling,
    plot_stages,
    plot_step,
    plot_timeline,
    save_plot,
)
from foreshard.simulator.step.memory import ITEMS, Memory
from foreshard.topologies.errors import InputError, MissingDependencyError

matplotlib = pytest.importorskip("matplotlib", reason="plots need the extra 'plot'")
matplotlib.use("Agg")
pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


def rows():
    """Two layouts at 1, 2, 4, 8 nodes; global sharding does not fit on one."""
    speedups = {8: (1.0, 1.95, 3.8, 7.3), "world": (1.0, 1.2, 1.5, 2.1)}
    return [
        {"cluster.nodes": nodes, "layout.sharding_group_size": size, "speedup": value,
         "memory_fits": (nodes, size) != (1, "world")}
        for size, values in speedups.items() for nodes, value in zip((1, 2, 4, 8), values, strict=True)
    ]  # fmt: skip


def widths(axes, colour=None):
    bars = [bar for bar in axes.patches if colour is None or matplotlib.colors.to_hex(bar.get_facecolor()) == colour]
    return sum(bar.get_width() for bar in bars)


def test_the_bars_of_a_timeline_add_up_to_the_operations_of_its_ranks(made_step):
    trace = made_step.trace
    axes = plot_timeline(trace, ranks=[0, 5])
    assert widths(axes) == pytest.approx((trace.end_s - trace.start_s)[:, [0, 5]].sum() * 1e3)


@pytest.mark.parametrize("stage", STAGE_COLOURS)
def test_every_stage_has_its_own_colour_in_the_timeline(made_step, stage):
    trace = made_step.trace
    axes = plot_timeline(trace, ranks=[5])
    of_stage = [op.stage == stage for op in trace.ops]
    total = (trace.end_s - trace.start_s)[of_stage, 5].sum() * 1e3
    assert widths(axes, STAGE_COLOURS[stage].lower()) == pytest.approx(total)
    assert total > 0


def test_waiting_is_drawn_paler_and_only_where_a_rank_waits(made_step):
    axes = plot_timeline(made_step.trace, ranks=[0, 5])
    pale = sum(bar.get_width() for bar in axes.patches if bar.get_alpha())
    assert pale == pytest.approx(made_step.trace.wait_s[:, [0, 5]].sum() * 1e3)


def test_a_timeline_without_ranks_shows_telling_ones(wide_step):
    axes = plot_timeline(wide_step.trace)
    named = [text.get_text() for text in axes.texts if text.get_text().startswith("rank ")]
    assert named == ["rank 61\nslowest", "rank 0\nwaits most"]


def test_a_timeline_names_operations_where_there_is_room(made_step):
    texts = [text.get_text() for text in plot_timeline(made_step.trace, ranks=[5]).texts]
    assert {"lookup", "backward", "output_dist"} <= set(texts)
    assert "dense_optimizer" not in texts


def test_a_timeline_of_a_rank_outside_the_trace_is_refused(made_step):
    with pytest.raises(InputError, match=r"ranks \[8\] are not in the trace: it has ranks 0 to 7"):
        plot_timeline(made_step.trace, ranks=[8])


def test_work_ahead_for_later_batches_appears_where_it_runs_in_the_step(made_step):
    """A step earlier or later is the same step: bars move by whole steps, and cut ones add up to the whole."""
    trace = made_step.trace
    shift = 1.25 * trace.step_time_s
    early = replace(trace, start_s=trace.start_s - shift, end_s=trace.end_s - shift)
    axes = plot_timeline(early, ranks=[5])
    assert widths(axes) == pytest.approx((trace.end_s - trace.start_s)[:, 5].sum() * 1e3)
    assert all(bar.get_x() >= -1e-9 for bar in axes.patches)
    assert all(bar.get_x() + bar.get_width() <= trace.step_time_s * 1e3 + 1e-9 for bar in axes.patches)


def test_the_parts_of_a_stage_bar_add_up_to_the_step_time(made_step):
    axes = plot_stages(made_step.trace)
    thick = sum(bar.get_width() for bar in axes.patches if bar.get_height() == 0.5)
    assert thick == pytest.approx(made_step.trace.step_time_s * 1e3)
    assert "24.000 ms" in {text.get_text() for text in axes.texts}


def test_exposed_time_is_hatched_and_compute_is_not(made_step):
    parts = breakdown(made_step.trace, 5)
    axes = plot_stages(parts)
    hatched = sum(bar.get_width() for bar in axes.patches if bar.get_hatch())
    assert hatched == pytest.approx(sum(stage.exposed_s for stage in parts.stages.values()) * 1e3)
    assert 0 < hatched < parts.step_time_s * 1e3


def test_each_step_has_its_bar_and_its_name(made_step, wide_step):
    axes = plot_stages({"8 ranks": made_step.trace, "64 ranks": wide_step.trace})
    assert [label.get_text() for label in axes.get_yticklabels()] == ["8 ranks", "64 ranks"]


def memory(gib, cap=80.0):
    items = {name: np.array([1.0, 2.0]) * gib * 2**30 / len(ITEMS) for name in ITEMS}
    return Memory(items=items, hbm_cap_bytes=np.full(2, cap * 2**30))


def test_every_item_of_memory_is_in_the_bar_of_the_fullest_rank():
    axes = plot_memory(memory(20.0))
    assert widths(axes) == pytest.approx(40.0)


def test_what_does_not_fit_is_said_in_words():
    axes = plot_memory({"small": memory(20.0), "large": memory(50.0)})
    assert [text.get_text() for text in axes.texts] == ["40 of 80 GiB, fits", "100 of 80 GiB, does not fit"]


def test_a_step_is_drawn_as_breakdown_above_timeline(made_step):
    above, below = plot_step(made_step.trace).axes
    assert "Where the time" in above.get_title("left")
    assert "24.000 ms" in below.get_title("left")


def test_a_comparison_without_nodes_shows_step_times():
    found = [{"layout.placement": name, "step_time_s": time, "speedup": 2e-3 / time, "memory_fits": time < 4e-3}
             for name, time in (("contiguous", 2e-3), ("interleaved", 4e-3))]  # fmt: skip
    axes = plot_comparison(found)
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([2.0, 4.0])
    assert [text.get_text() for text in axes.texts] == ["2.000 ms, 1.00x", "4.000 ms, 0.50x, does not fit in memory"]


def test_a_comparison_of_nodes_shows_scaling():
    assert plot_comparison(rows()).get_xlabel() == "nodes"


def test_a_scaling_plot_has_a_line_for_each_layout_and_the_ideal():
    axes = plot_scaling(rows())
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert drawn == [
        ([1, 2, 4, 8], [1, 2, 4, 8]),
        ([1, 2, 4, 8], [1.0, 1.95, 3.8, 7.3]),
        ([1, 2, 4, 8], [1.0, 1.2, 1.5, 2.1]),
    ]
    texts = {text.get_text() for text in axes.texts}
    assert texts == {"ideal: 8x", "sharding group size 8: 7.3x", "sharding group size world: 2.1x"}


def test_what_does_not_fit_in_memory_is_marked_hollow():
    axes = plot_scaling(rows())
    hollow = [np.all(faces == 1.0, axis=1).tolist() for faces in (c.get_facecolors() for c in axes.collections)]
    assert hollow == [[False] * 4, [True, False, False, False]]
    assert "hollow" in axes.get_title("left")


def test_combinations_that_cannot_be_are_left_out():
    impossible = {"cluster.nodes": 16, "layout.sharding_group_size": 8, "speedup": None, "problem": "no such thing"}
    assert [list(line.get_xdata()) for line in plot_scaling([*rows(), impossible]).lines] == [[1, 2, 4, 8]] * 3


def test_only_nodes_have_an_ideal():
    """Twice the batch is not twice the machine."""
    of_batch = [{"workload.batch_size": size, "speedup": 1.0 + size / 4096} for size in (1024, 2048, 4096)]
    axes = plot_scaling(of_batch, x="workload.batch_size")
    assert [list(line.get_ydata()) for line in axes.lines] == [[1.25, 1.5, 2.0]]


def test_names_at_the_ends_of_lines_never_touch():
    close = [{"cluster.nodes": n, "plan.default": p, "speedup": n * f} for p, f in zip("abcd", (1, 0.99, 0.98, 0.97),
             strict=True) for n in (1, 2)]  # fmt: skip
    axes = plot_scaling(close)
    axes.figure.draw_without_rendering()
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    assert all(lower.y1 <= upper.y0 + 1 for lower, upper in pairwise(boxes))


def test_rows_that_do_not_vary_the_nodes_are_refused():
    with pytest.raises(InputError, match=r"rows that vary 'cluster.nodes': run compare with --vary"):
        plot_scaling([{"layout.sharding_group_size": 8, "speedup": 1.0}])


def test_a_plot_goes_into_the_axes_given(made_step):
    _, axes = pyplot.subplots()
    assert plot_timeline(made_step.trace, ax=axes) is axes
    assert len(pyplot.get_fignums()) == 1


def test_plotting_leaves_the_users_settings_alone(made_step):
    before = dict(matplotlib.rcParams)
    plot_timeline(made_step.trace)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_plot_gives_the_same_small_file(made_step, tmp_path, suffix):
    files = [save_plot(plot_timeline(made_step.trace), tmp_path / f"{name}.{suffix}") for name in "ab"]
    first, second = (path.read_bytes() for path in files)
    assert first == second
    assert len(first) < 150_000
    assert not re.search(rb"Software|CreationDate|dc:date|tEXt", first)


def test_a_plot_in_an_unknown_format_is_refused_and_nothing_is_left(made_step, tmp_path):
    with pytest.raises(InputError, match=r"\.pdf, \.png, \.svg"):
        save_plot(plot_timeline(made_step.trace), tmp_path / "plot.bmp")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_message_names_the_extra(made_step, monkeypatch):
    real = builtins.__import__

    def missing(name, *arguments, **named):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingDependencyError, match=r"pip install 'foreshard\[plot\]'"):
        plot_timeline(made_step.trace)


def test_importing_the_plots_does_not_import_matplotlib():
    code = "import sys, foreshard.simulator.results.plot; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
