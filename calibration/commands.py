"""The command line of this room: collectives on their own, real steps, and what measures them."""

from __future__ import annotations

import click

from foreshard.calibration.imports.import_command import import_files
from foreshard.calibration.logs.collective_command import collective
from foreshard.calibration.run_command import run
from foreshard.calibration.testbed.device_command import device
from foreshard.calibration.testbed.links_command import links
from foreshard.calibration.testbed.testbed_command import testbed
from foreshard.calibration.validation.validate_command import validate

__all__ = ["COMMANDS", "calibrate"]


@click.group()
def calibrate() -> None:
    """Measure this machine, or import measurements, into a profile that predictions use."""


calibrate.add_command(device)
calibrate.add_command(import_files)
calibrate.add_command(links)

COMMANDS: list[click.Command] = [collective, run, calibrate, testbed, validate]
