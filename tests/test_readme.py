"""The README says what the commands print and what a scenario file looks like: both are tried."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from foreshard.simulator.files.reading import read_scenario
from foreshard.topologies.cli import assemble

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SESSIONS = re.findall(r"```text\n\$ foreshard (.*?[^\\])\n(.*?)```", README, flags=re.DOTALL)
SCENARIOS = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), SESSIONS, ids=[command.split()[0] for command, _ in SESSIONS])
def test_commands_print_what_the_readme_shows(command: str, shown: str) -> None:
    """Every session in the README is what the command prints today, to the digit; "..." cuts its end."""
    result = CliRunner().invoke(assemble(), shlex.split(command.replace("\\\n", " ")))
    assert result.exit_code == 0
    whole, cut = result.stdout.rstrip(), shown.rstrip()
    if cut.endswith("..."):
        assert whole.startswith(cut.removesuffix("...").rstrip())
    else:
        assert whole == cut


@pytest.mark.parametrize("text", SCENARIOS)
def test_scenarios_in_the_readme_load(text: str) -> None:
    """A scenario that the README shows can be read as it stands."""
    read_scenario(tomllib.loads(text))


def test_the_readme_shows_sessions_and_a_scenario() -> None:
    """The two tests above have something to try."""
    assert len(SESSIONS) >= 3
    assert SCENARIOS


def test_links_of_the_readme_lead_somewhere() -> None:
    """Every file that the README links to is in the repository."""
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    missing = [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]
    assert not missing


def test_commands_of_the_readme_exist() -> None:
    """Every `foreshard ...` the README's table names is a command."""
    named = set(re.findall(r"`foreshard ([a-z-]+)", README))
    assert named <= set(assemble().commands)
