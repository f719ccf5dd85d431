"""Facts about the laboratory of notebook 03: counted work, tiles, room, padding, gradient noise, runs read off."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import gpulab
from gpulab import synthetic
from gpulab.errors import RunError
from gpulab.lessons.labs.data import padding
from gpulab.lessons.labs.kernels import batch_size, gradient_noise
from gpulab.lessons.labs.steps import throughput


@pytest.fixture(autouse=True)
def one_thread():
    """Small operators do not wait for a second core that another program keeps busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Work.


def test_a_product_is_one_operator_with_two_operations_a_multiply_add():
    left, right = torch.rand(8, 16), torch.rand(16, 4)
    work = batch_size.count_work(lambda: left @ right)
    assert (work.ops, work.matrix_ops, work.flops, work.largest_flops) == (1, 1, 2 * 8 * 16 * 4, 2 * 8 * 16 * 4)


def test_views_and_bare_allocations_are_no_work():
    some = torch.rand(4, 6)
    work = batch_size.count_work(lambda: (some.t(), some[0], some.reshape(-1), some.unsqueeze(0), torch.empty(5)))
    assert (work.ops, work.flops, work.largest_flops) == (0, 0, 0)


def test_backward_counts_too_and_a_convolution_by_its_formula():
    layer, images = nn.Conv2d(3, 5, 3, padding=1), torch.rand(2, 3, 8, 8)
    forward = batch_size.count_work(lambda: layer(images))
    assert forward.flops == 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3)
    both = batch_size.count_work(lambda: layer(images).sum().backward())
    assert both.by_name["convolution_backward"] == 1
    assert both.flops > forward.flops


def test_a_loop_dispatches_the_operators_of_one_call_per_sample_and_a_batched_call_does_not_depend_on_batch_size():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    one, many = (batch_size.count_work(lambda size=size: model(torch.zeros(size, 4))).ops for size in (1, 50))
    rows = torch.rand(7, 4)
    assert one == many
    assert (
        batch_size.count_work(lambda: [model(row[None]) for row in rows]).ops
        == 7 * batch_size.count_work(lambda: model(rows)).ops
    )


def test_code_without_work_has_none():
    work = batch_size.count_work(lambda: None)
    assert (work.ops, work.matrix_ops, work.flops, work.largest_flops) == (0, 0, 0, 0)


# What backward needs.


def chain(rows: torch.Tensor, layers: nn.Module) -> None:
    layers(rows).sum().backward()


def test_saved_bytes_are_the_input_and_each_activation_once():
    layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    # The input (4 numbers a row) and the output of the ReLU (8), which two layers keep; weights are there anyway.
    assert batch_size.peak_saved_bytes(lambda: chain(torch.rand(10, 4), layers)) == 10 * (4 + 8) * 4


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_micro_batches_keep_their_share_at_a_time(parts):
    layers, rows = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), torch.rand(16, 4)
    saved_peak = batch_size.peak_saved_bytes(lambda: [chain(some, layers) for some in rows.chunk(parts)])
    assert saved_peak == batch_size.peak_saved_bytes(lambda: chain(rows, layers)) / parts


def test_nothing_is_saved_without_gradients():
    layers = nn.Linear(4, 8)
    with torch.no_grad():
        assert batch_size.peak_saved_bytes(lambda: layers(torch.rand(3, 4))) == 0


# Tiles and waves.


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (128, 128), (129, 128), (257, 8192), (1000, 333), (8193, 8192)])
def test_tiles_are_dealt_out_as_a_gpu_would(rows, columns):
    tiles = [(row, column) for row in range(0, rows, 128) for column in range(0, columns, 128)]
    waves = [tiles[first : first + 132] for first in range(0, len(tiles), 132)]
    tiling = batch_size.tile_matmul(rows, columns)
    assert (tiling.blocks, tiling.waves) == (len(tiles), len(waves))
    assert 0 < tiling.filled_frac <= 1
    assert tiling.filled_frac * tiling.waves * 132 * 128 * 128 == pytest.approx(rows * columns)


def test_tiles_and_waves_of_257_and_8193_rows_match_the_notebook():
    assert [batch_size.tile_matmul(rows, 8192).waves for rows in (256, 257, 8192, 8193)] == [1, 2, 32, 32]
    tiling = batch_size.tile_matmul(256, 8192)
    assert (tiling.blocks, tiling.waves, tiling.filled_frac) == (128, 1, 128 / 132)
    assert "97 %" in str(tiling)


# Room.


def test_a_batch_returns_its_peak_or_raises_out_of_memory_and_is_counted():
    memory = batch_size.BatchMemory(capacity_bytes=1000, fixed_bytes=100.0, sample_bytes=9.5)
    assert memory.peak(10) == 195
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        memory.peak(95)
    assert memory.tries == 2


def test_exactly_one_batch_is_the_largest_and_the_check_is_not_counted():
    memory = batch_size.BatchMemory(capacity_bytes=1000, fixed_bytes=100.0, sample_bytes=9.5)
    assert [batch for batch in range(1, 300) if memory.is_largest(batch)] == [94]
    assert not memory.is_largest(94.5), "half an image is not a batch"
    assert len({memory.describe(batch) for batch in (93, 94, 95)}) == 3
    assert memory.describe(92) == memory.describe(93)
    assert memory.tries == 0


# Padding.


def by_hand(lengths: list[int], batches: padding.Batches) -> tuple[int, int]:
    """Real rectangles of tokens, filled up with zeros: how many numbers, and how many zeros."""
    rectangles = []
    for batch in batches:
        rectangle = np.zeros((len(batch), max(lengths[each] for each in batch)), np.int64)
        for row, each in enumerate(batch):
            rectangle[row, : lengths[each]] = 1
        rectangles.append(rectangle)
    return sum(each.size for each in rectangles), sum(int((each == 0).sum()) for each in rectangles)


