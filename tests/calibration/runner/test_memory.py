"""What a run needs of this machine's memory is refused before it is drawn or built."""

from __future__ import annotations

import pytest

from foreshard.calibration.runner.memory import available_bytes, check_memory
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import InputError
from foreshard.topologies.units import format_bytes

GIB = 2.0**30


def prediction(*changes):
    return Prediction(read_scenario("host-4ranks", changes))


def test_a_run_that_fits_is_not_refused():
    check_memory(prediction(), 4, free_bytes=8 * GIB)


def test_tables_that_do_not_fit_are_told_with_how_many_rows_would():
    """200 MB of tables a rank."""
    with pytest.raises(InputError, match=r"cut the tables, as with --shrink-tables \d+"):
        check_memory(prediction(), 4, free_bytes=0.2 * GIB)


def test_a_batch_that_does_not_fit_is_refused_before_an_id_is_drawn(monkeypatch):
    """80 ids and 512 columns a sample: 4 batches x 80 x 8 B, and 2 x 512 x 4 B, of 10^8 samples on 4 ranks."""
    monkeypatch.setattr("foreshard.calibration.runner.memory.memory_of", lambda _: pytest.fail("ids were drawn"))
    with pytest.raises(InputError) as caught:
        check_memory(prediction("workload.batch_size=100000000"), 4, free_bytes=64 * GIB)
    assert f"at least {format_bytes(4e8 * (4 * 80 * 8 + 2 * 512 * 4))} of" in str(caught.value)
    assert "lower workload.batch_size, as to 2000000," in str(caught.value)


def test_the_batch_that_is_advised_is_not_refused_for_ids_and_vectors(monkeypatch):
    monkeypatch.setattr("foreshard.calibration.runner.memory.memory_of", lambda _: pytest.fail("it goes on"))
    with pytest.raises(pytest.fail.Exception, match="it goes on"):
        check_memory(prediction("workload.batch_size=2000000"), 4, free_bytes=64 * GIB)


def test_memory_is_what_the_kernel_says_or_what_a_container_leaves(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 64 kB\n", encoding="ascii")
    groups = tmp_path / "cgroup"
    groups.mkdir()
    assert available_bytes(tmp_path / "meminfo", groups) == 64 * 1024
    (groups / "memory.max").write_text("40000\n", encoding="ascii")
    (groups / "memory.current").write_text("30000\n", encoding="ascii")
    (groups / "memory.stat").write_text("anon 1\ninactive_file 5000\n", encoding="ascii")
    assert available_bytes(tmp_path / "meminfo", groups) == 15000
    (groups / "memory.max").write_text("max\n", encoding="ascii")
    assert available_bytes(tmp_path / "meminfo", groups) == 64 * 1024
    assert available_bytes(tmp_path / "none", groups) is None
