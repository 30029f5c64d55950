"""Profiles as JSON files: written whole or not at all, read with every mistake told at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from foreshard.simulator.job.suggestions import did_you_mean, shown, shown_path
from foreshard.simulator.job.validation import validated
from foreshard.simulator.job.work import FEATURES
from foreshard.simulator.measured.profile import (
    QUANTILES,
    CollectiveCurve,
    PairCurve,
    Point,
    Profile,
    SizePoint,
    WorkFit,
)
from foreshard.topologies.errors import InputError
from foreshard.topologies.output import write_text

__all__ = ["parse_profile", "profile_problems", "profile_text", "read_profile", "save_profile"]

FORMAT, SCHEMA = "foreshard-profile", 1


def profile_text(profile: Profile) -> str:
    """Return the profile as JSON; reading it gives an equal profile."""
    document = {"format": FORMAT, "schema": SCHEMA, **msgspec.to_builtins(profile)}
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write the profile, whole or not at all; raises InputError for an unwritable path or a profile with mistakes."""
    problems = list(profile_problems(profile))
    if problems:
        raise InputError(problems, where=f"profile {profile.name!r}")
    write_text(path, profile_text(profile))


def read_profile(path: str | Path) -> Profile:
    """Return the profile of a file written by `save_profile`; raises InputError with every mistake."""
    where = shown_path(path)
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError("no such file: foreshard calibrate writes one", where=where) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {reason}", where=where) from None
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not valid JSON ({error}): is the file cut off?", where=where) from None
    return parse_profile(document, where=where)


def parse_profile(document: Any, *, where: str) -> Profile:
    """Return the profile of a decoded JSON document; raises InputError with every mistake."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f'expected "format": "{FORMAT}" at the top: foreshard calibrate writes it', where=where)
    schema = document.get("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        newer = isinstance(schema, int) and schema > SCHEMA
        hint = ": it was written by a newer foreshard, update yours" if newer else ""
        raise InputError(f"schema = {shown(schema)}: expected {SCHEMA}{hint}", where=where)
    problems: list[str] = []
    content = {key: value for key, value in document.items() if key not in ("format", "schema")}
    profile = validated(Profile, content, (), problems)
    if profile is not None:
        problems += profile_problems(profile)
    if profile is None or problems:
        raise InputError(problems, where=where)
    return profile


def profile_problems(profile: Profile) -> Iterator[str]:
    """Yield what is wrong with a profile beyond single values: orders, lengths, names, and entries given twice."""
    if not profile.provenance:
        yield "provenance is empty: say which command measured, when and on what"
    if not profile.ranks_per_node:
        yield "ranks_per_node is empty: say how many ranks of each node were active"
    for index, curve in enumerate(profile.collectives):
        yield from _under(f"collectives[{index}]", _curve_problems(curve))
    for index, pair in enumerate(profile.pairs):
        yield from _under(f"pairs[{index}]", _size_problems(pair.points))
    for index, fit in enumerate(profile.work):
        yield from _under(f"work[{index}]", _fit_problems(fit))
    yield from _twice("collectives", (_key(curve) for curve in profile.collectives))
    yield from _twice("pairs", (_pair_key(pair) for pair in profile.pairs))
    yield from _twice("work", (fit.kind for fit in profile.work))
    yield from _twice("constants", (constant.name for constant in profile.constants))
    yield from _under("noise", _spread_problems("compute", profile.noise.compute))
    yield from _under("noise", _spread_problems("collectives", profile.noise.collectives))


def _under(where: str, problems: Iterable[str]) -> Iterator[str]:
    return (f"{where}.{problem}" for problem in problems)


def _twice(where: str, keys: Iterable[str]) -> Iterator[str]:
    for key, count in Counter(keys).items():
        if count > 1:
            yield f"{where}: {count} entries for {key}: keep one"


def _key(curve: CollectiveCurve) -> str:
    shape = "+".join(map(str, curve.ranks_per_node))
    return f"{curve.kind} of {shape} ranks, {curve.groups} groups at once, {curve.groups_per_node} in a node"


def _pair_key(pair: PairCurve) -> str:
    return f"ranks {pair.ranks[0]} and {pair.ranks[1]}"


def _curve_problems(curve: CollectiveCurve) -> Iterator[str]:
    shape = list(curve.ranks_per_node)
    if not shape:
        yield "ranks_per_node is empty: say how many ranks of a group lie in each node"
    if shape != sorted(shape, reverse=True):
        yield f"ranks_per_node = {shape}: expected the largest first"
    if curve.groups_per_node > curve.groups:
        yield f"groups_per_node = {curve.groups_per_node}: expected at most groups = {curve.groups}"
    yield from _size_problems(curve.points)
    if curve.beside:
        yield from _size_problems(curve.beside, "beside")


def _size_problems(points: Sequence[SizePoint], name: str = "points") -> Iterator[str]:
    if not points:
        yield f"{name} is empty: give at least one"
    for index, (before, after) in enumerate(pairwise(points), start=1):
        if after.nbytes <= before.nbytes:
            yield f"{name}[{index}].nbytes = {after.nbytes:g}: expected more than {before.nbytes:g} before it"
    yield from _point_problems(points, name)


def _point_problems(points: Sequence[Point], name: str = "points") -> Iterator[str]:
    for index, point in enumerate(points):
        if not point.low_s <= point.median_s <= point.high_s:
            times = f"{point.low_s:g}, {point.median_s:g}, {point.high_s:g}"
            yield f"{name}[{index}]: low_s, median_s and high_s = {times}: expected none less than the one before"
        if point.outliers >= point.runs:
            yield f"{name}[{index}].outliers = {point.outliers}: expected fewer than runs = {point.runs}"


def _fit_problems(fit: WorkFit) -> Iterator[str]:
    known = FEATURES[fit.kind]
    if not fit.features:
        yield f"features is empty: {fit.kind} is counted in {', '.join(known)}"
    for name in fit.features:
        if name not in known:
            hint = did_you_mean(name, known) or f"; it is counted in {', '.join(known)}"
            yield f"features: {fit.kind} has no feature {name!r}{hint}"
    yield from _twice("features", fit.features)
    if len(fit.coefficients) != len(fit.features):
        yield f"coefficients: {len(fit.coefficients)} for {len(fit.features)} features: expected one for each"
    yield from _spread_problems("residuals", fit.residuals)
    for index, point in enumerate(fit.points):
        if len(point.counts) != len(fit.features):
            yield f"points[{index}].counts: {len(point.counts)} for {len(fit.features)} features: expected one for each"
    yield from _point_problems(fit.points)


def _spread_problems(name: str, spread: Sequence[float]) -> Iterator[str]:
    if spread and len(spread) != len(QUANTILES):
        yield f"{name}: {len(spread)} entries: expected {len(QUANTILES)}, at the probabilities {list(QUANTILES)}"
    elif list(spread) != sorted(spread):
        yield f"{name} = {shown(list(spread))}: expected quantiles, none less than the one before"
