"""Beam search of an LSTM decoder with attention, beam by beam in Python, as in image captioning repositories."""

import torch
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class Decoder(nn.Module):
    """An LSTM cell with additive attention over an encoded image."""

    def __init__(self, vocabulary: int, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.attend_image, self.attend_state = nn.Linear(width, width), nn.Linear(width, width)
        self.score = nn.Linear(width, 1)
        self.cell = nn.LSTMCell(2 * width, width)
        self.fc = nn.Linear(width, vocabulary)

    def step(self, word: Tensor, image: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log probabilities of the next word and the new state."""
        weights = self.score(torch.tanh(self.attend_image(image) + self.attend_state(h)[:, None])).softmax(1)
        h, c = self.cell(torch.cat([self.embedding(word), (weights * image).sum(1)], 1), (h, c))
        return self.fc(h).log_softmax(1), h, c


def prepare(scale: float) -> Namespace:
    """Encoded images of 49 regions."""
    return {"decoder": Decoder(2000).eval(), "encoded": torch.randn(scaled(48, scale), 49, 128)}


CELL = """
import torch

BEAM, MAX_LEN, START, END = 5, 20, 1, 2

def caption(image):
    image = image.unsqueeze(0)
    zeros = torch.zeros(1, image.shape[2])
    beams = [([START], 0.0, zeros, zeros)]
    for _ in range(MAX_LEN):
        candidates = []
        for words, score, h, c in beams:
            log_probs, h2, c2 = decoder.step(torch.tensor([words[-1]]), image, h, c)
            for k in range(log_probs.shape[1]):
                if len(candidates) < BEAM or score + log_probs[0, k] > candidates[-1][1]:
                    candidates.append((words + [k], score + log_probs[0, k].item(), h2, c2))
                    candidates = sorted(candidates, key=lambda x: x[1], reverse=True)[:BEAM]
        beams = candidates
    return beams[0][0], beams[0][1]

captions, total_score = [], 0
with torch.no_grad():
    for i in range(len(encoded)):
        words, score = caption(encoded[i])
        captions.append(words)
        total_score += score
        if i % 10 == 0:
            print(i, score, words)
"""

CHANGES = (
    Change(
        "topk instead of a loop over the vocabulary",
        "remove_python",
        edits={
            "            for k in range(log_probs.shape[1]):\n                if len(candidates) < BEAM or score + log_probs[0, k] "
            "> candidates[-1][1]:\n                    candidates.append((words + [k], score + log_probs[0, k].item(), h2, c2))\n"
            "                    candidates = sorted(candidates, key=lambda x: x[1], reverse=True)[:BEAM]\n": ""
            "            top, ids = log_probs[0].topk(BEAM)\n"
            "            candidates += [(words + [k], score + p, h2, c2) for p, k in zip(top.tolist(), ids.tolist())]\n",
            "        beams = candidates\n": "        beams = sorted(candidates, key=lambda x: x[1], reverse=True)[:BEAM]\n",
        },
    ),
    Change(
        "values as a list",
        "remove_syncs",
        edits={
            "            for k in range(log_probs.shape[1]):\n": "            values = log_probs[0].tolist()\n"
            "            for k in range(len(values)):\n",
            "score + log_probs[0, k] > candidates[-1][1]": "score + values[k] > candidates[-1][1]",
            "score + log_probs[0, k].item()": "score + values[k]",
        },
    ),
    Change(
        "all beams in one batch",
        "batch_whole",
        edits={
            """        for words, score, h, c in beams:
            log_probs, h2, c2 = decoder.step(torch.tensor([words[-1]]), image, h, c)
""": """        last = torch.tensor([words[-1] for words, _, _, _ in beams])
        hs, cs = torch.cat([b[2] for b in beams]), torch.cat([b[3] for b in beams])
        together = decoder.step(last, image.expand(len(beams), -1, -1), hs, cs)
        for (words, score, _, _), *rows in zip(beams, *together):
            log_probs, h2, c2 = (row[None] for row in rows)
""",
        },
    ),
    Change(
        "bf16 decoder",
        "precision",
        edits={
            "captions, total_score = [], 0\n": "captions, total_score = [], 0\ndecoder.bfloat16()\nencoded = encoded.bfloat16()\n",
            "zeros = torch.zeros(1, image.shape[2])": "zeros = torch.zeros(1, image.shape[2], dtype=image.dtype)",
        },
    ),
    Change(
        "one thread",
        "threads",
        edits={"captions, total_score = [], 0\n": "captions, total_score = [], 0\ntorch.set_num_threads(1)\n"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="len(captions)", loss="total_score", seconds=6)
