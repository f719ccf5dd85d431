"""Lesson 14: reasons of the flash kernel, saved tensors by shape, and generation with a cache."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from gpulab.lessons.labs.kernels.attention import backends, decoder, saved  # noqa: E402


def qkv(*shape: int) -> list[torch.Tensor]:
    return [torch.randn(*shape) for _ in range(3)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"is_causal": True}, None), ({"dropout_p": 0.5}, "dropout"), ({"attn_mask": torch.zeros(8, 8)}, None)],
    ids=["causal", "dropout", "mask"],
)
def test_the_verdict_is_that_of_pytorch(options, reason):
    tensors = qkv(1, 2, 8, 16)
    verdict = backends.flash_verdict(lambda: functional.scaled_dot_product_attention(*tensors, **options))
    assert verdict.runs is (torch._fused_sdp_choice(*tensors, **options) == 1)
    assert verdict.runs is (reason is None)
    assert reason is None or any(reason in each for each in verdict.reasons)


def test_an_error_that_is_no_refusal_is_raised():
    with pytest.raises(RuntimeError, match="size"):
        backends.flash_verdict(lambda: torch.ones(2) @ torch.ones(3))


def test_saved_tensors_are_summed_by_shape():
    layers = torch.nn.Sequential(*[torch.nn.GELU() for _ in range(3)])
    by_shape = saved.saved_by_shape(lambda: layers(torch.ones(4, 8, requires_grad=True)), layers)
    assert by_shape == {(4, 8): 3 * 4 * 8 * 4}


def causal(query, key, value, cache):
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def cached(query, key, value, cache):
    cache["key"] = torch.cat([cache["key"], key], dim=2) if "key" in cache else key
    cache["value"] = torch.cat([cache["value"], value], dim=2) if "value" in cache else value
    return functional.scaled_dot_product_attention(query, cache["key"], cache["value"])


def test_a_cache_changes_no_token_and_a_missing_one_does():
    model, prompt = decoder.make_decoder(), [1, 2, 3]
    expected = decoder.generate_again(model, prompt, 12, causal)
    assert len(expected) == 12
    assert decoder.generate_cached(model, prompt, 12, cached) == expected
    assert decoder.generate_cached(model, prompt, 12, causal) != expected  # attends to itself only


def test_a_cache_gives_the_logits_of_the_whole_sequence():
    model, tokens = decoder.make_decoder(), torch.tensor([[5, 7, 11, 13]])
    caches = decoder.empty_caches(model)
    with torch.no_grad():
        whole = model(tokens, causal, decoder.empty_caches(model))
        single = [model(tokens[:, place : place + 1], cached, caches, place) for place in range(4)]
    assert torch.allclose(whole, torch.cat(single, dim=1), atol=1e-5)
