"""The command line of this room: collectives on their own, real steps, and what measures them."""

from __future__ import annotations

import click

from foreshard.calibration.logs.collective_command import collective
from foreshard.calibration.testbed.testbed_command import testbed

__all__ = ["COMMANDS"]

COMMANDS: list[click.Command] = [collective, testbed]
