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

    def step(
        self, word: Tensor, image: Tensor, h: Tensor, c: Tensor, projected: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log probabilities of the next word and the new state."""
        keys = self.attend_image(image) if projected is None else projected
        weights = self.score(torch.tanh(keys + self.attend_state(h)[:, None])).softmax(1)
        h, c = self.cell(torch.cat([self.embedding(word), (weights * image).sum(1)], 1), (h, c))
        return self.fc(h).log_softmax(1), h, c


def prepare(scale: float) -> Namespace:
    """Encoded images of 49 regions."""
    return {"decoder": Decoder(2000).eval(), "encoded": torch.randn(scaled(160, scale), 49, 128)}


CELL = """
import torch
import torch.nn.functional as F

BEAM, MAX_LEN, START, END = 5, 20, 1, 2

def caption(image):
    image = image.unsqueeze(0)
    zeros = torch.zeros(1, image.shape[2], dtype=image.dtype)
    beams, finished = [([START], 0.0, zeros, zeros)], []
    for _ in range(MAX_LEN):
        candidates = []
        for words, score, h, c in beams:
            log_probs, h2, c2 = decoder.step(torch.tensor([words[-1]]), image, h, c)
            top_scores, top_words = log_probs[0].topk(BEAM)
            for s, w in zip(top_scores, top_words):
                candidates.append((words + [w.item()], score + s.item(), h2, c2))
        candidates = sorted(candidates, key=lambda x: x[1], reverse=True)
        beams = []
        for candidate in candidates:
            if candidate[0][-1] == END:
                finished.append(candidate)
            elif len(beams) < BEAM:
                beams.append(candidate)
    best = max(finished + beams, key=lambda x: x[1] / len(x[0]))
    return best[0], best[1]

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
        "all beams in one batch",
        "batch_whole",
        edits={
            """        for words, score, h, c in beams:
            log_probs, h2, c2 = decoder.step(torch.tensor([words[-1]]), image, h, c)
            top_scores, top_words = log_probs[0].topk(BEAM)
            for s, w in zip(top_scores, top_words):
                candidates.append((words + [w.item()], score + s.item(), h2, c2))
""": """        last = torch.tensor([words[-1] for words, _, _, _ in beams])
        hs, cs = torch.cat([b[2] for b in beams]), torch.cat([b[3] for b in beams])
        log_probs, hs, cs = decoder.step(last, image, hs, cs)
        tops = [t.tolist() for t in log_probs.topk(BEAM)]
        for (words, score, _, _), scores, ids, h2, c2 in zip(beams, *tops, hs.split(1), cs.split(1)):
            candidates += [(words + [w], score + s, h2, c2) for s, w in zip(scores, ids)]
"""
        },
    ),
    Change(
        "values as lists",
        "remove_syncs",
        edits={
            "zip(top_scores, top_words)": "zip(top_scores.tolist(), top_words.tolist())",
            "words + [w.item()], score + s.item()": "words + [w], score + s",
        },
    ),
    Change(
        "project the image once",
        "cache_items",
        edits={
            "    beams, finished = ": "    projected = decoder.attend_image(image)\n    beams, finished = ",
            "torch.tensor([words[-1]]), image, h, c)": "torch.tensor([words[-1]]), image, h, c, projected)",
        },
    ),
    Change(
        "bf16 decoder",
        "precision",
        edits={
            "captions, total_score = [], 0\n": "captions, total_score = [], 0\n"
            "decoder.bfloat16()\nencoded = encoded.bfloat16()\n",
        },
    ),
    Change(
        "one thread",
        "threads",
        edits={"captions, total_score = [], 0\n": "captions, total_score = [], 0\ntorch.set_num_threads(1)\n"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="len(captions)", loss="total_score", seconds=6)
