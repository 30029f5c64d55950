"""Constants a scenario replaces: what a user measured on the own machine takes the place of a shipped figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from foreshard.simulator.comms import machine_constants
from foreshard.simulator.job.scenario import Constant
from foreshard.simulator.job.suggestions import did_you_mean, shown, toml_path
from foreshard.simulator.step import costs
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.constants import MACHINE_CONSTANTS, ConstantRange
from foreshard.topologies.errors import UnitError
from foreshard.topologies.machine import Sourced
from foreshard.topologies.units import BYTES, SECONDS, parse_quantity

__all__ = ["constants_document", "cost_constants", "known_constants", "read_constants", "with_machine_constants"]

_UNITS: dict[str, dict[str, float]] = {"s": SECONDS, "bytes": BYTES}
_DEFAULT_SOURCE = "the scenario"
_SHARE = ConstantRange(unit="1", low=0.0, high=1.0, closed=False)


def known_constants() -> Mapping[str, Sourced]:
    """The constants that a scenario or a profile may replace, by name."""
    return {**machine_constants.default_constants(), **costs.default_constants()}


def read_constants(section: Any, problems: list[str]) -> tuple[Constant, ...]:
    """Return the constants of a scenario's [constants] table; what cannot be used goes to `problems`.

    Each is a value, or a table with value and source. Values of time and of bytes are text with a unit.
    """
    if not isinstance(section, Mapping):
        problems.append(f'constants = {shown(section)}: expected a table, as in [constants] host_per_kernel = "9 us"')
        return ()
    known = known_constants()
    found = []
    for name, entry in section.items():
        where = toml_path(("constants", name))
        table = entry if isinstance(entry, Mapping) else {"value": entry}
        if name not in known:
            problems.append(f"{where}: there is no constant of that name{did_you_mean(name, known)}")
            continue
        extra = sorted(set(table) - {"value", "source"})
        problems.extend(f"{where}.{key}: unknown key; keys here are value, source" for key in extra)
        value = _value(name, table.get("value"), known[name].unit, where, problems)
        source = table.get("source", _DEFAULT_SOURCE)
        if not isinstance(source, str):
            problems.append(f"{where}.source = {shown(source)}: expected text in quotes")
        elif value is not None:
            found.append(Constant(name=name, value=value, source=source))
    return tuple(found)


def _value(name: str, given: Any, unit: str, where: str, problems: list[str]) -> float | None:
    """A constant's value in its base unit; None with a problem if it is not one, or outside its range."""
    if unit in _UNITS:
        try:
            value = parse_quantity(given, _UNITS[unit])
        except UnitError as error:
            problems.append(f"{where}.value: {error}")
            return None
    elif isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given) or given < 0:
        problems.append(f"{where}.value = {shown(given)}: expected a number, not negative ({unit})")
        return None
    else:
        value = float(given)
    allowed = MACHINE_CONSTANTS.get(name) or (_SHARE if unit.startswith("share") else None)
    problem = allowed.problem(value) if allowed is not None else None
    if problem is not None:
        problems.append(f"{where}.value: {problem}")
        return None
    return value


def constants_document(constants: Iterable[Constant]) -> dict[str, Any]:
    """Return constants as a scenario file holds them, units as text; reading it gives equal constants."""
    return {
        constant.name: {
            "value": _written(constant.value, known_constants()[constant.name].unit),
            "source": constant.source,
        }
        for constant in constants
    }


def _written(value: float, unit: str) -> float | str:
    written = {"s": "s", "bytes": "B"}.get(unit)
    return value if written is None else f"{value!r} {written}"


def cost_constants(constants: Iterable[Constant]) -> dict[str, Sourced]:
    """Return those that are costs of work on one rank, by name."""
    return _sourced(constants, costs.default_constants())


def with_machine_constants(cluster: Cluster, constants: Iterable[Constant]) -> Cluster:
    """Return the cluster with those that its collectives use; the same one if there are none."""
    own = _sourced(constants, machine_constants.default_constants())
    return cluster.with_constants(own) if own else cluster


def _sourced(constants: Iterable[Constant], known: Mapping[str, Sourced]) -> dict[str, Sourced]:
    return {
        constant.name: Sourced(value=constant.value, unit=known[constant.name].unit, source=constant.source)
        for constant in constants
        if constant.name in known
    }
