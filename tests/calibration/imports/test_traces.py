"""Kineto traces as points of a profile: the time of a collective is that of the rank that came last."""

from __future__ import annotations

import csv
import json
import tarfile
from collections import defaultdict
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foreshard.topologies.errors import InputError

from .writing import annotated_collective, collective_event, log_text, operator, product, trace_document, write_trace

TRACE_TIME = 1_700_000_000_000_000  # microseconds since 1970: 2023-11-14T22:13:20Z


def write_ranks(folder, events_of, world, **about):
    """One trace for every rank."""
    return [
        write_trace(folder / f"rank{rank}.json", events_of(rank), rank=rank, world=world, **about)
        for rank in range(world)
    ]


def curves(profile):
    return {
        (curve.kind, curve.ranks_per_node): [(point.nbytes, point.median_s) for point in curve.points]
        for curve in profile.collectives
    }


def test_the_rank_that_came_last_tells_the_time(tmp_path, profile_of):
    """Kernels wait for the last rank: 300, 40 and 90 us are one collective of 40 us."""
    waits = (300.0, 40.0, 90.0)
    files = write_ranks(
        tmp_path, lambda rank: [collective_event(1000, waits[rank], nelems=2**20, size=3, device=rank)], 3
    )
    assert curves(profile_of(*files)) == {("all_reduce", (3,)): [(4 * 2**20, pytest.approx(40e-6))]}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    world=st.integers(2, 4),
    steps=st.lists(st.tuples(st.sampled_from([256, 1024, 65536]), st.integers(5, 500)), min_size=1, max_size=6),
    data=st.data(),
)
def test_times_come_back_from_the_traces_of_all_ranks(tmp_path, profile_of, world, steps, data):
    """However long the others waited, the i-th of a size on every rank is one collective; a size has the median."""
    last = [data.draw(st.integers(0, world - 1)) for _ in steps]
    wait = st.integers(1, 10_000)

    def events(rank):
        for number, (nelems, took) in enumerate(steps):
            dur = took if rank == last[number] else took + data.draw(wait)
            yield collective_event(1000 * (number + 1), dur, nelems=nelems, size=world, device=rank)

    files = write_ranks(tmp_path, lambda rank: list(events(rank)), world)
    times = defaultdict(list)
    for nelems, took in steps:
        times[4 * nelems].append(took * 1e-6)
    (curve,) = profile_of(*files).collectives
    assert [point.nbytes for point in curve.points] == sorted(times)
    for point in curve.points:
        assert min(times[point.nbytes]) <= point.median_s * (1 + 1e-9)
        assert point.median_s <= max(times[point.nbytes]) * (1 + 1e-9)
        assert point.runs == len(times[point.nbytes])
        if len(set(times[point.nbytes])) == 1:
            assert point.median_s == pytest.approx(times[point.nbytes][0])


@pytest.mark.parametrize(
    ("name", "nelems", "outputs", "kind", "nbytes"),
    [
        ("allreduce", 1000, None, "all_reduce", 4000),
        ("_allgather_base", 1000, 4000, "all_gather", 16000),
        ("_reduce_scatter_base", 4000, 1000, "reduce_scatter", 16000),
        ("all_to_all", 4000, None, "all_to_all", 16000),
        ("broadcast", 1000, None, "broadcast", 4000),
    ],
)
def test_sizes_are_those_of_nccl_tests(tmp_path, profile_of, name, nelems, outputs, kind, nbytes):
    """Of an all_gather what every rank ends with, of all others what it begins with, in bytes of the data type."""
    for dtype, width in (("Float", 1.0), ("BFloat16", 0.5), ("Long", 2.0)):
        event = collective_event(1000, 50, name=name, nelems=nelems, outputs=outputs, size=4, dtype=dtype)
        path = write_trace(tmp_path / "one.json", [event], world=4)
        assert curves(profile_of(path, nodes=2)) == {(kind, (2, 2)): [(nbytes * width, pytest.approx(50e-6))]}


