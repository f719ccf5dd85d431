"""Sentence pairs with Accelerate: padded to the longest, metrics gathered every epoch, as in its nlp_example; a healthy loop."""

import logging

import numpy as np
from accelerate.state import AcceleratorState
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Tokenized sentence pairs of similar length and a small BERT."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    AcceleratorState._reset_state(True)  # another run in this process may have had another precision
    rng = np.random.default_rng(0)
    rows = [
        {"input_ids": rng.integers(5, 3000, rng.integers(58, 65)).tolist(), "labels": int(rng.integers(0, 2))}
        for _ in range(scaled(480, scale, 32))
    ]
    config = BertConfig(
        vocab_size=3000, hidden_size=192, num_hidden_layers=3, num_attention_heads=6, intermediate_size=768
    )
    return {"rows": rows, "eval_rows": rows[:32], "model": BertForSequenceClassification(config)}


CELL = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import get_linear_schedule_with_warmup

accelerator = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision='no')

def collate_fn(examples):
    longest = max(len(e['input_ids']) for e in examples)
    ids = torch.tensor([e['input_ids'] + [0] * (longest - len(e['input_ids'])) for e in examples])
    return {'input_ids': ids, 'attention_mask': (ids > 0).long(), 'labels': torch.tensor([e['labels'] for e in examples])}

train_dataloader = DataLoader(rows, shuffle=True, collate_fn=collate_fn, batch_size=16, drop_last=True)
eval_dataloader = DataLoader(eval_rows, shuffle=False, collate_fn=collate_fn, batch_size=32)
num_epochs = 1
optimizer = torch.optim.AdamW(params=model.parameters(), lr=2e-5)
lr_scheduler = get_linear_schedule_with_warmup(optimizer, 10, len(train_dataloader) * num_epochs)
model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler)

seen = 0
for epoch in range(num_epochs):
    model.train()
    for step, batch in enumerate(train_dataloader):
        outputs = model(**batch)
        loss = outputs.loss
        accelerator.backward(loss)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        seen += len(batch['labels'])
    model.eval()
    correct, total = 0, 0
    for step, batch in enumerate(eval_dataloader):
        with torch.no_grad():
            outputs = model(**batch)
        predictions = outputs.logits.argmax(dim=-1)
        predictions, references = accelerator.gather_for_metrics((predictions, batch['labels']))
        correct += (predictions == references).sum().item()
        total += len(references)
    accelerator.print(f'epoch {epoch}:', {'accuracy': correct / total})
"""

CHANGES = (
    Change("mixed precision", "precision", edits={"mixed_precision='no'": "mixed_precision='bf16'"}),
    Change("two workers", "num_workers", edits={"drop_last=True)": "drop_last=True, num_workers=2)"}),
    Change("fused AdamW", "fused_optimizer", edits={"lr=2e-5)": "lr=2e-5, fused=True)"}),
    Change("one thread", "threads", edits={"num_epochs = 1\n": "num_epochs = 1\ntorch.set_num_threads(1)\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=6)
