"""LoRA written by hand around a transformers BERT; only the optimizer knows which weights are trained, as in LoRA blog posts."""

import numpy as np
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Tokenized reviews and a small BERT."""
    rng = np.random.default_rng(0)
    reviews = [
        {"input_ids": [101, *rng.integers(110, 8000, rng.integers(40, 63)).tolist(), 102], "label": int(label)}
        for label in rng.integers(0, 2, scaled(640, scale, 32))
    ]
    config = BertConfig(
        vocab_size=8000, hidden_size=192, num_hidden_layers=4, num_attention_heads=6, intermediate_size=768
    )
    return {"reviews": reviews, "model": BertForSequenceClassification(config)}


CELL = """
import math
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from transformers import get_cosine_schedule_with_warmup

BATCH_SIZE, EPOCHS, RANK, ALPHA = 16, 1, 8, 16
device = 'cuda' if torch.cuda.is_available() else 'cpu'

class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear
        self.lora_A = nn.Parameter(torch.empty(rank, linear.in_features))
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / rank
        self.dropout = nn.Dropout(0.05)

    def forward(self, x):
        return self.linear(x) + self.dropout(x) @ self.lora_A.T @ self.lora_B.T * self.scaling

for layer in model.bert.encoder.layer:
    layer.attention.self.query = LoRALinear(layer.attention.self.query, RANK, ALPHA)
    layer.attention.self.value = LoRALinear(layer.attention.self.value, RANK, ALPHA)

lora_params = [p for n, p in model.named_parameters() if 'lora_' in n or 'classifier' in n]
print(f'trainable params: {sum(p.numel() for p in lora_params):,} / {sum(p.numel() for p in model.parameters()):,}')

def collate(batch):
    max_len = max(len(b['input_ids']) for b in batch)
    input_ids = torch.zeros(len(batch), max_len, dtype=torch.long)
    for i, b in enumerate(batch):
        input_ids[i, :len(b['input_ids'])] = torch.tensor(b['input_ids'])
    return input_ids, (input_ids != 0).long(), torch.tensor([b['label'] for b in batch])

loader = DataLoader(reviews, batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate)
model.to(device)
optimizer = torch.optim.AdamW(lora_params, lr=2e-4, weight_decay=0.01)
scheduler = get_cosine_schedule_with_warmup(optimizer, 5, EPOCHS * len(loader))

n_reviews = 0
for epoch in range(EPOCHS):
    model.train()
    for step, (input_ids, attention_mask, labels) in enumerate(loader):
        input_ids, attention_mask, labels = input_ids.to(device), attention_mask.to(device), labels.to(device)
        out = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
        loss = out.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(lora_params, 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        n_reviews += len(labels)
        if step % 10 == 0:
            acc = (out.logits.argmax(-1) == labels).float().mean()
            print(f'epoch {epoch} step {step}: loss {loss.item():.4f} acc {acc.item():.3f}')
"""

CHANGES = (
    Change(
        "base weights frozen",
        "no_grad",
        edits={
            "lora_params = [": "for n, p in model.named_parameters():\n"
            "    p.requires_grad_('lora_' in n or 'classifier' in n)\nlora_params = ["
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        out = model(": "        with torch.autocast(device, dtype=torch.bfloat16):\n            out = model("
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=0.01)": "weight_decay=0.01, fused=True)"}),
    Change("batches of 32", "larger_batch", edits={"RANK, ALPHA = 16,": "RANK, ALPHA = 32,"}),
    Change("two workers", "num_workers", edits={"collate_fn=collate)": "collate_fn=collate, num_workers=2)"}),
    Change(
        "clip with foreach",
        "clip_grad",
        edits={"clip_grad_norm_(lora_params, 1.0)": "clip_grad_norm_(lora_params, 1.0, foreach=True)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_reviews", seconds=6)
