"""Scenario files as plain TOML documents: reading them, changing them by `key=value`, and writing scenarios."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any
from unicodedata import category

import tomli_w

from foreshard.simulator.job.scenario import Scenario
from foreshard.simulator.job.suggestions import Path as Place
from foreshard.simulator.job.suggestions import shown, shown_path, toml_path
from foreshard.simulator.step.constants import constants_document
from foreshard.topologies.errors import InputError
from foreshard.topologies.output import replaced

__all__ = [
    "MOST_TABLES",
    "SCHEMA",
    "Document",
    "apply_override",
    "is_schema",
    "parse_override",
    "parse_toml",
    "read_toml",
    "save_scenario",
    "to_document",
    "to_toml",
    "too_many_tables",
    "unprintable",
]

SCHEMA = 1
MOST_TABLES = 100_000  # the largest models in production know about 4,000; 25 times more are a slip or an attack
Document = dict[str, Any]

_LIST_ENTRY = re.compile(r"^[ \t]*\[\[", re.MULTILINE)
_WORD = re.compile(r"[\w.:/*?~@ +-]+\Z")
_DAMAGE = "cluster.degrade."


def read_toml(path: Path, *, kind: str = "scenario") -> Document:
    """Return the document in a TOML file; raises InputError if it is missing, not a file, not UTF-8 or not TOML.

    `kind` says what the file was expected to hold, for messages.
    """
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # a path with a NUL character is a ValueError
        raise InputError(_unreadable(error, kind), where=shown_path(path)) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 text (byte {data[error.start]:#04x} at offset {error.start}): save the file as UTF-8"
        raise InputError(problem, where=shown_path(path)) from None
    return parse_toml(text, where=shown_path(path))


def _unreadable(error: OSError | ValueError, kind: str) -> str:
    if isinstance(error, ValueError):
        return f"no file has such a name: {error}"
    if isinstance(error, FileNotFoundError):
        return f"no such file: give the path of a {kind} file or a shipped name (`foreshard presets` lists them)"
    if isinstance(error, IsADirectoryError):
        return "is a folder: give the TOML file in it"
    return f"cannot be read: {error.strerror or error}"


def parse_toml(text: str, *, where: str) -> Document:
    """Return the document in a TOML text; raises InputError with the line and column of what is not TOML."""
    entries = sum(1 for _ in _LIST_ENTRY.finditer(text))  # before parsing, which would take minutes
    if entries > 2 * MOST_TABLES:
        raise InputError(f"has {entries} entries in double brackets: {_FEWER}", where=where)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(_not_toml(text, error), where=where) from None
    except RecursionError:
        raise InputError("not valid TOML: lists or tables are nested too deeply", where=where) from None
    except ValueError:  # Python converts no integer of more than 4,300 digits
        raise InputError("not valid TOML: an integer has more digits than can be read", where=where) from None


_FEWER = f"expected at most {MOST_TABLES} tables: merge small ones"


def too_many_tables(count: int) -> Iterator[str]:
    """Yield a sentence if there are more tables than are worth looking at one by one."""
    if count > MOST_TABLES:
        yield f"{count} tables: {_FEWER}"


def _not_toml(text: str, error: tomllib.TOMLDecodeError) -> str:
    """What to do with a file that is no TOML: of a plan, which is easily taken for a scenario, make one."""
    is_json = text.lstrip()[:1] == "{"
    if '"foreshard-plan"' in text or "Planner Statistics" in text or (is_json and '"sharding_type"' in text):
        return (
            "is a plan, not a scenario: make one of it with `foreshard import-plan PLAN -o plan.json "
            "--scenario FILE.toml --preset NAME`, and give FILE.toml"
        )
    return f"{'is JSON, ' if is_json else ''}not valid TOML: {_first_lower(str(error))}"


def _first_lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def is_schema(value: object) -> bool:
    """Whether a file says that it is of the one schema there is: the whole number 1."""
    return type(value) is int and value == SCHEMA


_ANY_CHARACTER = (
    "separator",
    "ids",
    "file",
    "histogram",
    "prefix",
    "degrade",
)  # data and paths, which nothing prints as they are


def unprintable(value: Any, path: Place = ()) -> Iterator[str]:
    """Yield a sentence for each key and text of a document that holds a control character: it would reach a terminal.

    A description may have several lines.
    """
    entries: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        entries = ((key, item) for key, item in value.items() if key not in _ANY_CHARACTER)
    elif isinstance(value, list):
        entries = ((_name_of(item, index), item) for index, item in enumerate(value))
    for key, item in entries:
        here = (*path, key)
        lines = "\n\t" if key in ("description", "source") else ""
        for text in (item, key if isinstance(value, dict) else ""):
            if isinstance(text, str) and (bad := next((c for c in text if c not in lines and _is_control(c)), None)):
                yield f"{toml_path(here)}: holds the control character {shown(bad)}: a text here is plain, in one line"
                break
        else:
            yield from unprintable(item, here)


def _name_of(item: Any, index: int) -> str | int:
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) and name else index


def _is_control(char: str) -> bool:
    """Whether a character moves the cursor, ends the line or turns the writing: Unicode's Cc, Cf, Cs, Zl and Zp."""
    return category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in "\u200c\u200d"  # joiners belong to words


