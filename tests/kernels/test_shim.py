"""The shim of the CUDA execution model: it runs what CUDA defines, in any order, and refuses what CUDA leaves open."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st


@given(seed=st.integers(0, 2**32), threads=st.sampled_from([1, 2, 32, 128]), blocks=st.integers(1, 4))
def test_barriers_order_shared_memory_under_any_schedule(on_cpu, seed, threads, blocks):
    values, out = np.arange(threads * blocks, dtype=np.int32), np.zeros(blocks, dtype=np.int32)
    device = on_cpu(seed=seed, max_grid=blocks)
    device.launch("block_sum", blocks, (values, out), threads=threads, shared_bytes=4 * threads)
    assert out.tolist() == values.reshape(blocks, threads).sum(axis=1).tolist()


@pytest.mark.skipif("FORESHARD_SHIM_SANITIZE" in os.environ, reason="races are searched for without the sanitizers")
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("kernel", "blocks", "threads"),
    [
        ("shuffle_for_a_barrier", 1, 32),
        ("barrier_of_half_the_warp", 1, 32),
        ("counts_without_atomics", 1, 2),
        ("counts_without_atomics", 2, 1),
        ("blocks_pass_a_value", 2, 1),
    ],
)
def test_what_nothing_orders_is_a_race_under_any_schedule(on_cpu, kernel, blocks, threads, seed):
    device = on_cpu(seed=seed, max_grid=blocks)
    with pytest.raises(AssertionError, match="and nothing orders them"):
        device.launch(kernel, blocks, (np.zeros(32, dtype=np.int32),), threads=threads, shared_bytes=128)


@pytest.mark.skipif("FORESHARD_SHIM_SANITIZE" in os.environ, reason="races are searched for without the sanitizers")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_missing_barrier_is_a_race_under_any_schedule(on_cpu, seed):
    values, out = np.arange(1, 33, dtype=np.int32), np.zeros(1, dtype=np.int32)
    with pytest.raises(
        AssertionError, match=r"thread \d+ of block 0 (reads|writes) what thread \d+ of block 0 (wrote|read)"
    ):
        on_cpu(seed=seed).launch("racing_sum", 1, (values, out), threads=32, shared_bytes=128)


@pytest.mark.skipif("FORESHARD_SHIM_SANITIZE" in os.environ, reason="the sanitizer ends the process there")
def test_an_address_that_cuda_would_refuse_is_an_error(on_cpu):
    with pytest.raises(AssertionError, match="reads 8 bytes at an address that is no multiple of that"):
        on_cpu().launch("loads_unaligned", 1, (np.zeros(9, np.int32)[1:], np.zeros(1, np.int64)), threads=1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_a_barrier_orders_or_threads_do_to_memory_of_their_own_is_no_race(on_cpu, seed):
    device, out = on_cpu(seed=seed, max_grid=2), np.zeros(32, dtype=np.int32)
    device.launch("barrier_of_the_warp", 1, (out,), threads=32, shared_bytes=128)
    assert out.tolist() == [*range(1, 32), 0]
    bytes_ = np.zeros(32, dtype=np.uint8)
    device.launch("neighbours_in_a_word", 1, (bytes_,), threads=32)
    assert bytes_.all()
    for _ in range(2):  # the next launch may read what this one wrote
        device.launch("counts_with_atomics", 2, (out,), threads=32)
    assert out[0] == 1 + 2 * 64
    device.launch("all_store_the_same", 2, (out,), threads=32)
    assert out[0] == 5


def test_warp_functions_by_hand(on_cpu):
    lanes = np.arange(32)
    ints, words = np.zeros((2, 32), dtype=np.int32), np.zeros((2, 32), dtype=np.uint32)
    on_cpu(seed=3).launch("warp_functions", 1, (ints[0], ints[1], words[0], words[1]), threads=32)
    assert ints[0].tolist() == (lanes // 8 * 8 + 5).tolist()
    assert ints[1].tolist() == (lanes ^ 1).tolist()
    assert set(words[0].tolist()) == {sum(1 << lane for lane in range(0, 32, 3))}
    equals = [sum(1 << other for other in range(32) if other // 10 == lane // 10) for lane in range(32)]
    assert words[1].tolist() == equals


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("barrier_in_a_branch", "25 threads of the block have exited, 7 wait"),
        ("barrier_against_shuffle", "waits for threads that never come"),
        ("shuffle_after_exit", "names lane 3, which has exited"),
        ("shuffle_from_outside", "a shuffle reads lane 20, which is not in its mask"),
        ("mask_without_caller", "lacks the calling lane"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_cuda_leaves_undefined_is_an_error_that_names_it(on_cpu, kernel, message, seed):
    with pytest.raises(AssertionError, match=message):
        on_cpu(seed=seed).launch(kernel, 1, (np.zeros(32, dtype=np.int32),), threads=32)


def test_arguments_of_another_type_than_the_parameters_are_refused(on_cpu):
    with pytest.raises(AssertionError, match=r"block_sum: i64\* for i32\*"):
        on_cpu().launch("block_sum", 1, (np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int32)), threads=1)
