"""Dense passage retrieval with two small BERT encoders, in-batch and hard negatives, as in open-domain QA code."""

import json
from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A folder bert-tiny with random weights and a vocabulary, and questions with their passages in two JSON files."""
    from transformers import BertConfig, BertModel, BertTokenizer

    rng = np.random.default_rng(0)
    syllables = np.array(
        ["ka", "to", "mi", "re", "lu", "shan", "be", "or", "ing", "fel", "da", "no", "wi", "chi", "st"]
    )
    words = list(dict.fromkeys("".join(row[row != ""]) for row in rng.choice([*syllables, ""], (60000, 5))))[:16000]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,?-"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *words]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(pieces))}
    BertTokenizer(vocab=vocabulary).save_pretrained("bert-tiny")
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
    )
    BertModel(config).save_pretrained("bert-tiny")

    common = np.array(words)
    weights = 1 / np.arange(8, len(words) + 8)
    weights /= weights.sum()

    def passage(title: str, key_words: np.ndarray) -> dict[str, str]:
        text = rng.choice(common, int(np.clip(rng.gamma(6, 7), 20, 90)), p=weights)
        text[rng.choice(len(text), 6, replace=False)] = rng.choice(key_words, 6)
        return {"title": title, "text": " ".join(text).capitalize() + "."}

    def records(count: int) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for _ in range(count):
            title_words = rng.choice(common[200:], 2)
            title = " ".join(title_words).title()
            facts, others = rng.choice(common[1000:], (2, 4))
            asked = [*rng.choice(common[:300], int(rng.integers(4, 10))), *title_words, *facts[:2]]
            rows.append(
                {
                    "question": " ".join(rng.permutation(asked)) + "?",
                    "positive_ctxs": [passage(title, facts)],
                    "hard_negative_ctxs": [passage(title, others), passage(title, others)],
                }
            )
        return rows

    Path("data").mkdir()
    Path("data/train.json").write_text(json.dumps(records(scaled(288, scale, 32))))
    Path("data/dev.json").write_text(json.dumps(records(scaled(60, scale, 12))))
    return {}


CELL = """
import json
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer, get_linear_schedule_with_warmup


class Config:
    model_name = 'bert-tiny'
    train_file = 'data/train.json'
    dev_file = 'data/dev.json'
    output_dir = 'checkpoints'
    max_question_len = 32
    max_passage_len = 96
    train_batch_size = 8
    eval_batch_size = 32
    learning_rate = 1e-4
    weight_decay = 0.01
    warmup_ratio = 0.1
    max_grad_norm = 2.0
    num_epochs = 2
    seed = 42


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def encode_question(tokenizer, question):
    return tokenizer(question, max_length=Config.max_question_len, padding='max_length', truncation=True,
                     return_tensors='pt')


def encode_passage(tokenizer, ctx):
    return tokenizer(ctx['title'], ctx['text'], max_length=Config.max_passage_len, padding='max_length',
                     truncation=True, return_tensors='pt')


class DPRDataset(Dataset):
    def __init__(self, path, tokenizer):
        with open(path) as f:
            self.data = json.load(f)
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.data)

    def __getitem__(self, idx):
        sample = self.data[idx]
        question = encode_question(self.tokenizer, sample['question'])
        positive = encode_passage(self.tokenizer, sample['positive_ctxs'][0])
        negative = encode_passage(self.tokenizer, random.choice(sample['hard_negative_ctxs']))
        return {'question': question, 'positive': positive, 'negative': negative}


def collate_fn(batch):
    keys = batch[0]['question'].keys()
    question = {k: torch.cat([b['question'][k] for b in batch], dim=0) for k in keys}
    # all positives first, then all hard negatives: the target of question i is passage i
    passage = {k: torch.cat([b['positive'][k] for b in batch] + [b['negative'][k] for b in batch], dim=0)
               for k in keys}
    return question, passage


class BiEncoder(nn.Module):
    def __init__(self, model_name):
        super().__init__()
        self.question_encoder = AutoModel.from_pretrained(model_name)
        self.passage_encoder = AutoModel.from_pretrained(model_name)

    def encode(self, encoder, inputs):
        return encoder(**inputs).last_hidden_state[:, 0]

    def forward(self, question, passage):
        q_vectors = self.encode(self.question_encoder, question)
        p_vectors = self.encode(self.passage_encoder, passage)
        return q_vectors, p_vectors


def to_device(inputs, device):
    return {k: v.to(device) for k, v in inputs.items()}


def evaluate(model, tokenizer, path, device):
    model.eval()
    with open(path) as f:
        data = json.load(f)
    corpus, gold = [], []
    for sample in data:
        gold.append(len(corpus))
        corpus.extend(sample['positive_ctxs'] + sample['hard_negative_ctxs'])

    q_vectors, p_vectors = [], []
    with torch.no_grad():
        for start in range(0, len(corpus), Config.eval_batch_size):
            encoded = [encode_passage(tokenizer, c) for c in corpus[start:start + Config.eval_batch_size]]
            inputs = {k: torch.cat([e[k] for e in encoded]) for k in encoded[0].keys()}
            p_vectors.append(model.encode(model.passage_encoder, to_device(inputs, device)).cpu().numpy())
        for start in range(0, len(data), Config.eval_batch_size):
            encoded = [encode_question(tokenizer, s['question']) for s in data[start:start + Config.eval_batch_size]]
            inputs = {k: torch.cat([e[k] for e in encoded]) for k in encoded[0].keys()}
            q_vectors.append(model.encode(model.question_encoder, to_device(inputs, device)).cpu().numpy())

    scores = np.concatenate(q_vectors) @ np.concatenate(p_vectors).T
    ranks = []
    for i, row in enumerate(scores):
        order = np.argsort(-row)
        ranks.append(int(np.where(order == gold[i])[0][0]) + 1)
    ranks = np.array(ranks)
    return {'mrr': float((1 / ranks).mean()), 'avg_rank': float(ranks.mean()),
            **{f'recall@{k}': float((ranks <= k).mean()) for k in (1, 5, 20)}}


