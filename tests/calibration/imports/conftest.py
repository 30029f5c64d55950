"""What the tests of imports share: files written into a folder of their own, and what importing them gives."""

from __future__ import annotations

import pytest

from foreshard.calibration.imports.imported_profile import imported_profile
from foreshard.calibration.imports.log_rows import Kinds
from foreshard.calibration.imports.places import Told
from foreshard.calibration.imports.reading import read_files


@pytest.fixture
def imported():
    """What files give, read as they are."""

    def read(*paths, kinds=None, nodes=None, per_node=None, cluster_of=None):
        return read_files(paths, kinds or Kinds(), Told(nodes=nodes, per_node=per_node), cluster_of)

    return read


@pytest.fixture
def profile_of(imported):
    """The profile of files."""

    def make(*paths, **said):
        return imported_profile(imported(*paths, **said), name="here", command="foreshard calibrate import")

    return make
