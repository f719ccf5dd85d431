"""Embeddings of a corpus by a small BERT for a search index: no optimizer, sentences padded to the limit, a graph nobody uses."""

import random

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Sentences of very different lengths."""
    words = ["the", "model", "loss", "data", "gradient", "batch", "learning", "network", "memory", "of", "and", "deep"]
    count = scaled(2560, scale, 64)
    return {"corpus": [" ".join(random.choices(words, k=int(4 + 50 * random.random() ** 3))) for _ in range(count)]}


CELL = """
import numpy as np
import torch
from transformers import BertConfig, BertModel

MAX_LEN = 64
vocab = {w: i + 3 for i, w in enumerate(sorted({w for s in corpus for w in s.split()}))}

def encode(batch):
    ids = torch.zeros(len(batch), MAX_LEN, dtype=torch.long)
    mask = torch.zeros(len(batch), MAX_LEN, dtype=torch.long)
    for row, sentence in enumerate(batch):
        tokens = [1] + [vocab[w] for w in sentence.split()][:MAX_LEN - 2] + [2]
        ids[row, :len(tokens)] = torch.tensor(tokens)
        mask[row, :len(tokens)] = 1
    return ids, mask

config = BertConfig(vocab_size=len(vocab) + 3, hidden_size=192, num_hidden_layers=4, num_attention_heads=4,
                    intermediate_size=768, attn_implementation='eager')
model = BertModel(config)
model.eval()

batch_size = 16
embeddings = []
for start in range(0, len(corpus), batch_size):
    batch = corpus[start:start + batch_size]
    input_ids, attention_mask = encode(batch)
    output = model(input_ids=input_ids, attention_mask=attention_mask)
    hidden = output.last_hidden_state
    for i in range(len(batch)):
        vec = hidden[i][attention_mask[i].bool()].mean(dim=0)
        vec = vec / vec.norm()
        embeddings.append(vec.detach().cpu().numpy().tolist())
    if (start // batch_size) % 10 == 0:
        print(f'{start + len(batch)}/{len(corpus)} sentences')
index = np.array(embeddings, dtype=np.float32)
np.save('index.npy', index)
similarity = index[:100] @ index.T
print('mean similarity', similarity.mean())
"""

CHANGES = (
    Change(
        "inference mode",
        "no_grad",
        edits={
            "    output = model(input_ids=input_ids, attention_mask=attention_mask)\n": "    with torch.inference_mode():\n        output = model(input_ids=input_ids, attention_mask=attention_mask)\n"
        },
    ),
    Change(
        "sort by length, cut the padding",
        "padding",
        edits={
            "embeddings = []\n": "embeddings = []\ncorpus = sorted(corpus, key=lambda s: len(s.split()))\n",
            "    output = model(": "    longest = int(attention_mask.sum(1).max())\n    input_ids, attention_mask = input_ids[:, :longest], attention_mask[:, :longest]\n    output = model(",
        },
    ),
    Change("batches of 64", "larger_batch", edits={"batch_size = 16": "batch_size = 64"}),
    Change(
        "pool the whole batch",
        "remove_python",
        edits={
            """    for i in range(len(batch)):
        vec = hidden[i][attention_mask[i].bool()].mean(dim=0)
        vec = vec / vec.norm()
        embeddings.append(vec.detach().cpu().numpy().tolist())
""": """    weights = attention_mask.unsqueeze(-1).float()
    vecs = (hidden * weights).sum(1) / weights.sum(1)
    embeddings.extend((vecs / vecs.norm(dim=1, keepdim=True)).detach().cpu().numpy())
"""
        },
    ),
    Change("scaled dot product attention", "sdpa", edits={"attn_implementation='eager'": "attn_implementation='sdpa'"}),
    Change(
        "bfloat16 weights",
        "precision",
        edits={
            "model.eval()": "model.eval().bfloat16()",
            "hidden = output.last_hidden_state": "hidden = output.last_hidden_state.float()",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="len(index)", loss="float(similarity.mean())", seconds=6)
