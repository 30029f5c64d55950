"""What the parts of a scenario must agree on: every contradiction between them, as sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from foreshard.simulator.comms.hierarchical import cannot_take_two_steps
from foreshard.simulator.job.histogram import histogram_problems
from foreshard.simulator.job.layout import Groups, Layout, resolve_layout
from foreshard.simulator.job.row_files import some
from foreshard.simulator.job.scenario import ClusterChoice, Comms
from foreshard.simulator.job.sharding import Plan
from foreshard.simulator.job.suggestions import did_you_mean, toml_path
from foreshard.simulator.job.workload import Dense, Table
from foreshard.simulator.plans.plan_checks import check_plan, check_plan_by_size
from foreshard.simulator.step.prediction import load_cluster
from foreshard.simulator.step.profiles import load_profile
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import preset_names
from foreshard.topologies.units import format_bytes

__all__ = ["MAX_NODES", "check_dense", "check_tables", "check_together", "resolve_cluster"]

MAX_NODES = 65_536  # half a million GPUs; far past what one machine simulates, and a slip of the finger beyond


def resolve_cluster(choice: ClusterChoice, problems: list[str], conflicts: list[str]) -> Cluster | None:
    """Return the machine of a scenario, or None after adding a sentence for each mistake to `problems`.

    What is wrong with these nodes or their damage, and not with the machine itself, is added to `conflicts`.
    """
    if (choice.preset is None) == (choice.file is None):
        given = "both preset and file are given: keep one" if choice.preset else "give preset or file"
        problems.append(f"cluster: {given}")
        return None
    if choice.nodes is not None and choice.nodes > MAX_NODES:
        problems.append(f"cluster.nodes = {choice.nodes}: expected at most {MAX_NODES}")
        return None
    if choice.preset is not None and choice.preset not in preset_names():
        known = preset_names()
        hint = did_you_mean(choice.preset, known) or f"; shipped are {', '.join(known)}"
        problems.append(f'cluster.preset = "{choice.preset}": no such machine{hint}')
        return None
    try:
        cluster = load_cluster(choice)
    except InputError as error:
        where = f"{error.where}: " if error.where else ""
        own = choice.file is not None and error.where == choice.file
        (problems if own else conflicts).extend(some([f"cluster: {where}{problem}" for problem in error.problems]))
        return None
    try:
        load_profile(choice, cluster)
    except InputError as error:
        problems.extend(some([f"cluster.profile: {error.where}: {problem}" for problem in error.problems]))
    return cluster


def check_tables(tables: Sequence[Table]) -> Iterator[str]:
    """Yield what is wrong with the tables among themselves: names and features used twice, lists that do not fit."""
    for name, count in Counter(table.name for table in tables).items():
        if count > 1:
            yield f"workload.tables: {count} tables are named {name!r}: give each table its own name"
    yield from _check_features(tables)
    for table in tables:
        yield from (f"{toml_path(('workload', 'tables', table.name))}.{problem}" for problem in _check_table(table))


def _check_features(tables: Sequence[Table]) -> Iterator[str]:
    users: dict[str, list[str]] = {}
    for table in {table.name: table for table in tables}.values():
        for feature in table.features:
            users.setdefault(feature, []).append(table.name)
    for feature, names in users.items():
        if len(names) > 1:
            among = " and ".join(repr(name) for name in dict.fromkeys(names))
            yield f"workload.tables: feature {feature!r} is used {len(names)} times, by {among}: it has one table"


def _check_table(table: Table) -> Iterator[str]:
    if len(table.pooling_factors) != len(table.features):
        yield (
            f"pooling_factor has {len(table.pooling_factors)} entries but the table has {len(table.features)} "
            "features: give one number, or one per feature name"
        )
    if sum(table.access.heavy_hitters) > 1:
        yield f"access.heavy_hitters sum to {sum(table.access.heavy_hitters):g}: shares of all lookups sum to at most 1"
    if len(table.access.heavy_hitters) > table.num_embeddings:
        yield (
            f"access.heavy_hitters names {len(table.access.heavy_hitters)} rows but the table has "
            f"{table.num_embeddings}: give at most one share per row"
        )
    yield from (f"access.{problem}" for problem in histogram_problems(table.access, table.num_embeddings))


def check_dense(dense: Dense) -> Iterator[str]:
    """Yield what is wrong with the dense model."""
    for index, chain in enumerate(dense.layers):
        if len(chain) < 2:
            yield f"workload.dense.layers[{index}] = {list(chain)}: expected at least two widths, inputs and outputs"
    totals = {name: getattr(dense, name) for name in ("forward_flops_per_sample", "parameters")}
    given = [name for name, value in totals.items() if value is not None]
    if dense.layers and given:
        yield (
            f"workload.dense: layers and {' and '.join(given)} both say how large the model is: "
            f"give layers, or {' and '.join(totals)}"
        )
    elif not dense.layers and len(given) == 1:
        (missing,) = totals.keys() - set(given)
        yield f"workload.dense: {given[0]} is given without {missing}: give both (0 if there are none), or layers"
    elif not dense.layers and not given and dense.kernels is not None:
        yield f"workload.dense: kernels is given without {' and '.join(totals)}: give all three, or layers"


def check_together(
    cluster: Cluster,
    tables: tuple[Table, ...],
    dense: Dense | None,
    layout: Layout | None,
    plan: Plan | None,
    comms: Comms | None,
) -> Iterator[str]:
    """Yield contradictions between a machine and what is for it: tables, dense model, layout, plan and exchanges.

    None stands for what could not be read.
    """
    yield from _check_capacity(tables, cluster)
    yield from _check_data_type(dense, cluster) if dense else ()
    groups = None
    if layout is not None:
        try:
            groups = resolve_layout(layout, cluster.size)
        except InputError as error:
            yield from error.problems
            with suppress(InputError):  # what is wrong with synchronisation does not hide what is wrong with the plan
                groups = resolve_layout(replace(layout, sync="weights"), cluster.size)
    if groups is not None and comms is not None and comms.all_to_all == "hierarchical":
        yield from _check_two_steps(cluster, groups.sharding)
    if plan is None or not tables:
        return
    read = {table.name: table for table in tables}
    known = Plan(default=plan.default, tables=tuple(pair for pair in plan.tables if pair[0] in read))
    every = tuple(read.values())
    if groups is None:
        yield from _merged(_wrong_in_any_layout(known, every, cluster))
    else:
        yield from _merged(check_plan_by_size(known, every, groups.group_shapes(cluster.node_of)))


def _wrong_in_any_layout(plan: Plan, tables: tuple[Table, ...], cluster: Cluster) -> list[str]:
    """What is wrong with the world as one sharding group, of tables that are wrong in groups of every size."""
    local, world = cluster.local_world_size, cluster.size
    sizes = [size for size in range(1, world) if world % size == 0]
    shapes = {(size, held) for size in sizes for held in (min(size, local), max(1, size // cluster.nodes))}
    whole = check_plan(plan, tables, world, local)
    wrong = {_subject(problem) for problem in whole}
    for shape in sorted(shapes) if wrong else ():
        wrong &= {_subject(problem) for problem in check_plan(plan, tables, *shape)}
    return [f"{problem} [in any layout]" for problem in whole if _subject(problem) in wrong]


def _subject(problem: str) -> str:
    """The table that a sentence is about; the sentence itself if it is about none."""
    match = _ABOUT_TABLE.match(problem)
    return match["name"] if match else problem


def _check_two_steps(cluster: Cluster, groups: Groups) -> Iterator[str]:
    problems = {cannot_take_two_steps(cluster, ranks) for ranks in groups.members} - {""}
    yield from (f'comms.all_to_all = "hierarchical": {problem}: use pairwise' for problem in sorted(problems))


def _check_data_type(dense: Dense, cluster: Cluster) -> Iterator[str]:
    given = dense.data_type
    missing = sorted({gpu.name for gpu in cluster.gpus if given not in gpu.flops})
    if missing:
        known = sorted(set.intersection(*(set(gpu.flops) for gpu in cluster.gpus)))
        yield (
            f'workload.dense.data_type = "{given}": {", ".join(missing)} has no FLOP/s figure for it: '
            f"use one of {', '.join(known)}, or give the figure in a cluster file"
        )


def _check_capacity(tables: Iterable[Table], cluster: Cluster) -> Iterator[str]:
    counts = Counter(cluster.gpu_index.tolist())
    total = sum(cluster.gpus[index].hbm_bytes * count for index, count in counts.items())
    for table in tables:
        if table.nbytes > total:
            yield (
                f"{toml_path(('workload', 'tables', table.name))} needs {format_bytes(table.nbytes)} but all "
                f"{cluster.size} GPUs together have {format_bytes(total)}: use more nodes, fewer rows, a smaller "
                "embedding_dim or a smaller data_type"
            )


_ABOUT_TABLE = re.compile(r"table '(?P<name>.*?)'(?P<default> \(plan\.default\))?: (?P<problem>.*)\Z")


def _merged(problems: Iterable[str]) -> Iterator[str]:
    """One sentence where many tables share one problem, as they do under plan.default or a rule."""
    groups: dict[tuple[str, str], list[str]] = {}
    for sentence in problems:
        match = _ABOUT_TABLE.match(sentence)
        key = (match["problem"], match["default"] or "") if match else (sentence, "")
        groups.setdefault(key, []).append(match["name"] if match else "")
    for (problem, default), names in groups.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"table {names[0]!r}{others}{default}: {problem}" if names[0] else problem
