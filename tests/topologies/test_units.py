"""Units: every accepted spelling, every refused one, and what is printed."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.topologies import units
from foreshard.topologies.errors import InputError, UnitError
from foreshard.topologies.units import BYTES, BYTES_PER_S, FLOPS, SECONDS, parse_quantity

KINDS = [BYTES, BYTES_PER_S, SECONDS, FLOPS]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("80 GiB", BYTES, 80 * 2**30),
        ("80GB", BYTES, 80e9),
        ("450 GB/s", BYTES_PER_S, 450e9),
        ("400 Gbit/s", BYTES_PER_S, 50e9),
        ("12.5 GiB/s", BYTES_PER_S, 12.5 * 2**30),
        ("12 us", SECONDS, 12e-6),
        ("1.5e3 µs", SECONDS, 1.5e-3),
        ("990 TFLOP/s", FLOPS, 990e12),
        ("1_000 B", BYTES, 1000.0),
    ],
)
def test_a_quantity_is_read_in_base_units(text: str, kind: dict[str, float], value: float) -> None:
    """GB is 1e9, GiB is 2**30, a bit is an eighth of a byte."""
    assert parse_quantity(text, kind) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["450 Gb/s", "450 Gbps", "100 Gb"])
def test_gigabits_or_gigabytes_is_asked(text: str) -> None:
    """Gb/s is read both ways by different people, so it is refused."""
    with pytest.raises(UnitError, match="ambiguous"):
        parse_quantity(text, BYTES_PER_S)


@pytest.mark.parametrize(
    "value", [450, 450.0, True, None, "450", "", "fast", "GB/s", "-1 GB/s", "1e999 GB/s", "nan GB/s"]
)
def test_a_quantity_without_a_unit_or_a_value_is_refused(value: object) -> None:
    """Bare numbers, words, negative and infinite values: the message shows how to write it."""
    with pytest.raises(UnitError, match="'450 GB/s'"):
        parse_quantity(value, BYTES_PER_S)


@given(
    st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), st.sampled_from(sorted(kind)))),
    st.floats(0, 1e6),
)
def test_every_unit_scales_its_number(kind_and_unit: tuple[dict[str, float], str], number: float) -> None:
    """value = number x unit, for every unit of every kind."""
    kind, unit = kind_and_unit
    assert parse_quantity(f"{number!r} {unit}", kind) == number * kind[unit]


@given(st.text(max_size=20), st.sampled_from(KINDS))
def test_any_text_is_a_finite_value_or_an_input_error(text: str, kind: dict[str, float]) -> None:
    """No text crashes the reader."""
    with contextlib.suppress(InputError):
        assert math.isfinite(parse_quantity(text, kind))


def test_what_is_printed() -> None:
    """Binary sizes, decimal bandwidths, microseconds and milliseconds."""
    assert units.format_bytes(79.1 * 2**30) == "79.1 GiB"
    assert units.format_bytes(12) == "12 B"
    assert units.format_bandwidth(450e9) == "450.0 GB/s"
    assert units.format_bandwidth(4e6) == "4.0 MB/s"
    assert units.format_us(12.34e-6) == "12.3 us"
    assert units.format_ms(7.0123e-3) == "7.012 ms"


def test_all_mistakes_stand_in_one_error() -> None:
    """An InputError is a ValueError that lists its problems and says where they are."""
    error = InputError(["one", "two"], where="file.toml")
    assert isinstance(error, ValueError)
    assert error.problems == ("one", "two")
    assert str(error) == "file.toml: 2 mistakes:\n  - one\n  - two"
    assert str(InputError("one")) == "one"
