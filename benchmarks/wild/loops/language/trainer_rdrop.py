"""Duplicate questions by a small BERT with R-Drop in a Trainer subclass, as in scripts that accompany a paper."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Question pairs in train.csv and valid.csv, and a tokenizer and a small BERT in the folder mini-bert."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    rng = np.random.default_rng(0)
    syllables = np.array(
        ["ka", "to", "mi", "re", "lu", "shan", "be", "or", "ing", "fel", "da", "no", "wi", "chi", "qua", "ter", "mo"]
    )
    words = np.array(["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(3000)])
    weights = 1 / np.arange(8, len(words) + 8)
    weights /= weights.sum()
    starts = np.array(["how do i", "what is", "why does", "which", "is there", "can you", "what are the best"])

    def frame(count: int) -> pd.DataFrame:
        rows = []
        for index in range(count):
            first = rng.choice(words, int(np.clip(rng.gamma(3, 2.6), 2, 34)), p=weights)
            second = first.copy()
            second[rng.random(len(second)) < (0.2 if index % 2 else 0.6)] = rng.choice(words, p=weights)
            if rng.random() < 0.5:
                rng.shuffle(second)
            pair = [f"{rng.choice(starts).capitalize()} {' '.join(text)}?" for text in (first, second)]
            rows.append((index, *pair, index % 2))
        return pd.DataFrame(rows, columns=["id", "question1", "question2", "is_duplicate"])

    train = frame(scaled(1280, scale, 128))
    train.to_csv("train.csv", index=False)
    frame(scaled(256, scale, 32)).to_csv("valid.csv", index=False)

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=2000, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([*train["question1"], *train["question2"]], trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = {f"{token.strip('[]').lower()}_token": token for token in special}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names).save_pretrained("mini-bert")
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
    )
    BertModel(config).save_pretrained("mini-bert")
    return {}


CELL = """
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from torch.utils.data import Dataset
from transformers import (
    AutoModelForSequenceClassification, AutoTokenizer, EarlyStoppingCallback, Trainer, TrainingArguments, set_seed,
)

MODEL_NAME = 'mini-bert'
MAX_LENGTH = 64
ALPHA = 1.0

set_seed(42)
tokenizer = AutoTokenizer.from_pretrained(MODEL_NAME)

class QuestionPairDataset(Dataset):
    def __init__(self, path, tokenizer, max_length):
        self.df = pd.read_csv(path)
        self.tokenizer = tokenizer
        self.max_length = max_length

    def __len__(self):
        return len(self.df)

    def __getitem__(self, idx):
        row = self.df.iloc[idx]
        encoding = self.tokenizer(
            str(row['question1']),
            str(row['question2']),
            truncation=True,
            padding='max_length',
            max_length=self.max_length,
            return_tensors='pt',
        )
        item = {k: v.squeeze(0) for k, v in encoding.items()}
        item['labels'] = torch.tensor(row['is_duplicate'], dtype=torch.long)
        return item

