"""Timelines of whole predicted steps: the engine's own link bytes, and tracks that stay readable."""

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.results.export import write_trace
from foreshard.simulator.results.link_load import LinkLoads
from foreshard.simulator.step.prediction import predict

CASES = {
    "global": ["cluster.nodes=2"],
    "2D with gradients": ["cluster.nodes=2", "layout.sharding_group_size=8"],
    "2D interleaved, base": [
        "cluster.nodes=2", "layout.sharding_group_size=8", "layout.placement=interleaved", "execution.pipeline=base"
    ],
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def prediction(request):
    return predict(read_scenario("mlperf-dcnv2-p5", CASES[request.param]))


def test_what_links_carry_is_what_the_engine_moved(prediction):
    """The bytes of all collectives by link equal those the network counted while they ran."""
    program = prediction.program(prediction.shown_sync)
    loads = LinkLoads(prediction.trace, program, prediction.cluster)
    np.testing.assert_allclose(loads.nbytes, prediction.trace.link_bytes, rtol=1e-9, atol=1.0)
    assert loads.nbytes.sum() > 0


def test_transfers_of_a_link_add_up_to_its_bytes(prediction):
    program = prediction.program(prediction.shown_sync)
    loads = LinkLoads(prediction.trace, program, prediction.cluster)
    for link in loads.busiest():
        assert sum(transfer.nbytes for transfer in loads.transfers(link)) == pytest.approx(loads.nbytes[link])
        assert all(transfer.end_s > transfer.start_s for transfer in loads.transfers(link))


def test_the_busiest_link_of_each_kind_has_no_busier_one(prediction):
    program = prediction.program(prediction.shown_sync)
    loads = LinkLoads(prediction.trace, program, prediction.cluster)
    seconds = loads.nbytes / prediction.cluster.link_usable
    for link in loads.busiest():
        alike = prediction.cluster.link_kind == prediction.cluster.link_kind[link]
        assert seconds[link] == seconds[alike].max()


def test_no_two_slices_of_a_stream_or_link_track_overlap(prediction, tmp_path):
    for path in write_trace(prediction, tmp_path, ranks=[0, 9]):
        tracks = defaultdict(list)
        for event in json.loads(path.read_bytes())["traceEvents"]:
            if event["ph"] == "X" and event["cat"] in ("kernel", "gpu_memcpy", "link"):
                start = round(event["ts"] * 1000)
                tracks[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
        assert len(tracks) > 4
        for spans in tracks.values():
            assert all(first[1] <= second[0] for first, second in pairwise(sorted(spans)))


def test_a_prediction_brings_its_program_and_cluster_along(prediction, tmp_path):
    """The first rank's pooled vectors: what it sends and gets, in bytes, as its own program says."""
    [path] = write_trace(prediction, tmp_path, ranks=[0])
    document = json.loads(path.read_bytes())
    found = {event["args"].get("External id"): event for event in document["traceEvents"] if event["ph"] == "X"
             and event["cat"] == "kernel"}  # fmt: skip
    program = prediction.program(prediction.shown_sync)
    index = next(i for i, op in enumerate(program.ops) if op.name == "output_dist.table_wise")
    traffic = program.ops[index].work.traffic_of(0)
    args = found[index + 1]["args"]
    assert args["In msg nelems"] == pytest.approx(traffic.to_matrix()[0].sum(), abs=64)
    assert args["Out msg nelems"] == pytest.approx(traffic.to_matrix()[:, 0].sum(), abs=64)
    assert document["deviceProperties"][0]["name"] == prediction.cluster.gpu(0).name
