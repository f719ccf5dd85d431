"""Named entities with the transformers Trainer: small batches padded to the maximum, accumulation and frequent evaluation."""

import logging
import random
from pathlib import Path

from accelerate.state import AcceleratorState
from transformers import BertConfig, BertForTokenClassification

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Sentences as words with a tag each, most of them short, and a vocabulary of their words."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    AcceleratorState._reset_state(True)  # another run in this process may have had another precision
    words = [f"word{k}" for k in range(3000)]
    Path("vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    lengths = [min(100, int(random.lognormvariate(2.6, 0.6)) + 3) for _ in range(scaled(640, scale, 16) + 64)]
    sentences = [random.choices(words, k=n) for n in lengths]
    tags = [random.choices(range(9), weights=[20] + [1] * 8, k=n) for n in lengths]
    config = BertConfig(
        vocab_size=3005,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=128,
        num_labels=9,
    )
    return {"sentences": sentences, "tags": tags, "model": BertForTokenClassification(config)}


CELL = """
import numpy as np
from datasets import Dataset
from transformers import BertTokenizerFast, DataCollatorForTokenClassification, Trainer, TrainingArguments

label_list = ['O', 'B-PER', 'I-PER', 'B-ORG', 'I-ORG', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC']
tokenizer = BertTokenizerFast('vocab.txt')
raw_dataset = Dataset.from_dict({'tokens': sentences, 'ner_tags': tags}).train_test_split(test_size=64, shuffle=False)

def tokenize_and_align_labels(examples):
    tokenized_inputs = tokenizer(examples['tokens'], truncation=True, padding='max_length', max_length=128,
                                 is_split_into_words=True)
    labels = []
    for i, label in enumerate(examples['ner_tags']):
        previous_word_idx = None
        label_ids = []
        for word_idx in tokenized_inputs.word_ids(batch_index=i):
            if word_idx is None or word_idx == previous_word_idx:
                label_ids.append(-100)
            else:
                label_ids.append(label[word_idx])
            previous_word_idx = word_idx
        labels.append(label_ids)
    tokenized_inputs['labels'] = labels
    return tokenized_inputs

tokenized_datasets = raw_dataset.map(tokenize_and_align_labels, batched=True, remove_columns=['tokens', 'ner_tags'])

def compute_metrics(p):
    predictions, labels = p
    predictions = np.argmax(predictions, axis=2)
    true_predictions = [[label_list[p] for p, l in zip(pred, lab) if l != -100] for pred, lab in zip(predictions, labels)]
    true_labels = [[label_list[l] for p, l in zip(pred, lab) if l != -100] for pred, lab in zip(predictions, labels)]
    hits = [p == l for pred, lab in zip(true_predictions, true_labels) for p, l in zip(pred, lab)]
    return {'accuracy': sum(hits) / len(hits)}

args = TrainingArguments(
    output_dir='bert-ner',
    eval_strategy='steps',
    eval_steps=10,
    learning_rate=2e-5,
    per_device_train_batch_size=4,
    per_device_eval_batch_size=8,
    gradient_accumulation_steps=4,
    num_train_epochs=1,
    weight_decay=0.01,
    logging_steps=10,
    save_strategy='no',
    report_to='none',
)

trainer = Trainer(
    model=model,
    args=args,
    train_dataset=tokenized_datasets['train'],
    eval_dataset=tokenized_datasets['test'],
    data_collator=DataCollatorForTokenClassification(tokenizer),
    compute_metrics=compute_metrics,
)
result = trainer.train()
print(result)
"""

CHANGES = (
    Change("pad to the longest of the batch", "padding", edits={"padding='max_length', ": ""}),
    Change(
        "pad to the longest, group by length",
        "padding",
        edits={
            "padding='max_length', ": "",
            "    learning_rate=2e-5,": "    train_sampling_strategy='group_by_length',\n    learning_rate=2e-5,",
        },
    ),
    Change(
        "batches of 16 without accumulation",
        "larger_batch",
        edits={
            "per_device_train_batch_size=4": "per_device_train_batch_size=16",
            "gradient_accumulation_steps=4": "gradient_accumulation_steps=1",
        },
    ),
    Change(
        "evaluate after the epoch",
        "eval_less_often",
        edits={"eval_strategy='steps',\n    eval_steps=10": "eval_strategy='epoch'"},
    ),
    Change("bf16", "precision", edits={"learning_rate=2e-5": "bf16=True,\n    use_cpu=True,\n    learning_rate=2e-5"}),
    Change(
        "two workers", "num_workers", edits={"learning_rate=2e-5": "dataloader_num_workers=2,\n    learning_rate=2e-5"}
    ),
)

LOOP = Loop(
    __doc__, prepare, CELL, CHANGES, samples="trainer.state.global_step * 16", loss="result.training_loss", seconds=6
)
