"""Lesson 10: the counter of live bytes, 8-bit Adam, the pipeline, the budget, and two ranks."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint_sequential  # noqa: E402

from gpulab import GpulabError  # noqa: E402
from gpulab.lessons.labs.memory import eight_bit, pipeline, saver_budget, sharded_training  # noqa: E402
from gpulab.lessons.labs.memory.live_bytes import MIB, count_live_bytes  # noqa: E402


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_live_bytes_count_each_storage_once_until_it_is_freed(device):
    with count_live_bytes() as live:
        one = torch.ones(MIB // 4, device=device)
        view = one[: MIB // 8]
        two = one + 1
        assert live.bytes == 2 * MIB
        del one
        assert live.bytes == 2 * MIB  # the view keeps its storage
        del view
        assert live.bytes == MIB
        two.add_(1)
        assert live.bytes == MIB
        del two
    gc.collect()
    assert (live.bytes, live.peak_bytes) == (0, 2 * MIB)


def test_the_peak_of_a_chain_is_that_of_its_saved_tensors():
    layers = torch.nn.Sequential(*[torch.nn.GELU() for _ in range(10)])
    with count_live_bytes() as live:
        x = torch.zeros(MIB // 4, requires_grad=True)
        layers(x).sum().backward()
    assert live.peak_bytes == pytest.approx(11 * MIB, abs=0.01 * MIB)  # x and ten results; then each one is freed


@pytest.mark.parametrize("segments", [2, 4, 8])
def test_checkpointing_on_meta_counts_as_on_the_cpu(segments):
    peaks = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            layers = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(16)])
            x = torch.randn(64, 32, requires_grad=True)
            with count_live_bytes() as live:
                checkpoint_sequential(layers, segments, x, use_reentrant=False).sum().backward()
        peaks.append(live.peak_bytes)
    assert peaks[0] == peaks[1]


def test_block_adam_without_quantising_is_adam():
    results = []
    for make in (torch.optim.Adam, eight_bit.BlockAdam):
        torch.manual_seed(0)
        layer = torch.nn.Linear(8, 5)
        optimizer = make(layer.parameters(), lr=0.01)
        for _ in range(20):
            loss = layer(torch.ones(3, 8)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results.append(layer.weight.detach().clone())
    assert torch.allclose(*results, atol=1e-6)


def test_the_state_of_block_adam_is_what_the_quantising_function_returns():
    layer = torch.nn.Linear(64, 1, bias=False)
    optimizer = eight_bit.BlockAdam(
        layer.parameters(),
        0.01,
        lambda blocks: (blocks.to(torch.int8), torch.ones(len(blocks), 1)),
        lambda values, scale: values * scale,
    )
    layer(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    assert optimizer.state_bytes == 2 * (64 + 4)


@pytest.mark.parametrize("devices", [1, 2, 5])
@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_a_pipeline_is_idle_while_it_fills_and_drains(devices, micro_batches):
    expected = (devices - 1) / (micro_batches + devices - 1)
    assert pipeline.idle_frac(devices, micro_batches) == pytest.approx(expected)


@pytest.mark.full
def test_every_saver_lowers_the_peak_and_only_checkpointing_costs_arithmetic():
    plain = saver_budget.try_savers([])
    assert plain.cost == 100
    assert not plain.fits
    for name in saver_budget.SAVERS:
        outcome = saver_budget.try_savers([name])
        assert outcome.peak_bytes < plain.peak_bytes, name
        assert (outcome.cost > 100) == (name == "checkpoint"), name


def test_an_unknown_saver_is_an_error():
    with pytest.raises(GpulabError, match="no memory saver"):
        saver_budget.try_savers(["magic"])


@pytest.mark.night
def test_two_ranks_store_what_the_strategies_divide():
    stored, parameters = sharded_training.stored_by_strategy(), sharded_training.weight_count()
    assert [each.optimizer for each in stored["DDP"]] == [8 * parameters] * 2
    assert sum(each.optimizer for each in stored["ZeRO-1"]) == 8 * parameters
    assert [each.total for each in stored["FSDP"]] == [8 * parameters] * 2
