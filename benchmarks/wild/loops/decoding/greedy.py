"""Greedy generation that runs the whole sequence again for every new token, as in first GPT tutorials."""

import logging

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A small GPT-2 and prompts of 32 tokens."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    config = GPT2Config(vocab_size=4000, n_positions=256, n_embd=128, n_layer=4, n_head=4)
    prompts = torch.randint(0, 4000, (4, 32))
    return {"model": GPT2LMHeadModel(config), "prompts": prompts, "batches": scaled(4, scale)}


CELL = """
import torch
import torch.nn.functional as F

device = 'cuda' if torch.cuda.is_available() else 'cpu'
model = model.to(device).eval()

@torch.no_grad()
def generate(model, idx, max_new_tokens, temperature=1.0, top_k=None):
    for _ in range(max_new_tokens):
        idx_cond = idx if idx.size(1) <= 256 else idx[:, -256:]
        logits = model(idx_cond).logits
        logits = logits[:, -1, :] / temperature
        if top_k is not None:
            v, _ = torch.topk(logits, top_k)
            logits[logits < v[:, [-1]]] = -float('Inf')
        probs = F.softmax(logits, dim=-1)
        idx_next = torch.argmax(probs, dim=-1, keepdim=True)
        idx = torch.cat((idx, idx_next), dim=1)
    return idx

new_tokens, texts = 0, []
for k in range(batches):
    out = generate(model, prompts.to(device), max_new_tokens=96, top_k=50)
    new_tokens += out[:, 32:].numel()
    for row in out.tolist():
        texts.append(' '.join(str(t) for t in row))
        print(texts[-1][:80])
"""

CHANGES = (
    Change(
        "key-value cache",
        "kv_cache",
        edits={
            "    for _ in range(max_new_tokens):\n        idx_cond = idx if idx.size(1) <= 256 else idx[:, -256:]\n"
            "        logits = model(idx_cond).logits\n": "    past, idx_cond = None, idx\n"
            "    for _ in range(max_new_tokens):\n"
            "        out = model(idx_cond, past_key_values=past, use_cache=True)\n"
            "        logits, past = out.logits, out.past_key_values\n",
            "        idx = torch.cat((idx, idx_next), dim=1)\n": "        idx, idx_cond = torch.cat((idx, idx_next), dim=1), "
            "idx_next\n",
        },
    ),
    Change(
        "logits of the last position only",
        "other",
        edits={"model(idx_cond).logits": "model(idx_cond, use_cache=False, logits_to_keep=1).logits"},
    ),
    Change("bf16", "precision", edits={"model.to(device).eval()": "model.to(device, dtype=torch.bfloat16).eval()"}),
    Change(
        "one thread",
        "threads",
        edits={"new_tokens, texts = 0, []": "new_tokens, texts = 0, []\ntorch.set_num_threads(1)"},
    ),
    Change("no top-k filter", "other", edits={"max_new_tokens=96, top_k=50": "max_new_tokens=96, top_k=None"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="new_tokens", loss="out.float().mean().item()", seconds=5)
