"""What all ranks of a run must agree on, as flat keys and values: the scenario, what became of it, and versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.step.prediction import Prediction

__all__ = ["Terms", "differences", "digest_of", "terms_of"]

Terms = dict[str, Any]

_SHOWN = 60  # characters of a value before it is cut
_MOST = 8  # keys named


def terms_of(prediction: Prediction, settings: Mapping[str, Any]) -> Terms:
    """Return the terms of a run: every key of the scenario, owners of every table, versions, and `settings` as given.

    Keys are those of a scenario file, tables and exceptions of the plan by name. Names and descriptions do not count,
    nor does where a file of the cluster lies.
    """
    scenario = prediction.scenario
    terms: Terms = {"foreshard": version("foreshard"), "torch": version("torch")}
    for section in ("workload", "plan", "layout", "comms", "execution"):
        terms.update(_flat(getattr(scenario, section), section))
    terms["cluster.node_of"] = prediction.cluster.node_of.tolist()
    for index, plan in enumerate(prediction.plans):
        for item in plan:
            terms[f"owners.{item.table.name}" + (f".{index + 1}" if index else "")] = _owners(item)
    terms.update(settings)
    return terms


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Keys and plain values below `path`."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _flat(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, tuple) and (named := _named(value)):
        for name, item in named:
            yield from _flat(item, f"{path}.{name}")
    else:
        yield path, value


def _named(values: Sequence[Any]) -> list[tuple[str, Any]]:
    """Entries with their names: of a plan they are pairs, of a workload tables; empty if these are plain values."""
    if all(isinstance(item, tuple) and len(item) == 2 and is_dataclass(item[1]) for item in values):
        return [(str(name), item) for name, item in values]
    if all(is_dataclass(item) and hasattr(item, "name") for item in values):
        return [(str(item.name), item) for item in values]
    return []


def _owners(item: ShardedTable) -> list[list[int]]:
    return [np.ravel(part).tolist() for part in (item.owners, item.row_bounds, item.col_bounds)]


def digest_of(terms: Terms) -> str:
    """The SHA-256 of the terms; equal terms have equal ones on every machine."""
    return hashlib.sha256(_text(terms).encode()).hexdigest()


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def differences(mine: Terms, theirs: Terms, names: tuple[str, str]) -> list[str]:
    """Sentences naming each key in which two terms differ and both values: "execution.seed is 7 on rank 2, 3 on 0"."""
    keys = [key for key in {**theirs, **mine} if _text(mine.get(key)) != _text(theirs.get(key))]
    told = []
    for key in keys[:_MOST]:
        values = [f"{_shown(terms, key)} on {name}" for terms, name in zip((mine, theirs), names, strict=True)]
        told.append(f"{key} is {values[0]}, {values[1]}")
    return [*told, f"and {len(keys) - _MOST} more keys"] if len(keys) > _MOST else told


def _shown(terms: Terms, key: str) -> str:
    if key not in terms:
        return "absent"
    text = _text(terms[key])
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}... (sha256 {hashlib.sha256(text.encode()).hexdigest()[:8]})"