set_seed(Config.seed)
os.makedirs(Config.output_dir, exist_ok=True)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
tokenizer = AutoTokenizer.from_pretrained(Config.model_name)
model = BiEncoder(Config.model_name).to(device)

train_dataset = DPRDataset(Config.train_file, tokenizer)
train_loader = DataLoader(train_dataset, batch_size=Config.train_batch_size, shuffle=True, collate_fn=collate_fn)

no_decay = ['bias', 'LayerNorm.weight']
optimizer_grouped_parameters = [
    {'params': [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
     'weight_decay': Config.weight_decay},
    {'params': [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], 'weight_decay': 0.0},
]
optimizer = torch.optim.AdamW(optimizer_grouped_parameters, lr=Config.learning_rate, eps=1e-8)
total_steps = len(train_loader) * Config.num_epochs
scheduler = get_linear_schedule_with_warmup(optimizer, int(Config.warmup_ratio * total_steps), total_steps)

questions_seen, best_mrr = 0, 0.0
for epoch in range(Config.num_epochs):
    model.train()
    epoch_loss, epoch_correct = 0.0, 0
    progress = tqdm(train_loader, desc=f'Epoch {epoch + 1}')
    for step, (question, passage) in enumerate(progress):
        question, passage = to_device(question, device), to_device(passage, device)
        q_vectors, p_vectors = model(question, passage)
        scores = torch.matmul(q_vectors, p_vectors.transpose(0, 1))
        target = torch.arange(scores.size(0), device=device)
        loss = F.nll_loss(F.log_softmax(scores, dim=1), target)

        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), Config.max_grad_norm)
        optimizer.step()
        scheduler.step()
        model.zero_grad()

        questions_seen += scores.size(0)
        epoch_loss += loss.item()
        epoch_correct += (scores.argmax(dim=1) == target).sum().item()
        progress.set_postfix(loss=f'{epoch_loss / (step + 1):.4f}', lr=f'{scheduler.get_last_lr()[0]:.2e}')

    metrics = evaluate(model, tokenizer, Config.dev_file, device)
    print(f'Epoch {epoch + 1}: loss {epoch_loss / len(train_loader):.4f} '
          f'acc {epoch_correct / len(train_dataset):.4f} ' + ' '.join(f'{k} {v:.4f}' for k, v in metrics.items()))
    if metrics['mrr'] > best_mrr:
        best_mrr = metrics['mrr']
        model.question_encoder.save_pretrained(os.path.join(Config.output_dir, 'question_encoder'))
        model.passage_encoder.save_pretrained(os.path.join(Config.output_dir, 'passage_encoder'))
        tokenizer.save_pretrained(Config.output_dir)
"""

LOADER = "DataLoader(train_dataset, batch_size=Config.train_batch_size, shuffle=True,"
FORWARD = CELL[
    CELL.index("        q_vectors, p_vectors = model(question, passage)\n") : CELL.index("        loss.backward()")
]
HALF = "        with torch.autocast(device.type, dtype=torch.bfloat16):\n" + "".join(
    f"    {line}\n" for line in FORWARD.splitlines() if line
)

CHANGES = (
    Change(
        "padded to the longest of the batch",
        "padding",
        edits={
            "        return encoder(**inputs).last_hidden_state[:, 0]": ""
            "        longest = int(inputs['attention_mask'].sum(1).max())\n"
            "        inputs = {k: v[:, :longest] for k, v in inputs.items()}\n"
            "        return encoder(**inputs).last_hidden_state[:, 0]"
        },
    ),
    Change(
        "texts tokenized once",
        "cache_items",
        edits={
            "        self.tokenizer = tokenizer\n": ""
            "        self.questions = [encode_question(tokenizer, s['question']) for s in self.data]\n"
            "        self.positives = [encode_passage(tokenizer, s['positive_ctxs'][0]) for s in self.data]\n"
            "        self.negatives = [[encode_passage(tokenizer, c) for c in s['hard_negative_ctxs']]\n"
            "                          for s in self.data]\n",
            "        sample = self.data[idx]\n"
            "        question = encode_question(self.tokenizer, sample['question'])\n"
            "        positive = encode_passage(self.tokenizer, sample['positive_ctxs'][0])\n"
            "        negative = encode_passage(self.tokenizer, random.choice(sample['hard_negative_ctxs']))\n": ""
            "        question, positive = self.questions[idx], self.positives[idx]\n"
            "        negative = random.choice(self.negatives[idx])\n",
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"eps=1e-8)": "eps=1e-8, fused=True)"}),
    Change("batches of 32", "larger_batch", edits={"train_batch_size = 8": "train_batch_size = 32"}),
    Change("two workers", "num_workers", edits={LOADER: f"{LOADER} num_workers=2,"}),
    Change("bfloat16 autocast", "precision", edits={FORWARD: HALF}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="questions_seen", seconds=8)
