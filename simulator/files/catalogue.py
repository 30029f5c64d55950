"""What foreshard ships, as rows: machines, table sets, scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tabulate import tabulate

from foreshard.simulator.files.document import parse_toml
from foreshard.simulator.files.shipped import shipped_names, shipped_text
from foreshard.simulator.files.tablesets import load_table_set
from foreshard.topologies.presets import load_preset, preset_names
from foreshard.topologies.units import format_bandwidth, format_bytes

__all__ = ["Row", "shipped", "to_text"]

Row = dict[str, Any]


def shipped() -> dict[str, list[Row]]:
    """Return the rows of "machines", "table_sets" and "scenarios", in bytes and bytes/s."""
    return {"machines": list(_machines()), "table_sets": list(_table_sets()), "scenarios": list(_scenarios())}


def _machines() -> Iterator[Row]:
    for name in preset_names():
        cluster = load_preset(name)
        gpu = cluster.gpu(0)
        yield {
            "name": name,
            "gpus_per_node": cluster.local_world_size,
            "gpu": gpu.name,
            "hbm_bytes": gpu.hbm_bytes,
            "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        }


def _table_sets() -> Iterator[Row]:
    for name in shipped_names("tables"):
        chosen = load_table_set(name)
        yield {
            "name": name,
            "tables": len(chosen.tables),
            "num_embeddings": sum(table.num_embeddings for table in chosen.tables),
            "ids_per_sample": sum(table.ids_per_sample for table in chosen.tables),
            "nbytes": sum(table.nbytes for table in chosen.tables),
            "description": chosen.description,
            "source": chosen.source,
        }


def _scenarios() -> Iterator[Row]:
    for name in shipped_names("scenarios"):
        document = parse_toml(shipped_text("scenarios", name), where=name)
        yield {"name": name, "description": document.get("description", "")}


def to_text(sections: dict[str, list[Row]]) -> str:
    """Return the rows as aligned tables, one under the other."""
    return "\n\n".join([_machine_text(sections), _table_set_text(sections), _scenario_text(sections)])


def _machine_text(sections: dict[str, list[Row]]) -> str:
    rows = [
        (
            row["name"],
            f"{row['gpus_per_node']} x {row['gpu']}",
            format_bytes(row["hbm_bytes"]),
            format_bandwidth(row["hbm_bytes_per_s"]),
        )
        for row in sections["machines"]
    ]
    return str(tabulate(rows, headers=["machine", "GPUs per node", "hbm_cap", "HBM bandwidth"], disable_numparse=True))


def _table_set_text(sections: dict[str, list[Row]]) -> str:
    rows = [(row["name"], format_bytes(row["nbytes"]), row["description"]) for row in sections["table_sets"]]
    return str(tabulate(rows, headers=["table set", "weights", "what it is"], disable_numparse=True))


def _scenario_text(sections: dict[str, list[Row]]) -> str:
    rows = [(row["name"], row["description"]) for row in sections["scenarios"]]
    return str(tabulate(rows, headers=["scenario", "what it is"], disable_numparse=True))
