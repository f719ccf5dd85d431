"""Audio tagging by a small AST of transformers; datasets hands stored log-mel features to the collator as lists."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A dataset on disk with the features of clips (128 frames of 64 bands), whose tags are bands with more energy."""
    from datasets import Dataset, DatasetDict

    rng = np.random.default_rng(0)
    splits = {}
    for split, count in (("train", scaled(512, scale, 16)), ("validation", scaled(128, scale, 16))):
        labels = (rng.random((count, 10)) < 0.2).astype(np.float32)
        bands = np.repeat(labels, 6, axis=1)
        values = rng.normal(size=(count, 128, 64)).astype(np.float32) * 0.5
        values[:, :, :60] += bands[:, None]
        splits[split] = Dataset.from_dict({"input_values": list(values), "label": list(labels)})
    DatasetDict(splits).save_to_disk("urban_logmel")
    return {}


CELL = """
import torch
from torch.utils.data import DataLoader
from datasets import load_from_disk
from transformers import ASTConfig, ASTForAudioClassification, get_linear_schedule_with_warmup
from torchmetrics.classification import MultilabelAveragePrecision
from tqdm.auto import tqdm

NUM_LABELS, BATCH_SIZE, EPOCHS, LR = 10, 16, 3, 5e-4
device = "cuda" if torch.cuda.is_available() else "cpu"

dataset = load_from_disk("urban_logmel")

def collate_fn(examples):
    input_values = torch.tensor([example["input_values"] for example in examples])
    labels = torch.tensor([example["label"] for example in examples])
    return {"input_values": input_values, "labels": labels}

train_dataloader = DataLoader(dataset["train"], shuffle=True, collate_fn=collate_fn, batch_size=BATCH_SIZE)
eval_dataloader = DataLoader(dataset["validation"], collate_fn=collate_fn, batch_size=BATCH_SIZE)

config = ASTConfig(hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=192,
                   max_length=128, num_mel_bins=64, num_labels=NUM_LABELS,
                   problem_type="multi_label_classification")
model = ASTForAudioClassification(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
num_training_steps = EPOCHS * len(train_dataloader)
lr_scheduler = get_linear_schedule_with_warmup(optimizer, num_training_steps // 10, num_training_steps)
metric = MultilabelAveragePrecision(num_labels=NUM_LABELS, thresholds=100)

n_clips = 0
progress_bar = tqdm(range(num_training_steps))
for epoch in range(EPOCHS):
    model.train()
    total_loss = 0
    for batch in train_dataloader:
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        total_loss += loss.item()
        n_clips += batch["labels"].size(0)
        progress_bar.update(1)

    model.eval()
    metric.reset()
    for batch in eval_dataloader:
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.no_grad():
            outputs = model(**batch)
        metric.update(outputs.logits.cpu(), batch["labels"].cpu().long())
    print(f"epoch {epoch}: train loss {total_loss / len(train_dataloader):.4f}, mAP {metric.compute():.4f}")
"""

CHANGES = (
    Change(
        "tensors from datasets",
        "storage_format",
        edits={
            'dataset = load_from_disk("urban_logmel")': 'dataset = load_from_disk("urban_logmel").with_format("torch")',
            '    input_values = torch.tensor([example["input_values"] for example in examples])\n'
            '    labels = torch.tensor([example["label"] for example in examples])\n': "    input_values = torch.stack("
            '[example["input_values"] for example in examples])\n'
            '    labels = torch.stack([example["label"] for example in examples])\n',
        },
    ),
    Change(
        "all features as one tensor",
        "cache_items",
        edits={
            "train_dataloader = DataLoader(": 'dataset = dataset.with_format("numpy")\n'
            'tensors = {split: [{"input_values": v, "label": l} for v, l in zip(\n'
            '    torch.from_numpy(data["input_values"][:]), torch.from_numpy(data["label"][:]))]\n'
            "    for split, data in dataset.items()}\ntrain_dataloader = DataLoader(",
            'dataset["train"]': 'tensors["train"]',
            'dataset["validation"]': 'tensors["validation"]',
            'torch.tensor([example["input_values"]': 'torch.stack([example["input_values"]',
            'torch.tensor([example["label"]': 'torch.stack([example["label"]',
        },
    ),
    Change(
        "two workers",
        "num_workers",
        edits={
            "shuffle=True, collate_fn=collate_fn, batch_size=BATCH_SIZE)": "shuffle=True, collate_fn=collate_fn, "
            "batch_size=BATCH_SIZE, num_workers=2)"
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        outputs = model(**batch)\n        loss = outputs.loss\n": "        with torch.autocast(device, "
            "dtype=torch.bfloat16):\n            outputs = model(**batch)\n        loss = outputs.loss\n"
        },
    ),
    Change("batches of 64", "larger_batch", edits={"EPOCHS, LR = 10, 16, 3,": "EPOCHS, LR = 10, 64, 3,"}),
    Change("fused AdamW", "fused_optimizer", edits={"lr=LR)": "lr=LR, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_clips", seconds=6)