def test_one_rank_alone_says_that_it_waited(tmp_path, imported, profile_of):
    """Times of a trace without its peers are told as upper limits, in the provenance that reports print."""
    path = write_trace(tmp_path / "one.json", [collective_event(1000, 50), collective_event(2000, 70)])
    profile = profile_of(path, nodes=1)
    (point,) = profile.collectives[0].points
    assert (point.median_s, point.runs) == (pytest.approx(60e-6), 2)
    assert any("upper limits" in note for note in profile.provenance[0].notes)
    assert not imported(path, nodes=1).traced.whole


def test_what_cannot_be_a_point_is_counted_with_its_reason(tmp_path, imported):
    """Groups of some ranks, unequal parts, sizes that are not told, and what no profile holds."""
    events = [
        collective_event(1000, 50),
        collective_event(2000, 50, size=1),
        collective_event(3000, 50, name="all_to_allv", **{"In split size": "[300, 724]"}),
        collective_event(4000, 50, name="all_to_allv", outputs=2000),
        collective_event(5000, 50, dtype="ComplexHalf"),
        collective_event(6000, 50, name="send"),
        collective_event(7000, 50, nelems=0),
        collective_event(8000, 50, name="_allgather_base", outputs=1500),
    ]
    found = imported(write_trace(tmp_path / "one.json", events), nodes=1).traced
    assert len(found.rows) == 1
    for reason in (
        "all_reduce of 1 of 2 ranks: how many such groups ran at once is not told", "with unequal parts",
        "whose ranks send more than they receive", "of ComplexHalf: its size is not told",
        "send is no part of a profile", "of no bytes", "all_gather of Float: its size is not told",
    ):  # fmt: skip
        assert sum(reason in sentence for sentence in found.skipped) == 1, reason


def test_equal_splits_are_an_all_to_all_of_equal_parts(tmp_path, profile_of):
    """TorchRec gives its splits even where they are equal."""
    event = collective_event(
        1000, 50, name="all_to_allv", **{"In split size": "[512, 512]", "Out split size": "[512, 512]"}
    )
    assert curves(profile_of(write_trace(tmp_path / "one.json", [event]), nodes=1)) == {
        ("all_to_all", (2,)): [(4096, pytest.approx(50e-6))]
    }


def test_a_group_s_own_count_tells_which_belong_together(tmp_path, profile_of):
    """Where a window begins one collective later on a rank, sequence numbers keep the pairs right."""
    first = [collective_event(1000 * seq, 10.0 * seq, Seq=seq) for seq in (1, 2, 3)]
    second = [collective_event(1000 * seq, 10.0 * seq + 5, Seq=seq, device=1) for seq in (2, 3, 4)]
    files = [write_trace(tmp_path / f"{rank}.json", events, rank=rank) for rank, events in enumerate([first, second])]
    (point,) = profile_of(*files).collectives[0].points
    assert (point.runs, point.median_s) == (2, pytest.approx(25e-6))


def test_without_a_count_ranks_that_disagree_are_skipped(tmp_path, imported):
    """Two of a size on one rank and three on the other: nothing tells which is missing."""
    first = [collective_event(1000 * place, 10) for place in (1, 2)]
    second = [collective_event(1000 * place, 10, device=1) for place in (1, 2, 3)]
    second.append(collective_event(9000, 10, nelems=7, device=1))
    first.append(collective_event(9000, 10, nelems=7))
    files = [write_trace(tmp_path / f"{rank}.json", events, rank=rank) for rank, events in enumerate([first, second])]
    found = imported(*files).traced
    assert [row.nbytes for row in found.rows] == [28]
    assert found.skipped == ("5 skipped: not in the traces of all ranks given, so which belong together is not known",)


def test_ordinals_of_gpus_tell_which_ranks_share_a_node(tmp_path, profile_of):
    """Of ranks with the same GPU's number every one is in a node of its own; without all ranks it must be said."""
    files = write_ranks(tmp_path, lambda rank: [collective_event(1000, 50, size=6, device=rank % 4)], 6)
    assert profile_of(*files).ranks_per_node == (4, 2)
    with pytest.raises(InputError, match=r"rank0.json: it is of 6 ranks, but does not tell which of them share a node"):
        profile_of(*files[:5])
    assert profile_of(*files[:5], per_node=3).ranks_per_node == (3, 3)
    alike = write_ranks(tmp_path, lambda rank: [collective_event(1000, 50, size=2, device=0)], 2)
    with pytest.raises(InputError, match="does not tell which of them share a node"):
        profile_of(*alike)  # each rank saw its own GPU only, in one node or in two


