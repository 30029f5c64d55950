"""The way of one id in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from foreshard.simulator.results.explain import Explanation, Holder, Hop, LinkOnPath, Owner, Span, StageStory

__all__ = ["explanation_text"]

_WIDTH = 120
_SHOWN = 8  # ranks, owners or hops listed one by one


def explanation_text(told: Explanation) -> str:
    """Return the explanation as text, to be read in a minute."""
    lines = [*_heading(told)]
    for number, story in enumerate(told.stages, start=1):
        lines += ["", *_stage(number, story)]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=" " * (len(indent) + 2))


def _heading(told: Explanation) -> Iterator[str]:
    table = told.table
    yield f"{told.scenario}: id {told.id} of table {table.name!r}, in the batch of rank {told.rank} (node {told.node})"
    features = "" if table.features == (table.name,) else f"; features {_listed([*table.features])}"
    yield _row("table", f"{table.num_embeddings:,} rows x {table.embedding_dim} {table.data_type}{features}")
    yield _row("asked", _occurrences(told))
    if told.owners:
        whole = told.owners[0].rows == (0, table.num_embeddings)
        by = "" if whole else " by hash" if told.hashed else " by ranges"
        yield _row("sharded", f"{told.sharding}{by} in sharding group {told.group}, {_ranks(told.members)}")
        yield _row("owner", _owner(told.owners[0]))
        yield from (_row("", _owner(owner)) for owner in told.owners[1:_SHOWN])
        yield from _replicas(told)
    else:
        yield _row("sharded", f"{told.sharding}: every rank holds the whole table")
    yield _row("synchronised", told.synchronised)
    if told.timed_by:
        yield _row("timed by", told.timed_by)
    if any(span.start_s < 0 for story in told.stages[:2] for span in story.spans):
        yield _row("times", "count from the step that trains this batch; negative ones lie in the steps before it")


def _row(name: str, text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=f"  {name:<13}", subsequent_indent=" " * 17)


def _occurrences(told: Explanation) -> str:
    if told.counted:
        return f"{told.occurrences:.0f} times in this batch"
    return f"{told.occurrences:.3g} times in a batch, in expectation"


def _owner(owner: Owner) -> str:
    at = owner.holder
    rows = "" if owner.rows is None else f" (rows {owner.rows[0]:,} to {owner.rows[1] - 1:,})"
    columns = f"columns {owner.columns[0]} to {owner.columns[1] - 1}, "
    where = f"rank {at.rank} (node {at.node}, position {at.position}), {_local(at)}"
    return f"{where}; {columns}row part {owner.row_part}{rows}"


def _local(holder: Holder) -> str:
    if holder.local_row is None:
        return "local row not counted in so large a hashed table"
    return f"local row {holder.local_row:,}"


def _replicas(told: Explanation) -> Iterator[str]:
    """Where the first column slice is held besides; the others lie with their own owners' peers."""
    replicas = told.owners[0].replicas
    if not replicas:
        return
    same = all(item.local_row == told.owners[0].holder.local_row for item in replicas)
    where = [f"{item.rank} (node {item.node}{'' if same else ', ' + _local(item)})" for item in replicas]
    slices = " of the first column slice" if len(told.owners) > 1 else ""
    alike = ", at the same local row" if same else ""
    yield _row("replicas", f"{'ranks' if len(where) > 1 else 'rank'} {_listed(where)}{slices}{alike}")


def _stage(number: int, story: StageStory) -> Iterator[str]:
    yield f"{number} {story.stage}{_when(story.spans)}"
    yield _wrapped(story.told, "  ")
    for hop in story.hops[:_SHOWN]:
        yield _wrapped(_hop(hop), "  - ")
    if len(story.hops) > _SHOWN:
        yield f"  - and {len(story.hops) - _SHOWN} more of the same kind"


def _when(spans: Sequence[Span]) -> str:
    """From when to when, and on which ranks."""
    if not spans:
        return ""
    ranks = sorted({span.rank for span in spans})
    begin, end = min(span.start_s for span in spans), max(span.end_s for span in spans)
    on = " and ".join(map(str, ranks))
    return f", {begin * 1e3:.3f} to {end * 1e3:.3f} ms on rank{'s' if len(ranks) > 1 else ''} {on}"


def _hop(hop: Hop) -> str:
    if not hop.links:
        return f"{hop.what}: {hop.nbytes:,.0f} B stay on rank {hop.src}"
    others = f"; {hop.paths} equal paths" if hop.paths > 1 else ""
    return f"{hop.what}: {hop.nbytes:,.0f} B from rank {hop.src} to rank {hop.dst} over {_links(hop.links)}{others}"


def _links(links: Sequence[LinkOnPath]) -> str:
    """Devices along the way, and between them the bandwidth of each link in GB/s."""
    ends = [link.name.split("->") for link in links]
    way = [f"[{link.bandwidth / 1e9:.4g}] {end[-1]}" for link, end in zip(links, ends, strict=True)]
    return " ".join([ends[0][0], *way]) + " GB/s"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return ("rank " if len(ranks) == 1 else "ranks ") + _listed([str(rank) for rank in ranks])


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items[:_SHOWN]) + (f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else "")
