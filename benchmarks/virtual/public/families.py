"""Model families of Transformers with small sizes: no weights are downloaded, and a step takes under a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TOKENS, BATCH, LENGTH, IMAGE_SIZE, CLASSES = 128, 2, 16, 64, 4
SMALL = {
    "vocab_size": TOKENS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {**GROUPED, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SEQ2SEQ = {
    "vocab_size": TOKENS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 16,
    "image_size": IMAGE_SIZE, "num_channels": 3, "num_labels": CLASSES,
}  # fmt: skip
AUDIO = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "mask_time_length": 2, "num_labels": CLASSES,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """One model family: the classes in Transformers, the sizes, the inputs of a training step."""

    model: str  # class name in transformers
    config: str
    inputs: Callable[[Any], dict[str, Any]]  # torch -> CPU tensors
    sizes: dict[str, Any] = field(default_factory=dict)
    generates: bool = False
    autocast: bool = False  # train in bfloat16 under autocast


def text(torch: Any) -> dict[str, Any]:
    """Tokens with an attention mask; the labels are the tokens."""
    tokens = torch.randint(3, TOKENS, (BATCH, LENGTH))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


def padded_text(torch: Any) -> dict[str, Any]:
    """Tokens of which the last are padding."""
    inputs = text(torch)
    inputs["input_ids"][1, -4:] = 0
    inputs["attention_mask"][1, -4:] = 0
    return inputs


def text_without_mask(torch: Any) -> dict[str, Any]:
    """Tokens and labels."""
    tokens = torch.randint(3, TOKENS, (BATCH, LENGTH))
    return {"input_ids": tokens, "labels": tokens.clone()}


def classified_text(torch: Any) -> dict[str, Any]:
    """Tokens and one class for each sequence."""
    tokens = torch.randint(3, TOKENS, (BATCH, LENGTH))
    return {
        "input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.randint(0, CLASSES, (BATCH,))
    }  # fmt: skip


def images(torch: Any) -> dict[str, Any]:
    """Images and their classes."""
    pixels = torch.randn(BATCH, 3, IMAGE_SIZE, IMAGE_SIZE)
    return {"pixel_values": pixels, "labels": torch.randint(0, CLASSES, (BATCH,))}


def segmented_images(torch: Any) -> dict[str, Any]:
    """Images with a class for each pixel."""
    labels = torch.randint(0, CLASSES, (BATCH, IMAGE_SIZE, IMAGE_SIZE))
    return {"pixel_values": torch.randn(BATCH, 3, IMAGE_SIZE, IMAGE_SIZE), "labels": labels}


def masked_images(torch: Any) -> dict[str, Any]:
    """Images alone: the model masks patches itself and restores them."""
    return {"pixel_values": torch.randn(BATCH, 3, IMAGE_SIZE, IMAGE_SIZE)}


def speech(torch: Any) -> dict[str, Any]:
    """Waveforms with tokens for CTC."""
    return {"input_values": torch.randn(BATCH, 2000), "labels": torch.randint(1, 32, (BATCH, 5))}


def spectrograms(torch: Any) -> dict[str, Any]:
    """Mel spectrograms and the tokens that a speech model writes."""
    return {"input_features": torch.randn(BATCH, 16, 64), "labels": torch.randint(3, TOKENS, (BATCH, LENGTH))}


def audio_classes(torch: Any) -> dict[str, Any]:
    """Spectrograms and their classes."""
    return {"input_values": torch.randn(BATCH, 64, 16), "labels": torch.randint(0, CLASSES, (BATCH,))}


def text_and_images(torch: Any) -> dict[str, Any]:
    """Pairs of text and image for contrastive training."""
    tokens = torch.randint(3, TOKENS - 1, (BATCH, LENGTH))
    tokens[:, -1] = 2
    pixels = torch.randn(BATCH, 3, IMAGE_SIZE, IMAGE_SIZE)
    return {"input_ids": tokens, "pixel_values": pixels, "attention_mask": torch.ones_like(tokens), "return_loss": True}


def images_in_text(torch: Any) -> dict[str, Any]:
    """Text in which placeholder tokens stand for the patches of an image."""
    tokens = torch.randint(3, TOKENS - 2, (BATCH, 24))
    tokens[:, 1:17] = TOKENS - 1
    pixels = torch.randn(BATCH, 3, IMAGE_SIZE, IMAGE_SIZE)
    return {
        "input_ids": tokens, "pixel_values": pixels, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()
    }  # fmt: skip


def series(torch: Any) -> dict[str, Any]:
    """Time series: what was measured, and what follows."""
    return {"past_values": torch.randn(BATCH, 32, 2), "future_values": torch.randn(BATCH, 8, 2)}


def decoder(prefix: str, sizes: dict[str, Any] | None = None, *, head: str = "ForCausalLM", **changes: Any) -> Family:
    """A decoder that writes text."""
    options = {name: changes.pop(name) for name in ("inputs", "generates", "autocast") if name in changes}
    merged = {**(GROUPED if sizes is None else sizes), **changes}
    return Family(f"{prefix}{head}", f"{prefix}Config", **{"inputs": text, "generates": True, **options}, sizes=merged)


def seq2seq(prefix: str, **changes: Any) -> Family:
    """An encoder and a decoder."""
    name = f"{prefix}ForConditionalGeneration"
    return Family(name, f"{prefix}Config", text, {**SEQ2SEQ, **changes}, generates=True)


def encoder(prefix: str, head: str = "ForMaskedLM", inputs: Any = text, **changes: Any) -> Family:
    """An encoder of text."""
    return Family(f"{prefix}{head}", f"{prefix}Config", inputs, {**SMALL, **changes})


def vision(prefix: str, head: str = "ForImageClassification", inputs: Any = images, **changes: Any) -> Family:
    """A model of images."""
    return Family(f"{prefix}{head}", f"{prefix}Config", inputs, {**VISION, **changes})
