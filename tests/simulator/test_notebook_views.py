"""What a notebook shows of a scenario and of a step: short tables, with given names escaped."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from html.parser import HTMLParser

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.step.prediction import Prediction


class Cells(HTMLParser):
    """The texts of a page, and whether every tag that was opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_scenario_shows_its_sizes_and_escapes_names() -> None:
    scenario = replace(read_scenario("capacity-640gb"), name="<b>mine</b>")
    text = scenario._repr_html_()
    cells = Cells(text)
    assert not cells.open
    assert escape("<b>mine</b>") in text
    assert any(cell.startswith(f"{len(scenario.workload.tables)} with ") for cell in cells.texts)
    assert f"{scenario.workload.batch_size:,} samples per rank" in cells.texts


def test_a_step_shows_every_operation() -> None:
    trace = Prediction(read_scenario("capacity-640gb")).trace
    cells = Cells(trace._repr_html_())
    assert not cells.open
    assert {op.name for op in trace.ops} <= set(cells.texts)
