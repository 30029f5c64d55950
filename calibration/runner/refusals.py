"""What the runner cannot run, told before anything begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from foreshard.calibration.runner.settings import RunSettings
from foreshard.simulator.job.scenario import Scenario
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["refusals", "refuse"]

_ROW_FORMATS = ("fp32", "fp16", "bf16")
_NAMED = 3  # tables that a sentence names


def refuse(prediction: Prediction, settings: RunSettings, device: torch.device) -> None:
    """Raise InputError with a sentence for everything about a scenario that cannot be run."""
    problems = [*refusals(prediction.scenario, settings)]
    if any(one.in_host_memory for one in prediction.sharded):
        problems.append("tables in host memory are predicted, not run: use compute_kernel = fused")
    if problems:
        raise InputError(problems, where="run")


def refusals(scenario: Scenario, settings: RunSettings) -> Iterator[str]:
    """Yield a sentence for everything in a scenario that cannot be run."""
    tables, dense = scenario.workload.tables, scenario.workload.dense
    wrong = [table.name for table in tables if table.data_type not in _ROW_FORMATS]
    if wrong:
        yield f"{_few(wrong)}: rows of fp8 or int8 are not run, only predicted: use fp32, fp16 or bf16"
    several = [table.name for table in tables if table.num_poolings != 1.0]
    if several:
        yield f"{_few(several)}: batches do not tell a sample's bags apart: run with num_poolings = 1"
    if dense.data_type not in _ROW_FORMATS:
        yield f"workload.dense.data_type = {dense.data_type!r} is not run, only predicted: use fp32, fp16 or bf16"
    if scenario.comms.all_to_all != "pairwise":
        yield f"comms.all_to_all = {scenario.comms.all_to_all!r} is predicted, not run: use pairwise"
    if settings.batches < 1:
        yield f"{settings.batches} batches: expected at least 1"
    if settings.exact and scenario.execution.optimizer != "sgd":
        yield f"exact mode takes whole SGD steps, but execution.optimizer = {scenario.execution.optimizer!r}: use sgd"
    if settings.exact and {scenario.comms.forward, scenario.comms.backward} != {"fp32"}:
        yield "exact mode rounds nothing, but comms carries fewer bits: use fp32"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"tables {', '.join(map(repr, names[:_NAMED]))}{more}"
