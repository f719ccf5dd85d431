"""BERT fine-tuned on sentences that are padded to max_length, with a tokenized datasets.Dataset in torch format."""

import logging

import numpy as np
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Token ids of sentences (CoLA has 11 tokens on average) and a small BERT."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    rng = np.random.default_rng(0)
    count = scaled(640, scale, 16)
    sentences = [[101, *rng.integers(1000, 5000, rng.integers(6, 30)).tolist(), 102] for _ in range(count)]
    config = BertConfig(
        vocab_size=5000, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=512
    )
    model = BertForSequenceClassification(config)
    return {"sentences": sentences, "labels": rng.integers(0, 2, count).tolist(), "model": model}


CELL = """
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import get_scheduler, DataCollatorWithPadding

MAX_LENGTH = 128

def tokenize_function(example):
    ids = example['ids'][:MAX_LENGTH]
    pad = MAX_LENGTH - len(ids)
    return {'input_ids': ids + [0] * pad, 'attention_mask': [1] * len(ids) + [0] * pad,
            'token_type_ids': [0] * MAX_LENGTH}

raw_train = Dataset.from_dict({'ids': sentences, 'label': labels})
tokenized = raw_train.map(tokenize_function, remove_columns=['ids'])
tokenized = tokenized.rename_column('label', 'labels')
tokenized.set_format('torch')
train_dataloader = DataLoader(tokenized, shuffle=True, batch_size=16)

device = torch.device('cuda') if torch.cuda.is_available() else torch.device('cpu')
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
num_epochs = 1
num_training_steps = num_epochs * len(train_dataloader)
lr_scheduler = get_scheduler('linear', optimizer=optimizer, num_warmup_steps=0, num_training_steps=num_training_steps)

model.train()
total_loss, n_examples = 0, 0
for epoch in range(num_epochs):
    for step, batch in enumerate(train_dataloader):
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        total_loss += loss.item()
        n_examples += len(batch['labels'])
        if step % 10 == 0:
            print(f'step {step} loss {total_loss / (step + 1):.4f}')
"""

CHANGES = (
    Change(
        "pad to the longest of the batch",
        "padding",
        edits={
            "    pad = MAX_LENGTH - len(ids)\n": "    pad = 0\n",
            "[0] * MAX_LENGTH}": "[0] * len(ids)}",
            "train_dataloader = ": """def collate(rows):
    out = {k: torch.nn.utils.rnn.pad_sequence([r[k] for r in rows], batch_first=True) for k in rows[0] if k != 'labels'}
    out['labels'] = torch.stack([r['labels'] for r in rows])
    return out

train_dataloader = """,
            "batch_size=16)": "batch_size=16, collate_fn=collate)",
        },
    ),
    Change(
        "bf16 autocast",
        "precision",
        edits={
            "        outputs = model(**batch)\n": "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            outputs = model(**batch)\n"
        },
    ),
    Change("two workers", "num_workers", edits={"batch_size=16)": "batch_size=16, num_workers=2)"}),
    Change("fused AdamW", "fused_optimizer", edits={"lr=5e-5)": "lr=5e-5, fused=True)"}),
    Change("one thread", "threads", edits={"model.to(device)": "torch.set_num_threads(1)\nmodel.to(device)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_examples", seconds=6)
