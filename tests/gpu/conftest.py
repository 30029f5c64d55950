"""A CUDA device for the tests of this folder, or a skip that says what is missing."""

from __future__ import annotations

import pytest

from foreshard.kernels.cupy_device import CupyDevice, cupy_device
from foreshard.topologies.errors import ForeshardError


@pytest.fixture(scope="session")
def gpu() -> CupyDevice:
    try:
        return cupy_device()
    except ForeshardError as error:
        pytest.skip(str(error))
