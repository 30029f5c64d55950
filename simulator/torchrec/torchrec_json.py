"""TorchRec plans as JSON: what `ShardingPlan._serialize()` returns, and the richer bundle of the planner's objects.

The bundle is written on TorchRec's side (1.9 or later) by

    import dataclasses, json
    from torchrec.distributed.planner.model_arch import extract_model_arch
    from torchrec.distributed.planner.types import ShardingOptionDetail
    chosen = planner.get_selected_options()
    bundle = {
        "options": [dataclasses.asdict(ShardingOptionDetail.from_sharding_option(o)) for o in chosen],
        "pooling_factors": {o.fqn: o.input_lengths for o in chosen},
        "batch_size": chosen[0].batch_size,
        "topology": topology.to_reproduction_dict(),
        "architecture": dataclasses.asdict(extract_model_arch(model, sharders)),
    }
    json.dump(bundle, open("bundle.json", "w"))

Only plain numbers and names are read; keys that are not known are passed over, since TorchRec adds some.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, MinLen

from foreshard.simulator.job.sharding import ShardingType
from foreshard.simulator.job.suggestions import shown
from foreshard.simulator.job.validation import validated
from foreshard.simulator.torchrec.torchrec_shards import Shard, ShardedRow

__all__ = ["ArchTable", "OptionCosts", "read_architecture", "read_options", "read_serialized"]

T = TypeVar("T")
Rank = Annotated[int, Ge(0)]
Pair = tuple[Annotated[int, Ge(0)], Annotated[int, Ge(0)]]

_PLACEMENT = re.compile(r"rank:(\d+)(/.*)?\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class _SerializedShard:
    shard_offsets: Pair
    shard_sizes: Pair
    placement: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _SerializedTable:
    sharding_type: ShardingType
    compute_kernel: str = "fused"
    ranks: tuple[Rank, ...] | None = None
    shards: tuple[_SerializedShard, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _OptionShard:
    rank: Rank | None = None
    size: Pair
    offset: Pair
    hbm_bytes: float = 0.0
    ddr_bytes: float = 0.0
    perf_total: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Option:
    fqn: Annotated[str, MinLen(1)]
    sharding_type: ShardingType
    compute_kernel: str = "fused"
    shards: tuple[_OptionShard, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchTable:
    """A table of TorchRec's ModelArch."""

    name: Annotated[str, MinLen(1)]
    num_embeddings: Annotated[int, Ge(1)]
    embedding_dim: Annotated[int, Ge(1)]
    feature_names: tuple[str, ...] = ()
    pooling: str | None = None
    data_type: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _ArchSharder:
    sharder_type: str
    optimizer: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionCosts:
    """What the planner says a table costs: bytes in HBM and host memory, and its time in ms, over all shards."""

    hbm_bytes: float
    ddr_bytes: float
    perf_ms: float | None


def _picked(cls: type[Any], value: Any) -> Any:
    """The keys of a table that the dataclass knows; anything that is no table as it is."""
    known = {field.name for field in fields(cls)}
    return {key: item for key, item in value.items() if key in known} if isinstance(value, Mapping) else value


def _read(cls: type[T], value: Any, path: tuple[str | int, ...], problems: list[str], inner: type[Any]) -> T | None:
    """Validate a dict with a list `shards` of dicts, passing over unknown keys of both."""
    picked = _picked(cls, value)
    if isinstance(picked, dict) and isinstance(picked.get("shards"), list | tuple):
        picked = {**picked, "shards": [_picked(inner, shard) for shard in picked["shards"]]}
    return validated(cls, picked, path, problems)


def read_serialized(plan: Any, problems: list[str]) -> list[ShardedRow]:
    """Return the tables of a serialised ShardingPlan, {module: {table: sharding}}; mistakes go to `problems`."""
    rows = []
    for module, name, entry in _entries(plan, problems):
        path = ("plan", module, name)
        table = _read(_SerializedTable, entry, path, problems, _SerializedShard)
        if table is not None:
            rows.append(_serialized_row(module, name, table, problems))
    return rows


def _entries(plan: Any, problems: list[str]) -> Iterator[tuple[str, str, Any]]:
    if not isinstance(plan, Mapping) or not plan:
        problems.append("plan: expected a table of modules, each with its tables, as ShardingPlan._serialize() returns")
        return
    for module, tables in plan.items():
        if not isinstance(tables, Mapping):
            problems.append(f"plan.{module} = {shown(tables)}: expected a table of tables")
            continue
        for name, entry in tables.items():
            yield str(module), str(name), entry


