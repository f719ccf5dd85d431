"""Essay scores with the transformers Trainer: regression, dynamic padding, kappa on a held-out part, as in Kaggle kernels."""

import logging

import numpy as np
import pandas as pd
from accelerate.state import AcceleratorState
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def prepare(scale: float) -> Namespace:
    """A frame of essays of very different length with a score from 1 to 6, and a tokenizer."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    AcceleratorState._reset_state(True)  # another run in this process may have had another precision
    vocab = {token: index for index, token in enumerate([*SPECIAL, *(f"w{k}" for k in range(2995))])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    rng = np.random.default_rng(0)
    count = scaled(960, scale, 16) + 64
    lengths = np.clip(rng.lognormal(4.5, 0.6, count).astype(int), 20, 300)
    words = np.minimum(rng.zipf(1.3, int(lengths.sum())), 2994)
    essays, start = [], 0
    for length in lengths:
        essays.append(" ".join(f"w{k}" for k in words[start : start + length]))
        start += length
    scores = np.clip(np.round(lengths / 60 + rng.normal(1, 0.7, count)), 1, 6)
    return {"df": pd.DataFrame({"full_text": essays, "score": scores}), "tokenizer": tokenizer}


CELL = """
import numpy as np
import torch
from sklearn.metrics import cohen_kappa_score
from transformers import (BertConfig, BertForSequenceClassification, DataCollatorWithPadding, Trainer,
                          TrainingArguments, set_seed)

class CFG:
    max_length = 192
    batch_size = 8
    lr = 2e-4
    epochs = 1
    eval_steps = 20

set_seed(42)

class EssayDataset(torch.utils.data.Dataset):
    def __init__(self, frame):
        self.texts = frame['full_text'].values
        self.scores = frame['score'].values.astype(np.float32)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, idx):
        enc = tokenizer(self.texts[idx], truncation=True, max_length=CFG.max_length)
        return {'input_ids': enc['input_ids'], 'attention_mask': enc['attention_mask'], 'labels': self.scores[idx]}

def compute_metrics(eval_pred):
    preds, labels = eval_pred
    rounded = preds.squeeze().clip(1, 6).round(0).astype(int)
    return {'qwk': cohen_kappa_score(labels.astype(int), rounded, weights='quadratic')}

valid_df = df.iloc[:64].reset_index(drop=True)
train_df = df.iloc[64:].reset_index(drop=True)
train_ds, valid_ds = EssayDataset(train_df), EssayDataset(valid_df)

model = BertForSequenceClassification(BertConfig(
    vocab_size=3000, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=384,
    max_position_embeddings=CFG.max_length, num_labels=1, problem_type='regression',
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))

args = TrainingArguments(
    output_dir='output',
    use_cpu=True,
    learning_rate=CFG.lr,
    warmup_steps=5,
    num_train_epochs=CFG.epochs,
    per_device_train_batch_size=CFG.batch_size,
    per_device_eval_batch_size=CFG.batch_size,
    eval_strategy='steps',
    eval_steps=CFG.eval_steps,
    save_strategy='no',
    logging_steps=CFG.eval_steps,
    lr_scheduler_type='cosine',
    weight_decay=0.01,
    report_to='none',
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=train_ds,
    eval_dataset=valid_ds,
    data_collator=DataCollatorWithPadding(tokenizer),
    processing_class=tokenizer,
    compute_metrics=compute_metrics,
)
output = trainer.train()
n_essays = round(trainer.state.epoch * len(train_ds))
"""

_COSINE = "    lr_scheduler_type='cosine',\n"

CHANGES = (
    Change(
        "batches of similar length",
        "padding",
        edits={_COSINE: _COSINE + "    train_sampling_strategy='group_by_length',\n"},
    ),
    Change("bfloat16", "precision", edits={_COSINE: _COSINE + "    bf16=True,\n"}),
    Change("evaluation every 80 steps", "eval_less_often", edits={"eval_steps = 20": "eval_steps = 80"}),
    Change("two workers", "num_workers", edits={_COSINE: _COSINE + "    dataloader_num_workers=2,\n"}),
    Change(
        "tokens made once",
        "cache_items",
        edits={
            "        self.texts = frame['full_text'].values\n": "        self.texts = [\n"
            "            tokenizer(t, truncation=True, max_length=CFG.max_length) for t in frame['full_text']\n"
            "        ]\n",
            "        enc = tokenizer(self.texts[idx], truncation=True, max_length=CFG.max_length)\n": ""
            "        enc = self.texts[idx]\n",
        },
    ),
    Change("batches of 16", "larger_batch", edits={"    batch_size = 8\n": "    batch_size = 16\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_essays", loss="output.training_loss", seconds=8)
