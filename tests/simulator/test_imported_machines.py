"""From what a machine says of itself to a predicted step: every specimen imports, shows, and predicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from foreshard.simulator.commands import predict
from foreshard.topologies.commands import cluster, import_topology
from foreshard.topologies.errors import InputError

SMALL = ["--set", "workload.batch_size=256", "--set", "workload.dense.data_type=fp16"]


def run(command, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def names(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "topo").rglob("*") if path.suffix in (".txt", ".xml"))


@pytest.mark.slow
def test_every_specimen_is_imported_shown_and_used_in_a_prediction(specimens: Path, tmp_path: Path) -> None:
    used = 0
    for path in names(specimens):
        out = tmp_path / f"{path.stem}.toml"
        imported = run(import_topology, str(path), "-o", str(out))
        if isinstance(imported.exception, InputError):
            assert not out.exists()
            continue
        assert "Assumed, please check:" in imported.output
        shown = run(cluster, str(out))
        assert shown.exit_code == 0, shown.exception
        for message in imported.output.splitlines()[1:]:
            assert message.removeprefix("  - ") in " ".join(shown.output.split())
        file = f"cluster.file={out}"
        alone = run(predict, "mlperf-dcnv2-p5", "--set", file, "--set", "cluster.nodes=1", *SMALL)
        assert alone.exit_code == 0, (path.name, alone.exception)
        assert "step time" in alone.output
        used += 1
    assert used >= 35