def parse_override(assignment: str) -> tuple[tuple[str, ...], Any]:
    """Return the path and the value of "key.key=value".

    The key is a dotted TOML key, the value a TOML value; a word needs no quotes, nor do the links that follow
    "cluster.degrade.". Raises InputError.
    """
    if "=" not in assignment:
        raise InputError(f"{shown(assignment)} has no '=' in it: write key=value, as in layout.sharding_group_size=8")
    for equals in re.finditer("=", assignment):  # a quoted key may hold one too
        key, text = assignment[: equals.start()].strip(), assignment[equals.end() :].strip()
        try:
            path = _dotted_key(tomllib.loads(f"{key} = 0"))
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
        return path, _override_value(path, text)
    if assignment.strip().startswith(_DAMAGE):  # names of links have characters that TOML wants quoted
        pattern, _, text = assignment.strip().removeprefix(_DAMAGE).rpartition("=")
        path = (*_DAMAGE.rstrip(".").split("."), pattern.strip())
        return path, _override_value(path, text.strip())
    raise InputError(f"{shown(assignment.partition('=')[0].strip())} is not a dotted key such as cluster.nodes")


def _dotted_key(tree: Any) -> tuple[str, ...]:
    path = []
    while isinstance(tree, dict):
        key, tree = next(iter(tree.items()))
        path.append(key)
    return tuple(path)


def _override_value(path: tuple[str, ...], text: str) -> Any:
    try:
        document = tomllib.loads(f"value = {text}")
        if list(document) == ["value"]:
            return document["value"]
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        pass
    if _WORD.match(text):
        return text
    expected = "a number, a word, or a TOML value such as [1, 2] or { zipf = 1.05 }"
    raise InputError(f"{toml_path(path)}: the value {shown(text)} is not readable: expected {expected}")


def apply_override(document: Document, path: tuple[str, ...], value: Any) -> None:
    """Set the value at `path` of a document, making tables on the way; a list of tables is entered by `name`.

    Raises InputError where the path leads through something that is no table.
    """
    here: Any = document
    for depth, key in enumerate(path[:-1]):
        following = _entry(here, key)
        if not isinstance(following, dict | list):
            raise InputError(_no_way(path, depth, following))
        here = following
    if not isinstance(here, dict):
        raise InputError(_no_way(path, len(path) - 2, here))
    here[path[-1]] = value


def _entry(here: Any, key: str) -> Any:
    if isinstance(here, list):
        return next((entry for entry in here if isinstance(entry, dict) and entry.get("name") == key), None)
    return here.setdefault(key, {})


def _no_way(path: tuple[str, ...], depth: int, found: Any) -> str:
    reached, wanted = toml_path(path[: depth + 1]), toml_path(path)
    if found is None:
        return f"{wanted}: {toml_path(path[:depth])} has no entry named {path[depth]!r}"
    return f"{wanted}: {reached} is {shown(found)}, which has no key {path[depth + 1]!r}"


def to_document(scenario: Scenario) -> Document:
    """Return the scenario as a TOML document of plain values; what equals its default is left out."""
    document: Document = {"schema": SCHEMA, **_plain(scenario)}
    if "tables" in document.get("plan", {}):
        document["plan"]["tables"] = {name: _plain(sharding) for name, sharding in scenario.plan.tables}
    if scenario.workload.replay is not None:  # where samples are recorded the default is to replay them
        document.setdefault("execution", {})["routing"] = scenario.execution.routing
    if "degrade" in document["cluster"]:
        document["cluster"]["degrade"] = dict(scenario.cluster.degrade)
    if scenario.constants:
        document["constants"] = constants_document(scenario.constants)
    return document


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(item) for name, item in _told(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _told(value: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(value):
        item = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if item is not None and (default is MISSING or item != default):
            yield field.name, item


def to_toml(scenario: Scenario) -> str:
    """Return the scenario as the text of a scenario file; reading it gives an equal scenario."""
    return tomli_w.dumps(to_document(scenario))


def save_scenario(scenario: Scenario, path: str | Path) -> None:
    """Write the scenario file, whole or not at all; raises InputError if the path cannot be written."""
    with replaced(path) as part:
        part.write_text(to_toml(scenario), encoding="utf-8")
