"""The timeline files: Kineto's shape, no overlap on a track, and nothing lost or added against the trace."""

import json
import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.trace import OpInfo, StepTrace
from foreshard.simulator.results.export import selected_ranks, trace_bytes, write_trace
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import load_preset

NS = 1e-3  # us; the files' resolution


@pytest.fixture(scope="module")
def cluster():
    return load_preset("p5.48xlarge", nodes=1)


@pytest.fixture(scope="module")
def files(made_step, cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    paths = write_trace(made_step.trace, folder, program=made_step.program, cluster=cluster)
    return [json.loads(path.read_bytes()) for path in paths]


def slices(document, *categories):
    return [event for event in document["traceEvents"] if event["ph"] == "X" and event["cat"] in categories]


def test_there_is_one_file_a_rank_and_it_says_whose_it_is(files):
    assert [document["distributedInfo"]["rank"] for document in files] == list(range(8))
    assert {document["distributedInfo"]["world_size"] for document in files} == {8}
    assert {document["distributedInfo"]["backend"] for document in files} == {"nccl"}


def test_every_operation_of_the_trace_is_one_kernel_or_copy_with_its_times(files, made_step):
    trace = made_step.trace
    for rank, document in enumerate(files):
        found = {event["args"]["External id"] - 1: event for event in slices(document, "kernel", "gpu_memcpy")}
        assert sorted(found) == list(range(len(trace.ops)))
        for index, event in found.items():
            assert event["ts"] == pytest.approx(trace.start_s[index, rank] * 1e6, abs=NS)
            assert event["dur"] == pytest.approx((trace.end_s - trace.start_s)[index, rank] * 1e6, abs=NS)


def test_durations_and_waits_add_up_to_those_of_the_trace(files, made_step):
    trace = made_step.trace
    for rank, document in enumerate(files):
        kernels = slices(document, "kernel", "gpu_memcpy")
        total = float((trace.end_s - trace.start_s)[:, rank].sum()) * 1e6
        assert sum(event["dur"] for event in kernels) == pytest.approx(total, abs=len(kernels) * NS)
        waits = sum(event["args"].get("wait us", 0.0) for event in kernels)
        assert waits == pytest.approx(float(trace.wait_s[:, rank].sum()) * 1e6, abs=len(kernels) * NS)


def test_slices_of_one_track_nest_or_follow_each_other(files):
    for document in files:
        tracks = defaultdict(list)
        for event in document["traceEvents"]:
            if event["ph"] == "X":
                tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        for spans in tracks.values():
            assert_nested(spans)


def assert_nested(spans):
    """In the order of the file every slice lies inside the open one or begins after it ended."""
    open_until: list[float] = []
    for start, end in spans:
        while open_until and open_until[-1] <= start + NS / 2:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + NS / 2
        open_until.append(end)


def test_kernels_of_one_stream_never_overlap(files):
    for document in files:
        streams = defaultdict(list)
        for event in slices(document, "kernel", "gpu_memcpy"):
            streams[event["args"]["stream"]].append((event["ts"], event["ts"] + event["dur"]))
        for spans in streams.values():
            ordered = sorted(spans)
            assert all(first[1] <= second[0] + NS / 2 for first, second in pairwise(ordered))


def test_collectives_carry_the_keys_that_kineto_gives_nccl_kernels(files, made_step):
    keys = {
        "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "In split size",
        "Out split size", "Process Group Name", "Process Group Description", "Process Group Ranks",
        "device", "stream", "correlation", "External id",
    }  # fmt: skip
    collectives = [op.name for op in made_step.trace.ops if op.collective]
    for document in files:
        found = [event for event in slices(document, "kernel") if event["name"].startswith("nccl")]
        assert len(found) == len(collectives)
        assert all(keys <= event["args"].keys() for event in found)
        assert all(re.match(r"^nccl.*Kernel", event["name"]) for event in found)


def test_an_all_to_all_names_the_bytes_of_the_rank_itself(files, made_step):
    op = made_step.program.ops[0]
    assert isinstance(op.work, Collective)
    matrix = op.work.traffic[0].to_matrix()
    for rank, document in enumerate(files):
        [args] = [e["args"] for e in slices(document, "kernel") if e["args"]["External id"] == 1]
        assert json.loads(args["In split size"]) == matrix[rank % 4].tolist()
        assert json.loads(args["Out split size"]) == matrix[:, rank % 4].tolist()
        assert args["In msg nelems"] == matrix[rank % 4].sum()
        assert json.loads(args["Process Group Ranks"]) == [rank // 4 * 4 + i for i in range(4)]


def test_the_dense_all_reduce_runs_in_the_default_group_and_lookups_in_another(files):
    for document in files:
        groups = {e["args"]["Collective name"]: e["args"]["Process Group Name"] for e in slices(document, "kernel")
                  if "Collective name" in e["args"]}  # fmt: skip
        assert groups == {"allreduce": "0", "all_to_allv": "1"}
        assert document["distributedInfo"]["pg_count"] == 2


def test_bytes_over_a_link_track_are_those_of_the_collectives_on_it(files, made_step, cluster):
    """In a node all traffic of a rank leaves by its own link to the switch: in sum what it sends to others."""
    sent = sum(
        op.work.traffic[0].bytes_out()[3] for op in made_step.program.ops
        if isinstance(op.work, Collective) and op.work.kind == "all_to_all"
    )  # fmt: skip
    names = {e["tid"]: e["args"]["name"] for e in files[3]["traceEvents"] if e["name"] == "thread_name"}
    tracks = {tid for tid, name in names.items() if name.startswith("node0/gpu3->node0/nvswitch")}
    onto = [e for e in slices(files[3], "link") if e["tid"] in tracks and "all_reduce" not in e["name"]]
    assert sum(event["args"]["bytes"] for event in onto) == pytest.approx(sent, abs=len(onto))


def test_streams_and_processes_have_names_and_an_order(files):
    for document in files:
        named = {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["name"] == "thread_name"}
        assert {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["ph"] == "X"} <= named
        assert {"process_name", "process_labels", "process_sort_index", "thread_sort_index"} <= {
            e["name"] for e in document["traceEvents"] if e["ph"] == "M"
        }


def test_a_step_annotation_covers_the_step(files, made_step):
    for document in files:
        [step] = slices(document, "user_annotation")
        assert step["name"] == "ProfilerStep#0"
        assert step["dur"] == pytest.approx(made_step.trace.step_time_s * 1e6, abs=NS)


def test_the_same_trace_gives_the_same_bytes(made_step, cluster):
    first, second = (trace_bytes(made_step.trace, 2, program=made_step.program, cluster=cluster) for _ in range(2))
    assert first == second


def test_without_program_and_cluster_the_sizes_are_the_busiest_ranks_and_say_so(made_step):
    document = json.loads(trace_bytes(made_step.trace, 0))
    [args] = [e["args"] for e in slices(document, "kernel") if e["args"]["External id"] == 3]
    assert args["In msg nelems"] == 64e6
    assert args["sizes of"] == "busiest rank"
    assert not slices(document, "link")


def test_rank_is_written_as_holistic_trace_analysis_searches_for_it(made_step):
    """Its pattern for the rank of a file is the text '"rank":', blanks, digits."""
    assert re.search(rb'"rank":\s+(\d+)', trace_bytes(made_step.trace, 5)).group(1) == b"5"


def test_of_a_large_world_the_telling_ranks_are_written_and_the_file_says_why(wide_step, tmp_path):
    paths = write_trace(wide_step.trace, tmp_path)
    documents = [json.loads(path.read_bytes()) for path in paths]
    why = {d["distributedInfo"]["rank"]: d["foreshard"]["why_this_rank"] for d in documents}
    assert len(why) < 6
    assert why == selected_ranks(wide_step.trace)
    assert why[61].startswith("slowest")
    assert "first rank" in why[0]


def test_all_ranks_of_a_large_world_are_written_if_asked_for(wide_step, tmp_path):
    assert len(write_trace(wide_step.trace, tmp_path, ranks="all")) == 64


def test_just_the_ranks_asked_for_are_written(wide_step, tmp_path):
    paths = write_trace(wide_step.trace, tmp_path, ranks=[3, 60])
    assert [path.name for path in paths] == ["rank0003.pt.trace.json", "rank0060.pt.trace.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in paths]


def test_a_rank_outside_the_world_is_refused(made_step, tmp_path):
    with pytest.raises(InputError, match=r"ranks \[8, -1\] are not in the trace: it has ranks 0 to 7"):
        write_trace(made_step.trace, tmp_path, ranks=[8, 0, -1])


def test_a_file_in_the_place_of_the_directory_is_refused(made_step, tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InputError, match="is a file: name a folder"):
        write_trace(made_step.trace, tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_an_operation_without_part_on_a_rank_is_left_out(made_step):
    trace = made_step.trace
    times = [array.copy() for array in (trace.start_s, trace.end_s, trace.wait_s)]
    for array in times:
        array[4, 2] = np.nan
    partial = replace(trace, start_s=times[0], end_s=times[1], wait_s=times[2])
    assert len(slices(json.loads(trace_bytes(partial, 2)), "kernel", "gpu_memcpy")) == len(trace.ops) - 1


def test_no_time_stamp_is_negative_where_a_pipeline_works_ahead(made_step):
    """Operations before the step's mark move all time stamps, not their distances."""
    trace = made_step.trace
    early = replace(trace, start_s=trace.start_s - 2e-3, end_s=trace.end_s - 2e-3)
    document = json.loads(trace_bytes(early, 0))
    assert min(event["ts"] for event in document["traceEvents"]) == 0
    [step] = slices(document, "user_annotation")
    first = min(slices(document, "kernel"), key=lambda event: event["ts"])
    assert first["ts"] - step["ts"] == pytest.approx(-2000.0, abs=NS)


@settings(max_examples=40, deadline=None)
@given(
    durations=st.lists(st.floats(0, 1e-2), min_size=1, max_size=12),
    gaps=st.lists(st.floats(0, 1e-4), min_size=12, max_size=12),
)
def test_rounding_to_nanoseconds_never_makes_neighbours_overlap(durations, gaps):
    """Whatever the times, slices of a stream stay apart and no longer than a nanosecond off."""
    starts = np.cumsum([gap + before for gap, before in zip(gaps, [0.0, *durations], strict=False)])[: len(durations)]
    ends = np.maximum(starts, starts + np.array(durations))
    ops = tuple(
        OpInfo(name=f"op{i}", label="op", stage="local_compute", stream="compute", batch=0) for i in range(len(starts))
    )
    trace = StepTrace(
        source="predicted", ops=ops, start_s=starts[:, None], end_s=ends[:, None], wait_s=np.zeros((len(ops), 1)),
        step_time_s=1.0,
    )  # fmt: skip
    document = json.loads(trace_bytes(trace, 0))
    events = sorted(slices(document, "kernel"), key=lambda event: event["args"]["External id"])
    for event, following in pairwise(events):
        assert round(event["ts"] * 1000) + round(event["dur"] * 1000) <= round(following["ts"] * 1000)
    assert sum(e["dur"] for e in events) == pytest.approx(sum(ends - starts) * 1e6, abs=NS * len(events))
