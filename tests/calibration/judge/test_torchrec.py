"""TorchRec itself as the judge: its step issues the collectives that are simulated, and trains what ours trains.

Run by `make torchrec`, in an environment of its own; skipped where TorchRec is not installed.
"""

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("torchrec") is None:
    pytest.skip("TorchRec is not installed: `make torchrec` runs these tests", allow_module_level=True)

LOSSES, ROWS = 1e-6, 1e-6  # named tolerances: float32 sums in another order

_PLANS = {
    "mixed": (1, 2, 11, 10),
    "table_wise": (1, 2, 6, 6),
    "row_wise": (1, 2, 6, 6),
    "column_wise": (1, 2, 6, 6),
    "table_row_wise": (2, 2, 8, 8),
    "grid_shard": (2, 2, 8, 8),
}


def _trained(folder, plan, pipeline, optimizer):
    nodes, local, *_ = _PLANS[plan]
    worker = Path(__file__).with_name("torchrec_worker.py")
    order = [plan, pipeline, optimizer, str(nodes), str(folder)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nodes * local}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([*command, str(worker), *order], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return [pickle.loads((folder / f"rank{rank}").read_bytes()) for rank in range(nodes * local)]


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist"])
@pytest.mark.parametrize("plan", _PLANS)
def test_torchrec_issues_the_simulated_collectives_and_trains_what_we_train(tmp_path, plan, pipeline):
    for rank in _trained(tmp_path, plan, pipeline, "rowwise_adagrad"):
        assert rank["issued"] == rank["simulated"]
        assert len(rank["issued"]) == _PLANS[plan][2 if pipeline == "base" else 3]
        assert rank["theirs"] == pytest.approx(rank["ours"], abs=LOSSES)
        assert rank["shards"] > 0
        assert rank["rows_apart"] < ROWS


def test_sgd_trains_the_same_rows_too(tmp_path):
    for rank in _trained(tmp_path, "mixed", "base", "sgd"):
        assert rank["theirs"] == pytest.approx(rank["ours"], abs=LOSSES)
        assert rank["rows_apart"] < ROWS