def test_older_traces_name_collectives_around_their_launch(tmp_path, imported):
    """Every kernel is called SendRecv there: the annotation and its input tell; parts of an all_to_all are not told."""
    events = [
        *annotated_collective(1000, 40, name="all_reduce", dims=[256, 4]),
        *annotated_collective(2000, 50, name="_all_gather_base", dims=[1024]),
        *annotated_collective(3000, 60, name="_reduce_scatter_base", dims=[1024], kind="c10::Half"),
        *annotated_collective(4000, 70, name="all_to_all", dims=[1024]),
        {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce", "ts": 5000, "dur": 9, "args": {"correlation": 1}},
    ]
    found = imported(write_trace(tmp_path / "old.json.gz", events), nodes=1).traced
    assert [(row.kind, row.nbytes, round(row.time_s * 1e6)) for row in found.rows] == [
        ("all_reduce", 4096, 40), ("all_gather", 8192, 50), ("reduce_scatter", 2048, 60),
    ]  # fmt: skip
    assert found.skipped == (
        "1 skipped: all_to_all whose parts are not told: they may be unequal, and curves are of equal ones",
        "1 skipped: no operator or argument tells what the kernel moved",
    )


def test_arguments_may_stand_with_the_operator_around_the_launch(tmp_path, imported):
    """Some versions describe a collective in record_param_comms and not in its kernel."""
    events = annotated_collective(1000, 40, name="all_to_all", dims=[1024])
    told = {"Collective name": "all_to_allv", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 2}
    args = {**told, "dtype": "Int", "In split size": "[512, 512]", "Out split size": "[512, 512]"}
    events.append(operator("record_param_comms", 940, 1000, 8, **args))
    (row,) = imported(write_trace(tmp_path / "a.json", events), nodes=1).traced.rows
    assert (row.kind, row.nbytes) == ("all_to_all", 4096)


def test_traces_are_of_one_run(tmp_path, profile_of):
    """Another size of the world, a rank twice, or a world that nothing tells, is refused."""
    first = write_trace(tmp_path / "a.json", [collective_event(1000, 50)], rank=0)
    other = write_trace(tmp_path / "b.json", [collective_event(1000, 50, size=3)], rank=1, world=3)
    again = write_trace(tmp_path / "c.json", [collective_event(1000, 60)], rank=0)
    bare = tmp_path / "d.json"
    bare.write_text(json.dumps([collective_event(1000, 50)]))
    gloo = tmp_path / "e.json"
    gloo.write_text(
        json.dumps({"distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 2}}
                   | {"traceEvents": [collective_event(1000, 50)]})
    )  # fmt: skip
    for files, message in (
        ((first, other), "the traces are of worlds of different sizes"),
        ((first, again), "2 traces of rank 0: give one of every rank"),
        ((bare,), "has no distributedInfo that tells the size of the world: give both --nodes and --ranks-per-node"),
        ((gloo,), "e.json: ran on gloo"),
    ):
        with pytest.raises(InputError, match=message):
            profile_of(*files)
    assert profile_of(bare, nodes=2, per_node=1).ranks_per_node == (1, 1)


def test_a_broken_event_is_named(tmp_path, profile_of):
    """The file, the number of the event, and what is wrong with it."""
    path = write_trace(tmp_path / "bad.json", [collective_event(1000, 50), collective_event(2000, float("nan"))])
    with pytest.raises(InputError, match=r"bad.json: event 1 \('ncclDevKernel.*'\): dur = 'nan', expected microsec"):
        profile_of(path, nodes=1)
    path.write_text("{}")
    with pytest.raises(InputError, match=r"bad.json: has no traceEvents"):
        profile_of(path)


HUGE = st.sampled_from([1e308, 2**70, 10**400])
NOISE = st.recursive(HUGE | st.none() | st.integers() | st.text(max_size=6), lambda inner: st.lists(inner, max_size=3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_traces_with_any_nonsense_in_them_end_in_a_profile_or_an_input_error(tmp_path, profile_of, data):
    """Keys that are missing or hold something else never end in another error."""
    events = [
        collective_event(1000, 50), *annotated_collective(2000, 50, name="all_reduce", dims=[8]),
        *product("aten::mm", 3000, 1, 5, 77, dims=[[4, 5], [5, 6]], number=3),
    ]  # fmt: skip
    document = trace_document(events)
    spots = [document, document["distributedInfo"], *events, *(event["args"] for event in events)]
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(spots) - 1))
        spots[place][data.draw(st.sampled_from(sorted(spots[place])))] = data.draw(NOISE)
    path = tmp_path / "noise.json"
    path.write_text(json.dumps(document))
    with suppress(InputError):
        profile_of(path, nodes=1)


def test_a_trace_says_when_it_was_and_with_which_versions(tmp_path, profile_of):
    """Its own clock, counted from the epoch or from its base, is the date; versions are in what it says of the run."""
    path = write_trace(tmp_path / "a.json", [collective_event(TRACE_TIME, 50)])
    (provenance,) = profile_of(path, nodes=1).provenance
    assert provenance.created == "2023-11-14T22:13:20+00:00"
    assert provenance.versions == {"nccl": "2.27.3"}
    assert provenance.hardware == "NVIDIA H100 80GB HBM3: 2 ranks"
    base = {"baseTimeNanoseconds": 1_690_000_000_000_000_000}
    document = trace_document([collective_event(10_000_000_000_000, 50)], **base)
    path.write_text(json.dumps(document))
    assert profile_of(path, nodes=1).provenance[0].created == "2023-11-14T22:13:20+00:00"


def test_logs_go_before_traces(tmp_path, profile_of):
    """What a log measures is not mixed with kernels of a training step; what it does not, traces give."""
    log = tmp_path / "a.log"
    log.write_text(log_text("all_reduce", 2, [(4096, 30e-6)], per_node=2))
    events = [collective_event(1000, 50), collective_event(2000, 60, name="all_to_all")]
    trace = write_trace(tmp_path / "a.json", events)
    profile = profile_of(log, trace, nodes=1)
    assert curves(profile) == {
        ("all_reduce", (2,)): [(4096, pytest.approx(30e-6))],
        ("all_to_all", (2,)): [(4096, pytest.approx(60e-6))],
    }
    assert [origin.name.split()[0] for origin in profile.provenance] == ["nccl-tests", "kineto"]


def layer_events(layers, forward_s, backward_s):
    """Linear layers as autograd runs them: a product forward, two in the node of the same number on another thread."""
    events = []
    for number, (samples, inputs, outputs) in enumerate(layers):
        start = 1000 * number
        dims = [[outputs], [samples, inputs], [inputs, outputs]]
        took = forward_s(samples, inputs, outputs) * 1e6
        events += product("aten::addmm", start, 1, took, 10 * number, dims=dims, number=number)
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        events.append(
            {"ph": "X", "cat": "cpu_op", "name": node, "pid": 7, "tid": 2, "ts": 50_000 + start, "dur": 200,
             "args": {"Sequence number": number}}
        )  # fmt: skip
        took = backward_s(samples, inputs, outputs) * 1e6 / 2
        for place in (1, 2):
            events += product("aten::mm", 50_000 + start + 20 * place, 2, took, 10 * number + place)
    return events


def test_linear_layers_with_their_shapes_become_dense_work(tmp_path, profile_of):
    """Seconds of a layer and of a floating-point operation are found again from the products' kernels."""
    layers = [(b, i, o) for b in (256, 4096) for i, o in ((512, 512), (1024, 256), (2048, 2048), (128, 4096))]

    def forward(b, i, o):
        return 4e-6 + 2.0 * b * i * o / 50e12

    path = write_trace(tmp_path / "a.json", layer_events(layers, forward, lambda *size: 2 * forward(*size)))
    fits = {fit.kind: fit for fit in profile_of(path, nodes=1).work}
    assert set(fits) == {"dense_forward", "dense_backward"}
    for kind, calls in (("dense_forward", 1), ("dense_backward", 2)):
        found = dict(zip(fits[kind].features, fits[kind].coefficients, strict=True))
        assert found["flops"] == pytest.approx(1 / 50e12, rel=0.02)
        assert found["layers"] == pytest.approx(4e-6 * calls, rel=0.02)
        assert len(fits[kind].points) == len(layers)


def test_layers_of_one_batch_size_say_that_they_hold_for_it_only(tmp_path, profile_of, imported):
    """With one number of samples, bytes of weights and operations on them grow together; too few layers are no fit."""
    layers = [(256, i, o) for i, o in ((512, 512), (1024, 256), (2048, 2048), (128, 4096))]
    events = layer_events(layers, lambda b, i, o: 1e-6 + i * o * 1e-12, lambda b, i, o: 2e-6 + i * o * 2e-12)
    path = write_trace(tmp_path / "a.json", events)
    (provenance,) = profile_of(path).provenance
    assert any("all of 256 samples: it holds for such batches only" in note for note in provenance.notes)
    few = imported(write_trace(tmp_path / "b.json", layer_events(layers[:3], lambda *_: 1e-6, lambda *_: 2e-6)))
    assert not few.work.records
    assert few.work.skipped[1] == "3 skipped: dense_forward of 3 different layers: a fit needs 4"


def test_look_ups_are_skipped_as_a_trace_has_no_widths_of_tables(tmp_path, imported):
    """The sizes of the tables' memory are there, but not what the work is counted in."""
    lookup = {"ph": "X", "cat": "cpu_op", "name": "fbgemm::split_embedding_codegen_lookup_adagrad_function", "ts": 1,
              "dur": 1, "args": {"Input Dims": [[25657792], [33398], [393217]]}}  # fmt: skip
    found = imported(write_trace(tmp_path / "a.json", [lookup]))
    assert found.work.skipped == (
        "1 skipped: embedding look-ups and updates: their tables' rows and widths are not told",
    )


def test_real_traces_of_all_ranks_give_the_shortest_of_each_collective(specimens, tmp_path, profile_of):
    """Eight V100s: three all-reduces, each as long as on the rank that came last, as the index of kernels has it."""
    with tarfile.open(specimens / "traces" / "torchrec_dlrm_8xV100_kineto_all8ranks.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    with (specimens / "traces" / "torchrec_dlrm_8xV100_nccl_kernels.csv").open() as file:
        kernels = [row for row in csv.DictReader(file) if "nccl:all_reduce" in row["enclosing_cpu_annotation"]]
    shortest = []
    for place in range(3):
        of_ranks = [[row for row in kernels if row["rank"] == str(rank)][place] for rank in range(8)]
        shortest.append(min(float(row["kernel_dur_us"]) for row in of_ranks))
    (curve,) = profile_of(*sorted(tmp_path.rglob("*.json"))).collectives
    assert curve.ranks_per_node == (8,)
    assert sorted(point.median_s * 1e6 for point in curve.points) == pytest.approx(sorted(shortest))


def test_a_real_trace_of_one_rank_gives_what_its_annotations_tell(specimens, profile_of):
    """Rank 0 of 16: ten of each that has a size, every kernel called SendRecv."""
    path = specimens / "traces" / "hta_torchrec_rank0of16_A100_a2a_rs_ag.json.gz"
    profile = profile_of(path, per_node=8)
    assert {curve.kind: sum(point.runs for point in curve.points) for curve in profile.collectives} == {
        "all_gather": 10, "all_reduce": 10, "reduce_scatter": 10,
    }  # fmt: skip
    assert profile.device_name == "NVIDIA A100-SXM4-80GB"


def test_a_real_trace_with_arguments_gives_its_collectives(specimens, profile_of):
    """Two A100s: fifteen all-reduces of five sizes and six broadcasts of two."""
    profile = profile_of(specimens / "traces" / "hta_nccl_metadata_allreduce_2xA100.json.gz", nodes=1)
    assert {curve.kind: [point.runs for point in curve.points] for curve in profile.collectives} == {
        "all_reduce": [3] * 5, "broadcast": [3, 3],
    }  # fmt: skip
