"""Plain values from a file, read through the frozen dataclasses by pydantic; every mistake is one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from foreshard.simulator.job.suggestions import (
    Path,
    did_you_mean,
    expectation,
    field_type,
    key_names,
    shown,
    toml_path,
    unknown_key,
)

__all__ = ["validated"]

T = TypeVar("T")

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@cache
def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    # A dataclass takes no configuration of its own from outside, but inherits that of the tuple around it.
    return TypeAdapter(tuple[cls], config=_STRICT)  # type: ignore[valid-type]


def validated(cls: type[T], value: object, path: Path, problems: list[str]) -> T | None:
    """Return `value` as an instance of the dataclass, or None after adding a sentence for each mistake to `problems`.

    `path` is where the value stands in its file. Whole numbers serve as numbers; nothing else is converted.
    """
    if not isinstance(value, dict):
        problems.append(f"{toml_path(path)} = {shown(value)}: expected {expectation(cls)}")
        return None
    declared: Any = cls  # mypy takes a type[T] for unhashable
    try:
        # Strict JSON takes lists for tuples and tables for dataclasses, strict Python objects would not.
        read: T = _adapter(declared).validate_json(json.dumps([value], default=str))[0]
        return read
    except ValidationError as error:
        problems.extend(dict.fromkeys(_sentences(cls, value, path, error)))
        return None


def _sentences(cls: type[Any], value: dict[str, Any], path: Path, error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False, include_input=False):
        inner, annotation = field_type(cls, detail["loc"][1:])
        where = (*path, *inner)
        match detail["type"]:
            case "missing":
                yield f"{toml_path(where)} is missing: give {expectation(annotation)}"
            case "unexpected_keyword_argument":
                _, parent = field_type(cls, inner[:-1])
                yield unknown_key(where, key_names(parent))
            case _:
                yield _refused(where, _at(value, inner), annotation)


def _refused(where: Path, given: object, annotation: Any) -> str:
    expected = expectation(annotation, given)
    hint = ""
    if isinstance(given, str):
        hint = did_you_mean(given, _choices(annotation))
    elif isinstance(given, float) and not math.isfinite(given):
        expected += ", and finite"
    return f"{toml_path(where)} = {shown(given)}: expected {expected}{hint}"


def _choices(annotation: Any) -> list[str]:
    return [choice for choice in getattr(annotation, "__args__", ()) if isinstance(choice, str)]


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value
