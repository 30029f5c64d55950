"""Traces read event by event: what json.loads gives, from blocks of any size, and every break named."""

from __future__ import annotations

import io
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.calibration.imports.json_stream import trace_entries
from foreshard.topologies.errors import InputError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), max_size=6)
ABOUT = st.dictionaries(st.text(max_size=6).filter(lambda key: key != "traceEvents"), VALUES, max_size=3)


class Dripping(io.BytesIO):
    """A file that gives a few bytes at a time, however many are asked for."""

    def __init__(self, content, step):
        super().__init__(content)
        self.step = step

    def read(self, size=-1):
        return super().read(self.step)


def entries(text, step=1 << 16):
    content = text if isinstance(text, bytes) else text.encode()
    return list(trace_entries(Dripping(content, step), lambda count: None))


@given(ABOUT, EVENTS, ABOUT, st.integers(1, 40), st.sampled_from([None, 1]))
def test_events_are_those_that_json_loads_gives(before, events, after, step, indent):
    """Every value, in order, whatever stands before and after the events and wherever blocks end."""
    text = json.dumps({**before, "traceEvents": events, **after}, indent=indent, ensure_ascii=False)
    found = entries(text, step)
    assert [value for key, value in found if key == "traceEvents"] == events
    about = dict(entry for entry in found if entry[0] != "traceEvents")
    assert about == {**before, **after}


@given(EVENTS, st.integers(1, 40))
def test_events_alone_are_a_trace_too(events, step):
    """Chrome's other form is the list of events without anything around it."""
    assert [event for _, event in entries(json.dumps(events), step)] == events


@given(EVENTS, st.data())
def test_a_trace_that_is_cut_off_is_refused(events, data):
    """Wherever the file ends too early, that is what the message says."""
    text = json.dumps({"traceEvents": events})
    end = data.draw(st.integers(1, len(text) - 1))
    with pytest.raises(InputError, match="cut off"):
        entries(text[:end], 7)


@given(st.binary(max_size=60), st.integers(1, 9))
def test_any_bytes_are_a_trace_or_an_input_error(content, step):
    """Nothing but InputError leaves the reader."""
    for around in (b"", b'{"traceEvents": [', b'[{"name": '):
        with suppress(InputError):
            entries(around + content, step)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"traceEvents": [{"a": 1}, {"a": x}]}' + " " * 40, "event 1: it is no JSON at character 33: Expecting value"),
        ('{"traceEvents": [{"a": 1}, 7]}', "event 1: expected an object, but it is '7'"),
        ('{"traceEvents": [{"a": 1} {"b": 2}]}', "after event 0: character 26: '{' stands where ',' or ']' belongs"),
        ('{"traceEvents": [{"a": 1}, {"b": "', "event 1: the file ends within it: it is cut off"),
        ('{"traceEvents": null}', "character 16: 'n' stands where '[' belongs"),
        ("[" * 20 + "{}", "event 0: the file ends within it"),
        ('{"traceEvents": [' + "[" * 200_000, "event 0: it is nested too deeply"),
        ('"text"', "begins with '\"', but a trace begins with { or ["),
    ],
    ids=["no JSON", "no object", "no comma", "cut", "no list", "lists", "deep", "text"],
)
def test_the_first_break_is_named_with_its_event(text, message):
    """Which event it is, where, and why."""
    with pytest.raises(InputError) as error:
        entries(text)
    assert error.value.problems[0].startswith(message)


def test_names_with_tabs_in_them_are_read():
    """Kineto has written control characters into strings, which JSON forbids."""
    assert entries('{"traceEvents": [{"name": "a\tb"}]}') == [("traceEvents", {"name": "a\tb"})]


@pytest.mark.parametrize("number", ["0", "0.0", "-12.5", "1e5", "1E+5", "-1.25e-30", "1000.0", "Infinity", "-Infinity"])
def test_a_number_is_read_whole_wherever_blocks_end(number):
    """Its first digits are a number too; at the top, in an event, and with the file cut within it."""
    text = f'{{"a": {number}, "traceEvents": [{{"b": [{number}]}}]}}'
    for step in range(1, len(text)):
        assert entries(text, step) == [("a", float(number)), ("traceEvents", {"b": [float(number)]})]
    for end in range(1, len(text)):
        with pytest.raises(InputError, match="cut off"):
            entries(text[:end], 1)