def _serialized_row(module: str, name: str, table: _SerializedTable, problems: list[str]) -> ShardedRow:
    shards = table.shards or ()
    ranks = [_rank_of(shard.placement, index, table.ranks) for index, shard in enumerate(shards)]
    problems += (f"table '{name}': {problem}" for problem in _placement_problems(table, ranks))
    return ShardedRow(
        name=name,
        module=module,
        sharding=table.sharding_type,
        kernel=table.compute_kernel,
        ranks=table.ranks or (),
        shards=tuple(
            Shard(
                rank=rank or 0,
                row=shard.shard_offsets[0],
                rows=shard.shard_sizes[0],
                column=shard.shard_offsets[1],
                columns=shard.shard_sizes[1],
            )
            for rank, shard in zip(ranks, shards, strict=True)
        ),
    )


def _rank_of(placement: str | None, index: int, ranks: tuple[int, ...] | None) -> int | None:
    match = _PLACEMENT.match(placement or "")
    if match:
        return int(match.group(1))
    return ranks[index] if placement is None and ranks and index < len(ranks) else None


def _placement_problems(table: _SerializedTable, found: Sequence[int | None]) -> Iterator[str]:
    """Yield what is wrong with the shards' placements, and where they contradict the table's list of ranks."""
    shards, listed = table.shards or (), table.ranks or ()
    foreign = [shard.placement for shard in shards if shard.placement and not _PLACEMENT.match(shard.placement)]
    if foreign:
        others = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        yield f"the placement {shown(foreign[0])}{others} names no rank: expected one such as 'rank:2/cuda:0'"
    elif None in found:
        yield "a shard has neither a placement such as 'rank:2/cuda:0' nor a rank"
    elif listed and shards and list(listed) != list(found):
        yield (
            f"ranks = {shown(list(listed))} contradict the placements of its {len(shards)} shards, on ranks "
            f"{shown(list(found))}: give one rank for each shard, in the order of shards, or drop ranks"
        )


def read_options(entries: Any, problems: list[str]) -> tuple[list[ShardedRow], dict[str, OptionCosts]]:
    """Return the tables of a list of ShardingOptionDetail dicts, and by fqn what the planner says each costs."""
    if not isinstance(entries, list) or not entries:
        problems.append("options: expected a list of ShardingOptionDetail as dicts")
        return [], {}
    read = [_read(_Option, entry, ("options", index), problems, _OptionShard) for index, entry in enumerate(entries)]
    options = [option for option in read if option is not None]
    return [_option_row(option, problems) for option in options], {option.fqn: _costs(option) for option in options}


def _option_row(option: _Option, problems: list[str]) -> ShardedRow:
    module, _, name = option.fqn.rpartition(".")
    if any(shard.rank is None for shard in option.shards):
        problems.append(f"table '{name}': a shard has no rank: export the options that the planner selected")
    shards = tuple(
        Shard(
            rank=shard.rank or 0,
            row=shard.offset[0],
            rows=shard.size[0],
            column=shard.offset[1],
            columns=shard.size[1],
        )
        for shard in option.shards
    )
    whole = option.sharding_type == "data_parallel"
    ranks = tuple(shard.rank for shard in shards)
    return ShardedRow(
        name=name, module=module, sharding=option.sharding_type, kernel=option.compute_kernel, ranks=ranks,
        shards=() if whole else shards,
    )  # fmt: skip


def _costs(option: _Option) -> OptionCosts:
    times = [shard.perf_total for shard in option.shards]
    return OptionCosts(
        hbm_bytes=sum(shard.hbm_bytes for shard in option.shards),
        ddr_bytes=sum(shard.ddr_bytes for shard in option.shards),
        perf_ms=sum(time for time in times if time is not None) if times and None not in times else None,
    )


def read_architecture(entry: Any, problems: list[str]) -> tuple[list[ArchTable], list[str]]:
    """Return the tables of a ModelArch dict and the names of its optimizers."""
    tables = entry.get("tables") if isinstance(entry, Mapping) else None
    if not isinstance(tables, list) or not tables:
        problems.append("architecture.tables: expected a list of tables, as extract_model_arch gives it")
        return [], []
    read = [
        validated(ArchTable, _picked(ArchTable, table), ("architecture", "tables", index), problems)
        for index, table in enumerate(tables)
    ]
    sharders = [
        validated(_ArchSharder, _picked(_ArchSharder, sharder), ("architecture", "sharders", index), problems)
        for index, sharder in enumerate(entry.get("sharders", ()))
    ]
    optimizers = {sharder.optimizer for sharder in sharders if sharder and sharder.optimizer}
    return [table for table in read if table is not None], sorted(optimizers)
