"""What to do with an imported plan: a scenario that predicts it, and a summary of what was found."""

from __future__ import annotations

from collections import Counter

from foreshard.simulator.job.scenario import ClusterChoice, Scenario
from foreshard.simulator.torchrec.plan_file import PlanFile
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import load_preset
from foreshard.topologies.units import format_bytes

__all__ = ["plan_summary", "scenario_on_preset"]

_NOTES = 12


def scenario_on_preset(
    plan: PlanFile, preset: str, *, batch_size: int | None = None, name: str = "imported"
) -> Scenario:
    """Return a scenario that predicts the plan on as many nodes of a preset as it has ranks for; raises InputError."""
    node = load_preset(preset, nodes=1).size
    ranks = plan.world_size
    if ranks is None or ranks % node:
        given = (
            "the plan does not say its ranks" if ranks is None else f"its {ranks} ranks are not whole nodes of {node}"
        )
        raise InputError(f"{given}: write [cluster] of a scenario by hand, for {preset} or another machine")
    return plan.scenario(ClusterChoice(preset=preset, nodes=ranks // node), batch_size=batch_size, name=name)


def plan_summary(plan: PlanFile) -> str:
    """Return some lines for a person: tables, bytes, ranks, sharding kinds, and the first notes."""
    kinds = Counter(how.sharding for _, how in plan.plan.tables)
    size = format_bytes(sum(table.nbytes for table in plan.tables))
    head = [
        f"{len(plan.tables)} tables, {size} of weights ({plan.source})",
        f"ranks: {plan.world_size or 'not said'}, batch size per rank: {plan.batch_size or 'not said'}",
        "sharding: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
    ]
    more = len(plan.notes) - _NOTES
    notes = [*plan.notes[:_NOTES], *([f"{more} more in the file"] if more > 0 else [])]
    return "\n".join([*head, *(f"note: {note}" for note in notes)])
