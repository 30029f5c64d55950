"""Makes data/torchrec_planner_*.json by asking TorchRec 1.9.2 itself; needs torch, fbgemm-gpu-cpu and torchrec, no GPU.

Run by hand (`python tests/verification/torchrec_planner_cases.py`) where the data must be made anew; the tests read the
data only. The inputs of every case stay as they are, the `shards`, `tables`, `perf_ms`, `hbm` are TorchRec's answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
CODECS = ("fp32", "fp16", "bf16", "fp8", "int8")


def sharders(case: dict[str, Any]) -> list[Any]:
    from torch import device
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry

    codecs = None
    if case["forward"] in CODECS:
        config = QCommsConfig(CommType(case["forward"]), CommType(case["backward"]))
        codecs = get_qcomm_codecs_registry(config, device=device("cpu"))
    kind = EmbeddingBagCollectionSharder if case["pooled"] else EmbeddingCollectionSharder
    return [kind(qcomm_codecs_registry=codecs)]


def module(tables: list[dict[str, Any]], pooled: bool, optimizer: str | None) -> Any:
    import torch
    import torchrec.optim
    from torch.distributed.optim import _apply_optimizer_in_backward
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    config = EmbeddingBagConfig if pooled else EmbeddingConfig
    collection = EmbeddingBagCollection if pooled else EmbeddingCollection
    tables = [{**table, "data_type": DataType[table["data_type"].upper()]} for table in tables]
    made = collection(tables=[config(**table) for table in tables], device=torch.device("meta"))
    classes = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adagrad": torch.optim.Adagrad,
        "rowwise_adagrad": torchrec.optim.RowWiseAdagrad,
    }
    if optimizer:
        _apply_optimizer_in_backward(classes[optimizer], list(made.parameters()), {"lr": 0.1})
    return made


def shards_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Perf and storage of the first and the last shard of one table, as the enumerator computes them."""
    from torchrec.distributed.planner import ParameterConstraints, Topology
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator, EmbeddingStorageEstimator
    from torchrec.distributed.types import PipelineType

    features = [f"f{i}" for i in range(len(case["pooling_factors"]))]
    table = {"name": "t", "num_embeddings": case["rows"], "embedding_dim": case["dim"], "feature_names": features}
    made = module([{**table, "data_type": case["data_type"]}], case["pooled"], case["optimizer"])
    topology = Topology(case["world_size"], "cuda", local_world_size=case["local_world_size"])
    only = [case["sharding"]] if case["sharding"] == "grid_shard" else None
    widest = max((shard["size"][1] for shard in case["shards"]), default=case["dim"])
    limits = ParameterConstraints(pooling_factors=case["pooling_factors"], sharding_types=only, min_partition=widest)
    pipeline = PipelineType.TRAIN_SPARSE_DIST if case["pipeline"] == "sparse_dist" else PipelineType.NONE
    estimators = [
        EmbeddingPerfEstimator(topology, {"t": limits}),
        EmbeddingStorageEstimator(topology, {"t": limits}, pipeline_type=pipeline),
    ]
    enumerator = EmbeddingEnumerator(topology, case["batch_size"], {"t": limits}, estimator=estimators)
    for option in enumerator.enumerate(made, sharders(case)):
        if (option.sharding_type, option.compute_kernel) == (case["sharding"], case["kernel"]):
            ends = [option.shards[0], option.shards[-1]]
            return [answer(shard) for shard in (ends if ends[0].size != ends[1].size else ends[:1])]
    raise LookupError(case)


def answer(shard: Any) -> dict[str, Any]:
    perf = shard.perf
    terms = [perf.fwd_compute, perf.fwd_comms, perf.bwd_compute, perf.bwd_comms, perf.prefetch_compute]
    perf_ms = [*terms, perf.input_dist_comms]
    return {"size": list(shard.size), "perf_ms": perf_ms, "total_ms": perf.total, "hbm": shard.storage.hbm}


def plan_of(case: dict[str, Any]) -> dict[str, Any]:
    """TorchRec's own plan of a table set, with what it adds up for every rank."""
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology

    names = [f"t{i}" for i in range(len(case["rows"]))]
    tables = [
        {
            "name": name,
            "num_embeddings": rows,
            "embedding_dim": case["embedding_dim"],
            "feature_names": ["f" + name[1:]],
        }
        for name, rows in zip(names, case["rows"], strict=True)
    ]
    made = module([{**table, "data_type": "fp32"} for table in tables], True, case["optimizer"])
    local, world = case["local_world_size"], case["world_size"]
    limits = {
        name: ParameterConstraints(pooling_factors=[float(pooling)])
        for name, pooling in zip(names, case["pooling_factors"], strict=True)
    }
    topology = Topology(world, "cuda", local_world_size=local, hbm_cap=80 * 2**30)
    planner = EmbeddingShardingPlanner(topology, case["batch_size"], constraints=limits)
    planner.plan(made, sharders({"pooled": True, "forward": "none"}))
    found: dict[str, Any] = {"tables": {}, "perf_ms": [0.0] * world, "hbm": [0] * world, "input_dist_ms": [0.0] * world}
    for option in planner._best_plan:
        ranks, heights = [s.rank for s in option.shards], [s.size[0] for s in option.shards]
        found["tables"][option.name] = {"sharding": option.sharding_type, "ranks": ranks, "heights": heights}
        for shard in option.shards:
            found["perf_ms"][shard.rank] += shard.perf.total
            found["hbm"][shard.rank] += shard.storage.hbm
            found["input_dist_ms"][shard.rank] += shard.perf.input_dist_comms
    return found


def remake(name: str, answers: Any) -> None:
    path = DATA / name
    cases = [{**case, **answers(case)} for case in json.loads(path.read_text())]
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    remake("torchrec_planner_shards.json", lambda case: {"shards": shards_of(case)})
    remake("torchrec_planner_plans.json", plan_of)
