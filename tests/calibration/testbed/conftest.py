"""A machine that can build testbeds, or a reason to skip."""

from __future__ import annotations

import pytest

from foreshard.calibration.testbed.bed import Testbed
from foreshard.topologies.errors import UnavailableError


@pytest.fixture(scope="session")
def can_build() -> None:
    """Skips where no testbed can be built, with the sentence that says what is missing."""
    try:
        with Testbed("1x1", "1 Gbit/s"):
            pass
    except UnavailableError as error:
        pytest.skip(str(error))
