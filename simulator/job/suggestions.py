"""Words for mistakes: how a value is shown, what was expected in its place, and what was probably meant."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen

__all__ = [
    "Path",
    "did_you_mean",
    "expectation",
    "field_type",
    "key_names",
    "shown",
    "shown_path",
    "toml_path",
    "unknown_key",
]

Path = tuple[str | int, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_LONGEST = 60
_FAR = 1_000_000  # bounds from here on, and their inverses, are reached by slips of the finger only
_LONGEST_PATH = 200
_NOUNS = {int: "a whole number", float: "a number", str: "text in quotes", bool: "true or false"}


def toml_path(path: Path) -> str:
    """Return a path as TOML writes it, as 'plan.tables."user id".ranks[0]'."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE_KEY.match(part) else _quoted(part))
    return text


def shown(value: object) -> str:
    """Return a value as TOML would write it, cut to one short line."""
    match value:
        case bool():
            text = str(value).lower()
        case str():
            text = _quoted(value)
        case Mapping():
            text = "{ " + ", ".join(f"{key} = {shown(item)}" for key, item in value.items()) + " }"
        case Sequence():
            text = "[" + ", ".join(shown(item) for item in value) + "]"
        case _:
            text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."


def shown_path(path: object) -> str:
    """Return the path of a file for a message: its ends if it is very long, and nothing that does not print."""
    text = _printable(str(path))
    return text if len(text) <= _LONGEST_PATH else f"{text[:40]} ... {text[-40:]} ({len(text)} characters)"


def _quoted(text: str) -> str:
    """The text in quotes, with whatever does not print, a line break say, escaped: a message stays one line."""
    return '"' + _printable(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name most like `given`, or nothing if none is near."""
    close = get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_key(path: Path, known: Sequence[str]) -> str:
    """Return the sentence for a key that does not exist where it was written."""
    hint = did_you_mean(str(path[-1]), known)
    return f"{toml_path(path)}: unknown key{hint or '; keys here are ' + ', '.join(known)}"


def key_names(cls: Any) -> list[str]:
    """Names of the keys that a dataclass has in a file."""
    return [field.name for field in fields(cls)]


def expectation(annotation: Any, given: object = None) -> str:
    """Return what a field of that type takes, in words: "a whole number of at least 1".

    Limits that only a slip of the finger reaches are named where `given` is past them.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = (bound for bound in arguments[1:] if not _is_far(bound, given))
        return _bounded(expectation(arguments[0], given), bounds)
    if origin is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in arguments)
    if origin in (Union, types.UnionType):
        return ", or ".join(expectation(argument, given) for argument in arguments if argument is not type(None))
    if origin is tuple:
        return f"a list, each {expectation(arguments[0], given)}"
    if is_dataclass(annotation):
        return "a table with the keys " + ", ".join(key_names(annotation))
    return _NOUNS.get(annotation, "another value")


def _is_far(bound: object, given: object) -> bool:
    """Whether a bound need not be told: one that only a slip of the finger reaches, and `given` has not reached it."""
    match bound:
        case Le(le=int() | float() as high) if high >= _FAR:
            return not any(number > high for number in _numbers(given))
        case Ge(ge=int() | float() as low) if 0 < low <= 1 / _FAR:
            return not any(0 < number < low for number in _numbers(given))
    return False


def _numbers(given: object) -> list[float]:
    """The finite numbers that a value is or lists."""
    items = given if isinstance(given, list) else [given]
    return [item for item in items if type(item) is int or (isinstance(item, float) and math.isfinite(item))]


def _bounded(noun: str, bounds: Iterable[object]) -> str:
    words = []
    for bound in bounds:
        match bound:
            case Ge(ge=low):
                words.append(f"of at least {low}")
            case Gt(gt=low):
                words.append(f"above {low}")
            case Le(le=high):
                words.append(f"of at most {high:,}" if isinstance(high, int) else f"of at most {high}")
            case Lt(lt=high):
                words.append(f"below {high}")
            case MinLen(min_length=length):
                words.append(f"of at least {length} character{'s' if length > 1 else ''}")
    return " ".join([noun, " and ".join(words)]).strip()


def field_type(cls: Any, path: Path) -> tuple[Path, Any]:
    """Return the type that `cls` declares at `path`, and the part of `path` that leads to it.

    The walk ends early at a union, whose branches have no name in a file.
    """
    annotation: Any = cls
    for depth, part in enumerate(path):
        annotation = _without_none(annotation)
        if get_origin(annotation) in (Union, types.UnionType):
            return path[:depth], annotation
        if get_origin(annotation) is tuple and isinstance(part, int):
            annotation = get_args(annotation)[0]
        elif is_dataclass(annotation) and part in key_names(annotation):
            annotation = get_type_hints(annotation, include_extras=True)[str(part)]
        else:
            return path[: depth + 1], None
    return path, _without_none(annotation)


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    members = [member for member in get_args(annotation) if member is not type(None)]
    return members[0] if len(members) == 1 else annotation
