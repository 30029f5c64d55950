"""Profile files: what is written is read again, and every mistake of a file is told at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.job.scenario import Constant
from foreshard.simulator.job.work import FEATURES, WORK_KINDS, WorkKind
from foreshard.simulator.measured.profile import (
    QUANTILES,
    BesidePoint,
    CollectiveCurve,
    Noise,
    PairCurve,
    Profile,
    Provenance,
    SizePoint,
    WorkFit,
    WorkPoint,
)
from foreshard.simulator.measured.profile_file import parse_profile, profile_text, read_profile, save_profile
from foreshard.topologies.errors import InputError

TIMES = st.lists(st.floats(1e-9, 1e3), min_size=3, max_size=3).map(sorted)
SPREADS = st.just(()) | st.lists(st.floats(-3, 3), min_size=len(QUANTILES), max_size=len(QUANTILES)).map(
    lambda values: tuple(sorted(values))
)
COUNTS = st.floats(0, 1e15)
WORDS = st.text(max_size=12)


@st.composite
def size_points(draw: st.DrawFn) -> tuple[SizePoint, ...]:
    sizes = sorted(draw(st.lists(st.floats(1, 1e12), min_size=1, max_size=4, unique=True)))
    return tuple(SizePoint(nbytes=size, **draw(times())) for size in sizes)


@st.composite
def beside_points(draw: st.DrawFn) -> tuple[BesidePoint, ...]:
    sizes = sorted(draw(st.lists(st.floats(1, 1e12), max_size=3, unique=True)))
    return tuple(BesidePoint(nbytes=size, slows=draw(st.floats(1, 9)), **draw(times())) for size in sizes)


@st.composite
def times(draw: st.DrawFn) -> dict[str, Any]:
    low, median, high = draw(TIMES)
    runs = draw(st.integers(1, 1000))
    outliers = draw(st.integers(0, runs - 1))
    mean = draw(st.floats(0, 1e3))
    return {"low_s": low, "median_s": median, "high_s": high, "mean_s": mean, "runs": runs, "outliers": outliers}


@st.composite
def fits(draw: st.DrawFn, kind: WorkKind) -> WorkFit:
    features = draw(st.lists(st.sampled_from(FEATURES[kind]), min_size=1, unique=True))
    every = [COUNTS] * len(features)
    points = draw(st.lists(st.builds(lambda counts, at: WorkPoint(counts=counts, **at), st.tuples(*every), times())))
    return WorkFit(
        kind=kind,
        features=tuple(features),
        coefficients=draw(st.tuples(*every)),
        residuals=draw(SPREADS),
        points=tuple(points),
    )


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    shapes = st.lists(st.integers(1, 8), min_size=1, max_size=4).map(lambda sizes: tuple(sorted(sizes, reverse=True)))
    kinds = draw(st.lists(st.sampled_from(WORK_KINDS), unique=True, max_size=3))
    curves = st.builds(
        CollectiveCurve,
        kind=st.sampled_from(("all_to_all", "all_reduce")),
        ranks_per_node=shapes,
        groups=st.integers(2, 4),
        groups_per_node=st.integers(1, 2),
        points=size_points(),
        beside=beside_points(),
    )
    pair = st.builds(
        PairCurve,
        where=st.sampled_from(("same_node", "other_node")),
        ranks=st.tuples(st.integers(0, 9), st.integers(0, 9)),
        points=size_points(),
        latency_s=st.floats(1e-9, 1),
        bytes_per_s=st.floats(1, 1e12),
    )
    origin = st.builds(
        Provenance,
        name=WORDS,
        created=WORDS,
        command=WORDS,
        hardware=WORDS,
        versions=st.dictionaries(WORDS, WORDS, max_size=2),
        notes=st.lists(WORDS, max_size=2).map(tuple),
    )
    key = lambda c: (c.kind, c.ranks_per_node, c.groups, c.groups_per_node)  # noqa: E731
    return Profile(
        name=draw(WORDS),
        provenance=tuple(draw(st.lists(origin, min_size=1, max_size=2))),
        backend=draw(st.sampled_from(("nccl", "gloo"))),
        device=draw(st.sampled_from(("cpu", "cuda"))),
        device_name=draw(WORDS),
        ranks_per_node=draw(shapes),
        collectives=tuple(draw(st.lists(curves, max_size=3, unique_by=key))),
        pairs=tuple(draw(st.lists(pair, max_size=2, unique_by=lambda p: p.ranks))),
        work=tuple(draw(fits(kind)) for kind in kinds),
        noise=Noise(compute=draw(SPREADS), collectives=draw(SPREADS)),
        constants=tuple(draw(st.lists(st.builds(Constant, name=WORDS, value=COUNTS, source=WORDS), max_size=1))),
    )


@given(profiles())
def test_what_is_written_is_read_again(profile: Profile) -> None:
    """Every part of a profile, to the last bit."""
    assert parse_profile(json.loads(profile_text(profile)), where="file") == profile


def document() -> dict[str, Any]:
    time = {"median_s": 2e-3, "low_s": 1e-3, "high_s": 3e-3, "runs": 5}
    return {
        "format": "foreshard-profile",
        "schema": 1,
        "name": "here",
        "provenance": [{"name": "links", "created": "2025-01-01T00:00:00Z", "command": "c", "hardware": "h"}],
        "backend": "gloo",
        "device": "cpu",
        "device_name": "core",
        "ranks_per_node": [2, 2],
        "collectives": [
            {"kind": "all_to_all", "ranks_per_node": [2, 2], "points": [{**time, "nbytes": 1024}]},
        ],
        "work": [
            {
                "kind": "lookup",
                "features": ["calls", "lookups"],
                "coefficients": [1e-5, 1e-9],
                "residuals": [-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3],
                "points": [{**time, "counts": [1, 100]}],
            }
        ],
    }


def test_a_file_that_cannot_be_written_half_is_saved_and_read(tmp_path: Path) -> None:
    """The file holds the profile, and nothing else is left in the folder."""
    profile = parse_profile(document(), where="file")
    save_profile(profile, tmp_path / "here.json")
    assert read_profile(tmp_path / "here.json") == profile
    assert [path.name for path in tmp_path.iterdir()] == ["here.json"]


def test_every_mistake_is_told_with_its_path() -> None:
    """Orders, lengths, names and doubles, all in one message."""
    wrong = document()
    curve, fit = wrong["collectives"][0], wrong["work"][0]
    curve["points"].append({**curve["points"][0], "nbytes": 512, "low_s": 2.5e-3, "outliers": 5})
    curve["ranks_per_node"], curve["groups_per_node"] = [1, 2], 2
    fit["features"], fit["coefficients"], fit["residuals"] = ["calls", "lookup"], [1e-5], [0.0, -0.1]
    wrong["work"].append(dict(document()["work"][0]))
    wrong["provenance"], wrong["noise"] = [], {"compute": [0.1, 0.0, 0, 0, 0, 0, 0]}
    with pytest.raises(InputError) as caught:
        parse_profile(wrong, where="file")
    assert [problem.split(": expected")[0] for problem in caught.value.problems] == [
        "provenance is empty: say which command measured, when and on what",
        "collectives[0].ranks_per_node = [1, 2]",
        "collectives[0].groups_per_node = 2",
        "collectives[0].points[1].nbytes = 512",
        "collectives[0].points[1]: low_s, median_s and high_s = 0.0025, 0.002, 0.003",
        "collectives[0].points[1].outliers = 5",
        "work[0].features: lookup has no feature 'lookup'; did you mean 'lookups'?",
        "work[0].coefficients: 1 for 2 features",
        "work[0].residuals: 2 entries",
        "work: 2 entries for lookup: keep one",
        "noise.compute = [0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]",
    ]


def test_single_values_are_checked_too() -> None:
    """A negative time, an unknown kind, a misspelt key: each with its place."""
    wrong = document()
    wrong["collectives"][0]["points"][0]["low_s"] = -1
    wrong["work"][0]["kind"] = "lokup"
    wrong["bakend"] = "gloo"
    with pytest.raises(InputError) as caught:
        parse_profile(wrong, where="file")
    told = "\n".join(caught.value.problems)
    for part in (
        "collectives[0].points[0].low_s = -1",
        "work[0].kind",
        "did you mean 'lookup'?",
        "bakend: unknown key",
    ):
        assert part in told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"format": "foreshard-profile", "schema"', "is the file cut off?"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", 'expected "format": "foreshard-profile"'),
        (b'{"format": "foreshard-profile", "schema": 2}', "written by a newer foreshard"),
        (b'{"format": "foreshard-profile", "schema": true}', "expected 1"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_in_one_sentence(tmp_path: Path, content: bytes, told: str) -> None:
    """Cut off, of another format, or of another schema."""
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert told in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_missing_file_says_what_writes_one(tmp_path: Path) -> None:
    """No traceback, and what to do."""
    with pytest.raises(InputError, match="no such file: foreshard calibrate writes one"):
        read_profile(tmp_path / "none.json")
