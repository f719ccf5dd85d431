"""A small transformer that generates tokens; its attention is a function that the notebook gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

VOCABULARY, MAX_TOKENS = 64, 256
# query, key and value of the layer's new tokens (batch, heads, tokens, head size), and the cache of this layer
Attend = Callable[["Tensor", "Tensor", "Tensor", dict[str, "Tensor"]], "Tensor"]


def make_decoder(width: int = 64, heads: int = 4, depth: int = 2) -> nn.Module:
    """Return a decoder with fixed random weights; call it with tokens, attend, caches and the place of the first."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.projection, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Tensor, attend: Attend, cache: dict[str, Tensor]) -> Tensor:
            batch, count, _ = x.shape
            parts = self.projection(self.first_norm(x)).view(batch, count, 3, heads, -1).permute(2, 0, 3, 1, 4)
            query, key, value = parts.unbind(0)
            attended = attend(query, key, value, cache).transpose(1, 2).reshape(batch, count, width)
            x = x + self.out(attended)
            result: Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.second_norm(x))))
            return result

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(MAX_TOKENS, width)
            self.blocks = nn.ModuleList(Block() for _ in range(depth))
            self.head = nn.Linear(width, VOCABULARY)

        def forward(self, tokens: Tensor, attend: Attend, caches: list[dict[str, Tensor]], first: int = 0) -> Tensor:
            x = self.tokens(tokens) + self.places(torch.arange(first, first + tokens.shape[1]))
            for block, cache in zip(self.blocks, caches, strict=True):
                x = block(x, attend, cache)
            logits: Tensor = self.head(x)
            return logits

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return Decoder().eval()


def empty_caches(decoder: Any) -> list[dict[str, Tensor]]:
    """Return an empty cache for each layer."""
    return [{} for _ in decoder.blocks]


def generate_again(decoder: Any, prompt: list[int], count: int, attend: Attend) -> list[int]:
    """Generate tokens without a cache: run the whole sequence for each new one."""
    import torch

    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            logits = decoder(torch.tensor([tokens]), attend, empty_caches(decoder))
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def generate_cached(decoder: Any, prompt: list[int], count: int, attend: Attend) -> list[int]:
    """Generate tokens with a cache: run each token of the sequence once."""
    import torch

    tokens, caches = list(prompt), empty_caches(decoder)
    with torch.no_grad():
        for place in range(len(prompt) + count - 1):
            logits = decoder(torch.tensor([[tokens[place]]]), attend, caches, place)
            if place >= len(prompt) - 1:
                tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]