class RDropTrainer(Trainer):
    def __init__(self, *args, alpha=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.alpha = alpha

    def kl_loss(self, p, q):
        p_loss = F.kl_div(F.log_softmax(p, dim=-1), F.softmax(q, dim=-1), reduction='none').sum(-1)
        q_loss = F.kl_div(F.log_softmax(q, dim=-1), F.softmax(p, dim=-1), reduction='none').sum(-1)
        return (p_loss.mean() + q_loss.mean()) / 2

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop('labels')
        if not model.training:
            outputs = model(**inputs)
            loss = F.cross_entropy(outputs.logits, labels)
            return (loss, outputs) if return_outputs else loss

        outputs = model(**inputs)
        outputs2 = model(**inputs)
        logits1, logits2 = outputs.logits, outputs2.logits
        ce = 0.5 * (F.cross_entropy(logits1, labels) + F.cross_entropy(logits2, labels))
        loss = ce + self.alpha * self.kl_loss(logits1, logits2)
        return (loss, outputs) if return_outputs else loss

def compute_metrics(eval_pred):
    logits, labels = eval_pred
    preds = np.argmax(logits, axis=1)
    probs = torch.softmax(torch.tensor(logits), dim=-1)[:, 1].numpy()
    # best threshold of the duplicates
    best_f1, best_threshold = 0.0, 0.5
    for threshold in np.arange(0.1, 0.9, 0.02):
        score = f1_score(labels, (probs > threshold).astype(int), zero_division=0)
        if score > best_f1:
            best_f1, best_threshold = score, threshold
    return {
        'accuracy': accuracy_score(labels, preds),
        'f1': f1_score(labels, preds, zero_division=0),
        'mcc': matthews_corrcoef(labels, preds),
        'best_f1': best_f1,
        'best_threshold': float(best_threshold),
    }

train_dataset = QuestionPairDataset('train.csv', tokenizer, MAX_LENGTH)
eval_dataset = QuestionPairDataset('valid.csv', tokenizer, MAX_LENGTH)
model = AutoModelForSequenceClassification.from_pretrained(MODEL_NAME, num_labels=2)

training_args = TrainingArguments(
    output_dir='rdrop-output',
    num_train_epochs=1,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=32,
    learning_rate=3e-4,
    weight_decay=0.01,
    warmup_steps=10,
    lr_scheduler_type='linear',
    optim='adamw_torch',
    eval_strategy='steps',
    eval_steps=20,
    save_strategy='steps',
    save_steps=20,
    save_total_limit=2,
    logging_steps=10,
    load_best_model_at_end=True,
    metric_for_best_model='best_f1',
    greater_is_better=True,
    report_to='none',
    disable_tqdm=True,
    seed=42,
)
trainer = RDropTrainer(
    model=model,
    args=training_args,
    train_dataset=train_dataset,
    eval_dataset=eval_dataset,
    compute_metrics=compute_metrics,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=10)],
    alpha=ALPHA,
)
result = trainer.train()
metrics = trainer.evaluate()
print(metrics)
trainer.save_model('rdrop-output/best')
samples_seen = trainer.state.global_step * training_args.per_device_train_batch_size
"""

CHANGES = (
    Change(
        "both passes as one batch",
        "other",
        edits={
            "        outputs = model(**inputs)\n        outputs2 = model(**inputs)\n"
            "        logits1, logits2 = outputs.logits, outputs2.logits\n": ""
            "        outputs = model(**{k: torch.cat([v, v]) for k, v in inputs.items()})\n"
            "        logits1, logits2 = outputs.logits.chunk(2)\n"
        },
    ),
    Change(
        "pairs padded by the batch",
        "padding",
        edits={
            "    AutoModelForSequenceClassification, AutoTokenizer, ": ""
            "    AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, ",
            "            padding='max_length',\n": "",
            "            return_tensors='pt',\n": "",
            "        item = {k: v.squeeze(0) for k, v in encoding.items()}\n"
            "        item['labels'] = torch.tensor(row['is_duplicate'], dtype=torch.long)\n": ""
            "        item = dict(encoding)\n"
            "        item['labels'] = int(row['is_duplicate'])\n",
            "    compute_metrics=compute_metrics,\n": ""
            "    compute_metrics=compute_metrics,\n    data_collator=DataCollatorWithPadding(tokenizer),\n",
        },
    ),
    Change(
        "evaluation and checkpoint only at the end",
        "eval_less_often",
        edits={
            "eval_strategy='steps',\n    eval_steps=20,": "eval_strategy='epoch',",
            "save_strategy='steps',\n    save_steps=20,": "save_strategy='epoch',",
        },
    ),
    Change(
        "batches of 64",
        "larger_batch",
        edits={"per_device_train_batch_size=16,": "per_device_train_batch_size=64,"},
    ),
    Change(
        "bfloat16 autocast", "precision", edits={"    seed=42,\n": "    seed=42,\n    bf16=True,\n    use_cpu=True,\n"}
    ),
    Change("fused AdamW", "fused_optimizer", edits={"optim='adamw_torch'": "optim='adamw_torch_fused'"}),
    Change("two workers", "num_workers", edits={"    seed=42,\n": "    seed=42,\n    dataloader_num_workers=2,\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="samples_seen", loss="result.training_loss", seconds=8)