LENGTHS = [len(each) for each in synthetic.texts(600, seed=3)]


@pytest.mark.parametrize(
    "batches", [padding.random_batches(LENGTHS, 32), padding.bucketed_batches(LENGTHS, 32, pool=4, seed=1)]
)
def test_padded_tokens_are_the_area_of_the_batch_rectangles(batches):
    cost = padding.padding_cost(LENGTHS, batches)
    computed, zeros = by_hand(LENGTHS, batches)
    assert (cost.padded_tokens, cost.tokens, cost.batches) == (computed, sum(LENGTHS), 19)
    assert cost.padding_frac == pytest.approx(zeros / computed)
    assert cost.largest_tokens == max(len(batch) * max(LENGTHS[each] for each in batch) for batch in batches)


def test_every_text_is_in_one_batch_whatever_the_order():
    for batches in (padding.random_batches(LENGTHS, 32, seed=5), padding.bucketed_batches(LENGTHS, 32, seed=5)):
        assert sorted(itertools.chain(*batches)) == list(range(len(LENGTHS)))
        assert max(map(len, batches)) == 32


def test_buckets_pad_less_and_larger_pools_less_still():
    shares = [
        padding.padding_cost(LENGTHS, batches).padding_frac
        for batches in (
            padding.random_batches(LENGTHS, 32),
            *(padding.bucketed_batches(LENGTHS, 32, pool) for pool in (2, 19)),
        )
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 2 * shares[-1]


def test_seeds_decide_the_order():
    assert padding.random_batches(LENGTHS, 32, seed=1) == padding.random_batches(LENGTHS, 32, seed=1)
    assert padding.bucketed_batches(LENGTHS, 32, seed=1) != padding.bucketed_batches(LENGTHS, 32, seed=2)


def test_equal_lengths_need_no_padding():
    assert padding.padding_cost([7] * 10, padding.random_batches([7] * 10, 4)).padding_frac == 0
    assert padding.padding_cost([7, 5], [[], [0], [1]]).batches == 3, "an empty batch counts, without tokens"


# Noise.


def test_gradients_of_each_are_those_of_single_samples():
    torch.manual_seed(0)
    model, rows, labels = nn.Linear(5, 3), torch.rand(6, 5), torch.randint(3, (6,))
    gradients = gradient_noise.per_sample_gradients(model, rows, labels)
    for gradient, row, label in zip(gradients, rows, labels, strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(row[None]), label[None]).backward()
        torch.testing.assert_close(gradient, torch.cat([one.grad.flatten() for one in model.parameters()]))


def test_the_noise_scale_of_gradients_that_are_known():
    torch.manual_seed(0)
    truth = torch.full((50,), 0.2)  # of squared length 2
    gradients = truth + 3 * torch.randn(40_000, 50)  # of variance 450 in all
    assert gradient_noise.noise_scale(gradients) == pytest.approx(450 / 2, rel=0.05)


def test_equal_gradients_have_zero_noise_and_opposite_gradients_infinite_noise():
    assert gradient_noise.noise_scale(torch.ones(8, 3)) == 0
    assert math.isinf(gradient_noise.noise_scale(torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])))


def test_a_training_does_as_many_updates_as_its_batches_say():
    data = synthetic.table(600, 8)
    grown, halved, steady = (
        gradient_noise.train_small_classifier(data, adapt=answer, epochs=3) for answer in ("batch", "rate", "none")
    )
    for result in (grown, halved, steady):
        assert result.updates == sum(math.ceil(600 / size) for size in result.batches)
        assert (result.samples, len(result.noise_scales)) == (1800, 3)
    assert halved.batches == steady.batches == (16, 16, 16)
    for (size, noise_scale), following in zip(
        zip(grown.batches, grown.noise_scales, strict=True), grown.batches[1:], strict=False
    ):
        assert following == (2 * size if noise_scale >= 2 * size else size)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_growing_the_batch_ends_where_halving_the_rate_does(seed):
    data = synthetic.table(2048, 32, seed)
    grown, halved = (
        gradient_noise.train_small_classifier(data, adapt=answer, seed=seed) for answer in ("batch", "rate")
    )
    assert grown.loss == pytest.approx(halved.loss, rel=0.05)
    assert grown.updates <= halved.updates / 2


# Runs.


def test_throughput_comes_from_steps_and_kernels_of_a_run():
    with gpulab.virtual_gpu("h100", "batching") as gpu:
        left, right = torch.ones(4096, 4096, device="cuda"), torch.ones(4096, 4096, device="cuda")
        for _ in range(9):
            left @ right
            gpulab.step()
    loop = throughput.step_throughput(gpu.run, 10)
    products = gpu.run.events[lambda events: events["kind"] == "kernel"].tail(9)
    assert loop.kernels == 1
    assert loop.mean_kernel_ns == pytest.approx(products["dur_ns"].median())
    assert loop.per_s == pytest.approx(10 * 1e9 / loop.step_ns)
    assert 0.9 < loop.busy_frac <= 1
    assert loop.filled_frac == 1
    table = throughput.throughput_table({"products": loop}, MiB=["64"])
    assert table.loc["products", ["kernels per step", "filled", "MiB"]].tolist() == ["1", "100 %", "64"]


def test_a_run_without_kernels_is_refused():
    with gpulab.virtual_gpu("h100", "nothing") as gpu:
        pass
    with pytest.raises(RunError, match=gpu.run.name):
        throughput.step_throughput(gpu.run)


def test_the_fastest_call_counts_after_one_that_warms_up():
    calls = []
    assert throughput.fastest_cpu_s(lambda: calls.append(sum(range(1000))), repeats=4) >= 0
    assert len(calls) == 5
