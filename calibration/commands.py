"""The command line of this room: collectives on their own, predicted and beside measured logs."""

from __future__ import annotations

import click

from foreshard.calibration.logs.collective_command import collective

__all__ = ["COMMANDS"]

COMMANDS: list[click.Command] = [collective]
