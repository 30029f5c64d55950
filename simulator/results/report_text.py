"""A report as aligned text or as HTML, from the same sections."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, cast

from tabulate import tabulate

from foreshard.simulator.results.link_text import busy_section, damage_section
from foreshard.simulator.results.profile_text import NOT_CALIBRATED, coverage_words, profile_section
from foreshard.simulator.results.section import Section
from foreshard.simulator.step.memory import ITEMS
from foreshard.topologies.units import format_bandwidth, format_bytes, format_ms, format_us

if TYPE_CHECKING:
    from foreshard.simulator.job.program import Stage
    from foreshard.simulator.job.scenario import Assumption
    from foreshard.simulator.results.planner_comparison import PlannerComparison
    from foreshard.simulator.results.report import CollectiveRow, Report
    from foreshard.simulator.results.signals import Imbalance, SyncReport
    from foreshard.simulator.step.memory import Memory
    from foreshard.simulator.torchrec.planner_figures import PlannerFigures

__all__ = ["Section", "html_report", "section_text", "sections", "text_report"]

_WIDTH = 120
_SHOWN = 5e-4  # a memory item below this share of the total is summed up
_HOT_SHOWN = 3
_SHORT = 36  # a longer value is a sentence
_LATENCY_BOUND = 100  # a larger ratio to a bandwidth bound says only that latency rules
_IN_JSON_ONLY = ("launches", "dram", "smp")  # counts of kernel launches and links inside the host


def text_report(report: Report) -> str:
    """Return the report as aligned text."""
    return "\n\n".join(section_text(section) for section in sections(report)) + "\n"


def html_report(report: Report) -> str:
    """Return the report as HTML for a notebook."""
    return "<div>" + "".join(_html(section) for section in sections(report)) + "</div>"


def sections(report: Report) -> list[Section]:
    """Return the parts of a report in reading order."""
    found = [_summary(report), _stages(report), _collectives(report.collectives)]
    if report.links:
        found.append(busy_section(report.links, report.breakdown.step_time_s))
    if report.damage:
        found.append(damage_section(report.damage))
    if report.sync is not None:
        found.append(_sync(report))
    if report.imbalance:
        found.append(_imbalance(report))
    if report.memory is not None:
        found.append(_memory(report, report.memory))
    if report.planner is not None:
        found.append(_planner(report.planner))
    if report.profile is not None:
        found.append(profile_section(report.profile))
    if report.assumptions:
        found.append(_assumptions(report.assumptions))
    if report.provenance:
        told = ", ".join(f"{name} {str(value)[:12]}" for name, value in report.provenance)
        found.append(Section(title="Provenance", notes=(told,)))
    return found


def section_text(section: Section) -> str:
    """Return one part of a report as aligned text."""
    parts = [section.title]
    if section.rows:
        _, *others = zip(*section.rows, strict=True)
        align = ["left", *("right" if _numeric(column) else "left" for column in others)]
        style = "simple" if section.headers else "plain"
        parts.append(tabulate(section.rows, section.headers, tablefmt=style, colalign=align, disable_numparse=True))
    parts += [textwrap.fill(note, _WIDTH, subsequent_indent="  ") for note in section.notes]
    return "\n".join(parts)


def _html(section: Section) -> str:
    table = tabulate(section.rows, section.headers, tablefmt="html", disable_numparse=True) if section.rows else ""
    notes = "".join(f"<p>{escape(note)}</p>" for note in section.notes)
    return f"<h4>{escape(section.title)}</h4>{table}{notes}"


def _numeric(column: Sequence[str]) -> bool:
    return all(cell[:1].isdigit() or cell[:1] in ("-", "") for cell in column)


def _summary(report: Report) -> Section:
    head = report.heading
    time = format_ms(report.step_time_s)
    if report.step_time_interval_s is not None:
        low, high = report.step_time_interval_s
        time += f" (80 % interval {_ms(low)} to {format_ms(high)})"
    rows = [("step time", time)]
    if report.samples_per_s is not None:
        rows.append(("throughput", f"{report.samples_per_s:,.0f} samples/s"))
    if report.host_s:
        bound = ": THE HOST BOUNDS THE STEP, not device or network" if report.host_bound else ""
        rows.append(("host", f"{format_ms(report.host_s)} to launch the kernels and collectives of a step{bound}"))
    if head.machine:
        nodes = f"{head.nodes} x {head.machine}" if head.nodes != 1 else head.machine
        rows += [
            ("machine", f"{nodes}, {head.ranks} ranks of {head.batch_size:,} samples"),
            ("layout", head.layout),
            ("pipeline", head.pipeline),
        ]
    if report.profile is not None:
        rows.append(("profile", coverage_words(report.profile)))
    elif report.on_cpu:
        rows.append(("profile", NOT_CALIBRATED))
    if report.memory is not None:
        rows.append(("memory", _fit_words(report.memory)))
    title = f"{head.name}: {head.description}" if head.description else head.name
    return Section(title=title, rows=tuple(rows))


def _fit_words(memory: Memory) -> str:
    peak = memory.peak_rank
    used = f"{format_bytes(memory.per_rank_bytes[peak])} of {format_bytes(memory.hbm_cap_bytes[peak])} on rank {peak}"
    host = memory.host_bytes[memory.peak_node]
    if host > 0:
        cap = format_bytes(memory.host_cap_bytes[memory.peak_node])
        used += f", and {format_bytes(host)} of {cap} of host memory on node {memory.peak_node}"
    if memory.fits:
        return f"fits: {used}"
    if memory.fits_hbm:
        return f"DOES NOT FIT in host memory, though in HBM it would: {used}"
    before = ", though its weights alone would" if memory.fits_before_overhead else ""
    return f"DOES NOT FIT{before}: {used}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def _stages(report: Report) -> Section:
    parts = report.breakdown
    total = parts.step_time_s
    bands = {stage: f"{_ms(low)} - {_ms(high)}" for stage, (low, high) in report.stage_intervals_s.items()}
    rows: list[tuple[str, ...]] = [
        (name, _ms(it.time_s), _ms(it.compute_s), _ms(it.exposed_s), f"{(it.compute_s + it.exposed_s) / total:.1%}")
        for name, it in parts.stages.items()
    ]
    exposed = sum(stage.exposed_s for stage in parts.stages.values())
    rows.append(("idle (host, launches)", "", "", _ms(parts.idle_s), f"{parts.idle_s / total:.1%}"))
    rows.append(("step", _ms(total), _ms(parts.compute_s), _ms(exposed + parts.idle_s), "100.0%"))
    headers: tuple[str, ...] = ("stage", "time", "compute", "exposed", "of step")
    if bands:
        headers = (*headers, "time, 80 % interval")
        rows = [(*row, bands.get(cast("Stage", row[0]), "")) for row in rows]
    return Section(
        title=f"Stages on the slowest rank, {parts.rank}, in ms",
        headers=headers,
        rows=tuple(rows),
        notes=("exposed: no compute runs and the compute stream waits for this stage",),
    )


def _collectives(rows: Sequence[CollectiveRow]) -> Section:
    table = tuple(
        (
            row.name + (f" (every {row.every})" if row.every > 1 else ""),
            row.kind,
            f"{row.groups} x {' and '.join(map(str, row.group_sizes)) or row.group_size}",
            f"{row.max_bytes_out / 2**20:.2f}",
            f"{row.max_bytes_in / 2**20:.2f}",
            _ms(row.time_s),
            _ms(row.bound_s) if row.ratio is not None else "",
            _times_bound(row.ratio),
            _ms(row.exposed_s),
            row.algorithm,
            row.bottleneck,
        )
        for row in rows
    )
    headers = ("collective", "kind", "groups", "MiB out", "MiB in", "ms", "bound", "ratio", "exposed", "algorithm", "")
    return Section(
        title="Collectives: bytes of the busiest rank, time and closed-form bound of the slowest group",
        headers=(*headers[:-1], "bound by"),
        rows=table,
        notes=() if table else ("none: one rank",),
    )


def _times_bound(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if ratio < _LATENCY_BOUND else f">{_LATENCY_BOUND}"


def _sync(report: Report) -> Section:
    sync = report.sync
    assert sync is not None
    every = f"averaging weights every {sync.sync_interval}"
    rows = [
        ("step without synchronisation", format_ms(sync.plain_step_s)),
        ("step that averages weights", format_ms(sync.weights_step_s)),
        ("step that exchanges gradients of touched rows", format_ms(sync.gradients_step_s)),
        ("average step as configured", format_ms(sync.step_time_s)),
    ]
    if sync.fully_sharded_step_s is not None:
        rows.insert(3, ("step with fully sharded replicas", format_ms(sync.fully_sharded_step_s)))
    placements = report.placements
    if placements is not None:
        for name in ("contiguous", "interleaved"):
            it = getattr(placements, name)
            told = ", ".join(format_ms(time) for time in (it.plain_step_s, it.weights_step_s, it.gradients_step_s))
            rows.append((f"{name}: without, weights, gradients", told))
    configured = {"weights": every, "gradients": "exchanging gradients every step"}.get(sync.sync, "fully sharded")
    notes = [f"configured: {configured}; {sync.sentence()}"]
    if sync.sync == "weights" and sync.sync_interval > 1:
        notes.append(
            "stages above are the average over all steps; a timeline and its plot show the step without "
            "synchronisation, and --trace writes the other one into the folder sync_step"
        )
    if placements is not None:
        notes.append(f"averaging weights, {placements.sentence()}")
    if report.heading.optimizer == "rowwise_adagrad":
        scaled = f"eta / sqrt(v / {sync.replicas} + eps)"
        notes.append(f"row-wise AdaGrad over {sync.replicas} replicas needs the step {scaled} (arXiv 2508.03854)")
    notes += _sync_meaning(sync)
    return Section(title="Replica synchronisation", rows=tuple(rows), notes=tuple(notes))


def _sync_meaning(sync: SyncReport) -> list[str]:
    """What the numbers do not show: what is averaged with what."""
    notes = []
    if sync.sync == "fully_sharded":
        notes.append(
            "fully sharded as in TorchRec 1.9.2: weights are averaged after the lookup (reduce_scatter) and fetched "
            "for the update (all_gather); a lookup reads what its own group wrote, and optimizer state is not averaged"
        )
    if len(set(sync.group_sizes)) > 1:
        least, most = min(sync.group_sizes), max(sync.group_sizes)
        notes.append(
            "groups of different sizes synchronise row range by row range, one set of holders after the other; "
            "averaged weights count every group once, so a sample of a group "
            f"of {least} weighs {most / least:.3g} x one of a group of {most}"
        )
    return notes


def _imbalance(report: Report) -> Section:
    rows = tuple(
        (item.quantity, f"{item.factor:.2f}", str(item.rank), _value(item, item.max), _value(item, item.mean))
        for item in report.imbalance
    )
    notes = tuple(
        f"hot: table {hot.table!r} sends {hot.share:.1%} of its {'distinct ' if hot.distinct else ''}ids to rank "
        f"{hot.rank}, {hot.factor:.2f} x its share"
        for hot in report.hot_tables[:_HOT_SHOWN]
    )
    return Section(
        title="Imbalance across ranks",
        headers=("quantity", "max/mean", "rank", "max", "mean"),
        rows=rows,
        notes=notes,
    )


def _value(item: Imbalance, value: float) -> str:
    match item.unit:
        case "bytes":
            return format_bytes(value)
        case "s":
            return format_ms(value)
        case _:
            return f"{value:,.0f} {item.unit}"


def _memory(report: Report, memory: Memory) -> Section:
    peak = memory.peak_rank
    total = float(memory.per_rank_bytes[peak])
    cap = float(memory.hbm_cap_bytes[peak])
    rows, rest = [], 0.0
    for name, values in memory.items.items():
        nbytes = float(values[peak])
        if nbytes < _SHOWN * total:
            rest += nbytes
        else:
            rows.append((name, f"{nbytes / 2**30:.2f}", f"{nbytes / cap:.1%}", ITEMS[name]))
    if rest:
        rows.append(("other items", f"{rest / 2**30:.2f}", f"{rest / cap:.1%}", "all that are smaller"))
    rows.append(("total", f"{total / 2**30:.2f}", f"{total / cap:.1%}", _fit_words(memory)))
    mean = format_bytes(float(memory.per_rank_bytes.mean()))
    notes = [f"mean over ranks {mean}", *(f"to make it fit: {advice.sentence()}" for advice in report.advice)]
    if not memory.fits and not report.advice:
        notes.append("no single change that foreshard tried makes it fit")
    return Section(
        title=f"Memory of rank {peak}, the fullest, in GiB",
        headers=("item", "GiB", "of HBM", "what"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _planner(planner: PlannerComparison) -> Section:
    rows = [
        (
            name,
            format_ms(estimate.rating_s),
            format_ms(estimate.input_dist_s),
            format_bytes(float(estimate.hbm_bytes.max())),
            format_bytes(max(0.0, estimate.budget_bytes)),
            "fits" if estimate.fits else "does not fit",
        )
        for name, estimate in (
            ("TorchRec's default constants", planner.default),
            ("this machine's rates", planner.machine),
        )
    ]
    own, notes = planner.own, list(planner.reasons)
    if own is not None:
        rating = "" if own.rating_s is None else format_ms(own.rating_s)
        rows.insert(0, ("as it said itself", rating, "", _bytes_or_nothing(own.shards_hbm_bytes), "", ""))
        notes.insert(0, _own_words(own))
    rows.append(("foreshard's step", format_ms(planner.predicted_step_s), "", "", "", ""))
    return Section(
        title="TorchRec's planner on one sharding group",
        headers=("", "rating", "input_dist, not counted", "HBM of shards", "it leaves them", "its verdict"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _own_words(own: PlannerFigures) -> str:
    whole = "" if own.hbm_bytes is None else f", {format_bytes(own.hbm_bytes)} with dense tensors and features"
    return f"as it said itself: {own.source}{whole}; its constants and version may differ from those reproduced"


def _bytes_or_nothing(nbytes: float | None) -> str:
    return "" if nbytes is None else format_bytes(nbytes)


def _assumptions(assumptions: Sequence[Assumption]) -> Section:
    """Short ones as a table, sentences below it; what few people look for is left to the JSON."""
    shown = [item for item in assumptions if not any(word in f"{item.name} {item.unit}" for word in _IN_JSON_ONLY)]
    told = [(item, _quantity(item)) for item in shown]
    rows = tuple(
        (item.name, value, textwrap.shorten(item.source, 72, placeholder=" ..."))
        for item, value in told
        if len(value) <= _SHORT
    )
    sentences = (f"{item.name}: {value} ({item.source})" for item, value in told if len(value) > _SHORT)
    more = len(assumptions) - len(shown)
    hidden = f"and {more} launch counts and links of the host; all sources in full in the JSON"
    return Section(title="Assumed", headers=("name", "value", "source"), rows=rows, notes=(*sentences, hidden))


def _quantity(item: Assumption) -> str:
    if isinstance(item.value, str):
        return item.value
    match item.unit:
        case "B" | "bytes":
            return format_bytes(item.value)
        case "B/s":
            return format_bandwidth(item.value)
        case "s":
            return format_us(item.value)
        case _:
            return f"{item.value:,.6g} {item.unit}".strip()
