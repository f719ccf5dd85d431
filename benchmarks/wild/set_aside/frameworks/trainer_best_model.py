"""A small DistilBERT fine-tuned by the Transformers Trainer, evaluated and saved every ten steps, best model at the end."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Token ids and labels of reviews, most of them much shorter than the model's limit."""
    generator = np.random.default_rng(1)

    def reviews(count: int) -> list[dict[str, object]]:
        """Reviews as lists of ids, with the label in some of the words."""
        rows: list[dict[str, object]] = []
        for _ in range(count):
            label = int(generator.integers(0, 3))
            ids = generator.integers(10, 4000, int(generator.integers(8, 60)))
            ids[:: int(generator.integers(3, 8))] = 3 + label
            rows.append({"ids": ids.tolist(), "label": label})
        return rows

    return {"train_rows": reviews(scaled(1280, scale, 16)), "val_rows": reviews(96)}


CELL = """
import numpy as np
import torch
from datasets import Dataset
from transformers import (DistilBertConfig, DistilBertForSequenceClassification, EarlyStoppingCallback, Trainer,
                          TrainingArguments, default_data_collator)

MAX_LENGTH = 128

def tokenize(example):
    ids = [1] + example['ids'][:MAX_LENGTH - 2] + [2]
    pad = MAX_LENGTH - len(ids)
    return {'input_ids': ids + [0] * pad, 'attention_mask': [1] * len(ids) + [0] * pad}

train_dataset = Dataset.from_list(train_rows).map(tokenize, remove_columns=['ids'])
val_dataset = Dataset.from_list(val_rows).map(tokenize, remove_columns=['ids'])

config = DistilBertConfig(vocab_size=4000, dim=96, n_layers=2, n_heads=4, hidden_dim=192, num_labels=3)
model = DistilBertForSequenceClassification(config)

def compute_metrics(eval_pred):
    logits, labels = eval_pred
    preds = np.argmax(logits, axis=-1)
    f1s = []
    for c in range(3):
        tp = ((preds == c) & (labels == c)).sum()
        f1s.append(2 * tp / max((preds == c).sum() + (labels == c).sum(), 1))
    return {'accuracy': (preds == labels).mean(), 'macro_f1': float(np.mean(f1s))}

args = TrainingArguments(
    output_dir='out',
    num_train_epochs=1,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=32,
    learning_rate=3e-4,
    optim='adamw_torch',
    eval_strategy='steps',
    eval_steps=10,
    save_strategy='steps',
    save_steps=10,
    save_total_limit=2,
    logging_steps=5,
    load_best_model_at_end=True,
    metric_for_best_model='macro_f1',
    report_to='none',
    use_cpu=True,
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=train_dataset,
    eval_dataset=val_dataset,
    data_collator=default_data_collator,
    compute_metrics=compute_metrics,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=30)],
)
result = trainer.train()
print(result.metrics)
"""

CHANGES = (
    Change(
        "evaluate and save every fortieth step",
        "eval_less_often",
        edits={"eval_steps=10,": "eval_steps=40,", "save_steps=10,": "save_steps=40,"},
    ),
    Change(
        "pad to the longest of the batch",
        "padding",
        edits={
            "args = TrainingArguments(": """def trim(features):
    batch = default_data_collator(features)
    longest = int(batch['attention_mask'].sum(1).max())
    for key in ('input_ids', 'attention_mask'):
        batch[key] = batch[key][:, :longest]
    return batch

args = TrainingArguments(""",
            "data_collator=default_data_collator,": "data_collator=trim,",
        },
    ),
    Change(
        "two dataloader workers",
        "num_workers",
        edits={"    report_to='none',": "    report_to='none',\n    dataloader_num_workers=2,"},
    ),
    Change("fused AdamW", "fused_optimizer", edits={"optim='adamw_torch',": "optim='adamw_torch_fused',"}),
    Change("bfloat16", "precision", edits={"    use_cpu=True,": "    use_cpu=True,\n    bf16=True,"}),
)

LOOP = Loop(
    __doc__,
    prepare,
    CELL,
    CHANGES,
    samples="trainer.state.global_step * 16",
    loss="result.training_loss",
    seconds=6,
)
