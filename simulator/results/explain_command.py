"""The command that follows one id through a step."""

from __future__ import annotations

import json

import click

__all__ = ["explain_command"]


@click.command("explain")
@click.argument("scenario")
@click.option("--table", required=True, metavar="NAME", help="The table.")
@click.option("--id", "row", required=True, metavar="ID", help="The id: a row address of the table.")
@click.option("--rank", default="0", show_default=True, metavar="RANK", help="Whose batch holds the id.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key of the scenario.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in seconds, bytes and B/s.")
def explain_command(scenario: str, table: str, row: str, rank: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Follow one id of a rank's batch through the seven stages of SCENARIO: owners, links, bytes, replicas."""
    from foreshard.simulator.files.reading import read_scenario
    from foreshard.simulator.results.explain_guide import explain
    from foreshard.simulator.results.explain_text import explanation_text
    from foreshard.simulator.step.prediction import Prediction

    told = explain(Prediction(read_scenario(scenario, overrides)), table, _whole(row), _whole(rank))
    click.echo(json.dumps(told.to_dict(), indent=2, allow_nan=False) if as_json else explanation_text(told).rstrip())


def _whole(text: str) -> int | str:
    """The number, or the text as it is, to be refused together with whatever else is wrong."""
    try:
        return int(text)
    except ValueError:
        return text
