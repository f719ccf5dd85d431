"""The transformers whose times were measured, written out as their eager implementations compute.

What matters for time is which passes over memory they make: attention in parts (product, division, mask, softmax,
dropout, product), GPT-2's GELU as seven elementwise operators, OPT's scaled queries and clamped scores. Only the
sizes, the order of operators and the layouts count; nothing here is meant to learn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gpulab.hardware.lookup import resolve
from gpulab.virtual.device.fake_device import FakeDevice
from gpulab.virtual.memory_fit.memory_peaks import SimulatedMemory
from gpulab.virtual.op_log.ops import Op, Record

BOUNDLESS = 10**15  # bytes: nothing is refused for want of memory


@dataclass(frozen=True)
class Model:
    """One transformer's sizes."""

    family: str  # gpt2, bert or opt: how its blocks compute
    layers: int
    width: int
    heads: int
    words: int
    hidden: int


MODELS = {
    "bert_large": Model("bert", 24, 1024, 16, 30522, 4096),
    "gpt2_large": Model("gpt2", 36, 1280, 20, 50257, 5120),
    "opt_13": Model("opt", 24, 2048, 32, 50272, 8192),
    "gpt3_xl": Model("gpt2", 24, 3072, 24, 50257, 12288),
    "gpt3_27": Model("gpt2", 32, 2560, 32, 50257, 10240),
}
DROPPED = {"gpt2": 0.1, "bert": 0.1, "opt": 0.0}  # of attention's weights


def heads_apart(x: Tensor, heads: int) -> Tensor:
    """(batch, length, width) to (batch, heads, length, part of the width)."""
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


class Block(nn.Module):
    """Attention and two linear layers around an activation."""

    def __init__(self, sizes: Model) -> None:
        super().__init__()
        width = sizes.width
        self.sizes = sizes
        joint = sizes.family == "gpt2"
        self.inward = nn.ModuleList(nn.Linear(width, 3 * width if joint else width) for _ in range(1 if joint else 3))
        self.outward = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, sizes.hidden), nn.Linear(sizes.hidden, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """BERT normalises after each part, the others before."""
        if self.sizes.family == "bert":
            x = self.first(x + self._dropped(self._attention(x, mask)))
            normal: Tensor = self.second(x + self._dropped(self.narrow(F.gelu(self.wide(x)))))
            return normal
        x = x + self._dropped(self._attention(self.first(x), mask))
        grown = self.wide(self.second(x))
        grown = F.relu(grown) if self.sizes.family == "opt" else tanh_gelu(grown)
        return x + self._dropped(self.narrow(grown))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.1, self.training)

    def _attention(self, x: Tensor, mask: Tensor) -> Tensor:
        sizes, (batch, length, width) = self.sizes, x.shape
        parts = self.inward[0](x).split(width, dim=2) if len(self.inward) == 1 else [each(x) for each in self.inward]
        queries, keys, values = (heads_apart(each, sizes.heads) for each in parts)
        if sizes.family == "opt":
            scores = self._opt_scores(queries * 0.125, keys, mask)
        else:
            scores = torch.matmul(queries, keys.transpose(-1, -2)) / torch.full((), 8.0, device=x.device)
            hidden = torch.full((), -3e38, device=x.device)
            scores = torch.where(mask, scores, hidden) if sizes.family == "gpt2" else scores + mask
        weights = F.dropout(F.softmax(scores, dim=-1), DROPPED[sizes.family], self.training)
        mixed = torch.matmul(weights, values.contiguous() if sizes.family == "opt" else values)
        out: Tensor = self.outward(mixed.transpose(1, 2).reshape(batch, length, width))
        return out

    def _opt_scores(self, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        scores = torch.matmul(queries.contiguous(), keys.contiguous().transpose(-1, -2)) + mask
        return torch.max(scores, torch.full((), -3e38, device=scores.device))


def tanh_gelu(x: Tensor) -> Tensor:
    """GELU by tanh, one operator after the other."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Transformer(nn.Module):
    """Embeddings, blocks, and a score for each word at each place; of BERT, two classes for each text.

    The measured BERT is a classifier in inference; in training it is BertForPreTraining, whose scores of words come
    from another dense layer (AutoModelForSequenceClassification and AutoModelForPreTraining in NeuSight's trace.py).
    """

    def __init__(self, sizes: Model, length: int, *, pretrains: bool) -> None:
        super().__init__()
        self.sizes = sizes
        self.words, self.places = nn.Embedding(sizes.words, sizes.width), nn.Embedding(length, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.last = nn.LayerNorm(sizes.width)
        is_bert = sizes.family == "bert"
        classes = nn.Linear(sizes.width, 2) if is_bert else None
        self.classes, self.turn = classes, nn.Linear(sizes.width, sizes.width) if is_bert else None
        words_too = not is_bert or pretrains
        self.scores = nn.Linear(sizes.width, sizes.words, bias=is_bert) if words_too else None
        dense = nn.Linear(sizes.width, sizes.width), nn.GELU(), nn.LayerNorm(sizes.width)
        self.before_scores = nn.Sequential(*dense) if is_bert and pretrains else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of words, or of classes."""
        batch, length = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        if self.turn is not None:
            x = self.last(x)
        x = F.dropout(x, 0.1, self.training)
        mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=x.device)
        if self.sizes.family != "gpt2":
            mask = torch.zeros(batch, 1, 1 if self.sizes.family == "bert" else length, length, device=x.device)
        for block in self.blocks:
            x = block(x, mask)
        outputs: list[Tensor] = []
        if self.turn is not None and self.classes is not None:
            outputs.append(self.classes(torch.tanh(self.turn(x[:, 0]))))
        else:
            x = self.last(x)
        if self.scores is not None:
            outputs.append(self.scores(self.before_scores(x)))
        return outputs[-1]


class StoppedClock:
    """A clock that stands still: operators are counted, not timed."""

    now_ns = 0

    def event_done_ns(self, event: int) -> int | None:
        """Every event is done at once."""
        return 0


def operators(sizes: Model, length: int, batch: int, mode: str) -> list[Op]:
    """What one measured iteration runs on a virtual GPU: "inf" is forward, "train" adds backward; no optimizer.

    As measured: gradients of earlier iterations are there and are added to, and the loss itself is not timed.
    """
    noted: list[Record] = []
    timed: list[Record] = []
    with FakeDevice(resolve("a100"), noted.append, SimulatedMemory(BOUNDLESS), StoppedClock()):
        with torch.device("cuda"):
            model = Transformer(sizes, length, pretrains=mode == "train").train(mode == "train")
        tokens = torch.zeros(batch, length, dtype=torch.long, device="cuda")
        if mode == "train":
            for _ in range(2):
                noted.clear()  # what put the model there, and the first iteration
                scores = model(tokens)
                timed = list(noted)
                loss = F.cross_entropy(scores.view(-1, scores.shape[-1]), tokens.view(-1))
                noted.clear()
                loss.backward()
                timed += noted
        else:
            noted.clear()
            with torch.no_grad():
                model(tokens)
            timed = list(noted)
    return [each for each in timed if isinstance(each, Op)]


def counted(name: str, length: int, batch: int, mode: str) -> tuple[list[Op], list[Op], int]:
    """The operators of one layer and of none, and how many layers there are: layers are all alike."""
    sizes = MODELS[name]
    two, three = (operators(replace(sizes, layers=layers), length, batch, mode) for layers in (2, 3))
    return two, three, sizes.layers
