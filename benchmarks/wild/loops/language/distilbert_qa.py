"""Extractive question answering by DistilBERT with a hand-written loop, as in tutorials on fine-tuning with custom datasets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import DistilBertConfig, DistilBertForQuestionAnswering, PreTrainedTokenizerFast

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

SYLLABLES = ["ba", "lo", "mer", "ti", "sa", "kun", "vi", "or", "den", "ra", "pel", "u", "shi", "gor", "na", "ly"]


def squad(rng: np.random.Generator, words: np.ndarray, articles: int) -> dict[str, Any]:
    """Articles of two paragraphs, each with four questions whose answers follow a name in the text."""
    weights = 1 / np.arange(8, len(words) + 8)
    weights /= weights.sum()
    data = []
    for article in range(articles):
        paragraphs = []
        for _ in range(2):
            length = int(np.clip(rng.lognormal(4.25, 0.45), 30, 170))
            text = rng.choice(words, length, p=weights).tolist()
            spots = np.sort(rng.choice(length // 6, 4, replace=False)) * 6
            facts = []
            for spot in spots:
                text[spot : spot + 2] = ["the", words[rng.integers(40)]]
                answer = " ".join(text[spot + 2 : spot + 2 + int(rng.integers(1, 4))])
                facts.append((f"what is the {text[spot + 1]} {text[spot - 1]} ?", spot, answer))
            context = " ".join(text) + " ."
            qas = [
                {
                    "question": question,
                    "id": f"{article}-{spot}",
                    "answers": [{"text": answer, "answer_start": len(" ".join(text[: spot + 2])) + 1}],
                }
                for question, spot, answer in facts
            ]
            paragraphs.append({"context": context, "qas": qas})
        data.append({"title": f"Article_{article}", "paragraphs": paragraphs})
    return {"version": "1.1", "data": data}


def prepare(scale: float) -> Namespace:
    """Files train.json and dev.json in the format of SQuAD, and a small DistilBERT with its tokenizer in a folder."""
    rng = np.random.default_rng(0)
    words = np.unique(["".join(rng.choice(SYLLABLES, rng.integers(1, 4))) for _ in range(3600)])
    rng.shuffle(words)
    Path("squad").mkdir()
    Path("squad/train.json").write_text(json.dumps(squad(rng, words, scaled(48, scale, 4))))
    Path("squad/dev.json").write_text(json.dumps(squad(rng, words, scaled(12, scale))))
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*specials, *".?", "the", "what", "is", *(w for w in words[: len(words) * 3 // 4] if w not in {"the"})]
    pieces += [f"##{s}" for s in SYLLABLES] + [s for s in SYLLABLES if s not in pieces]
    vocabulary = {str(piece): index for index, piece in enumerate(dict.fromkeys(pieces))}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), specials, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=512, **names)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained("distilbert-small-uncased")
    torch.manual_seed(0)
    config = DistilBertConfig(vocab_size=len(vocabulary), dim=128, n_layers=2, n_heads=4, hidden_dim=512)
    DistilBertForQuestionAnswering(config).save_pretrained("distilbert-small-uncased")
    return {}


CELL = """
import json
import re
import string
from collections import Counter
from pathlib import Path

import torch
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, DistilBertForQuestionAnswering, get_linear_schedule_with_warmup

checkpoint = 'distilbert-small-uncased'


def read_squad(path):
    with open(Path(path), 'rb') as f:
        squad_dict = json.load(f)
    contexts, questions, answers = [], [], []
    for group in squad_dict['data']:
        for passage in group['paragraphs']:
            for qa in passage['qas']:
                for answer in qa['answers']:
                    contexts.append(passage['context'])
                    questions.append(qa['question'])
                    answers.append(answer)
    return contexts, questions, answers


train_contexts, train_questions, train_answers = read_squad('squad/train.json')
val_contexts, val_questions, val_answers = read_squad('squad/dev.json')


def add_end_idx(answers, contexts):
    for answer, context in zip(answers, contexts):
        gold_text = answer['text']
        start_idx = answer['answer_start']
        end_idx = start_idx + len(gold_text)
        # sometimes squad answers are off by a character or two
        for shift in range(3):
            if context[start_idx - shift:end_idx - shift] == gold_text:
                answer['answer_start'] = start_idx - shift
                answer['answer_end'] = end_idx - shift
                break


add_end_idx(train_answers, train_contexts)
add_end_idx(val_answers, val_contexts)

tokenizer = AutoTokenizer.from_pretrained(checkpoint)
train_encodings = tokenizer(train_contexts, train_questions, truncation=True, padding=True)
val_encodings = tokenizer(val_contexts, val_questions, truncation=True, padding=True)


def add_token_positions(encodings, answers):
    start_positions, end_positions = [], []
    for i in range(len(answers)):
        start = encodings.char_to_token(i, answers[i]['answer_start'])
        end = encodings.char_to_token(i, answers[i]['answer_end'] - 1)
        # the answer passage has been truncated
        start_positions.append(tokenizer.model_max_length if start is None else start)
        end_positions.append(tokenizer.model_max_length if end is None else end)
    encodings.update({'start_positions': start_positions, 'end_positions': end_positions})


add_token_positions(train_encodings, train_answers)
add_token_positions(val_encodings, val_answers)


class SquadDataset(torch.utils.data.Dataset):
    def __init__(self, encodings):
        self.encodings = encodings

    def __getitem__(self, idx):
        return {key: torch.tensor(val[idx]) for key, val in self.encodings.items()}

    def __len__(self):
        return len(self.encodings.input_ids)


train_dataset = SquadDataset(train_encodings)
val_dataset = SquadDataset(val_encodings)


def normalize_text(s):
    s = re.sub(r'\\b(a|an|the)\\b', ' ', s.lower())
    s = ''.join(ch for ch in s if ch not in set(string.punctuation))
    return ' '.join(s.split())


def compute_exact_match(prediction, truth):
    return int(normalize_text(prediction) == normalize_text(truth))


def compute_f1(prediction, truth):
    pred_tokens = normalize_text(prediction).split()
    truth_tokens = normalize_text(truth).split()
    if len(pred_tokens) == 0 or len(truth_tokens) == 0:
        return int(pred_tokens == truth_tokens)
    common = sum((Counter(pred_tokens) & Counter(truth_tokens)).values())
    if common == 0:
        return 0
    prec, rec = common / len(pred_tokens), common / len(truth_tokens)
    return 2 * prec * rec / (prec + rec)


device = torch.device('cuda') if torch.cuda.is_available() else torch.device('cpu')
model = DistilBertForQuestionAnswering.from_pretrained(checkpoint)
model.to(device)


def evaluate(model, loader, answers):
    model.eval()
    em, f1, acc, n = 0, 0, [], 0
    for batch in loader:
        with torch.no_grad():
            input_ids = batch['input_ids'].to(device)
            attention_mask = batch['attention_mask'].to(device)
            start_true = batch['start_positions'].to(device)
            end_true = batch['end_positions'].to(device)
            outputs = model(input_ids, attention_mask=attention_mask)
            start_pred = torch.argmax(outputs['start_logits'], dim=1)
            end_pred = torch.argmax(outputs['end_logits'], dim=1)
            acc.append(((start_pred == start_true).sum() / len(start_pred)).item())
            acc.append(((end_pred == end_true).sum() / len(end_pred)).item())
        for i in range(len(input_ids)):
            prediction = tokenizer.decode(input_ids[i][start_pred[i]:end_pred[i] + 1], skip_special_tokens=True)
            em += compute_exact_match(prediction, answers[n]['text'])
            f1 += compute_f1(prediction, answers[n]['text'])
            n += 1
    model.train()
    return 100 * em / n, 100 * f1 / n, sum(acc) / len(acc)


train_loader = DataLoader(train_dataset, batch_size=16, shuffle=True)
val_loader = DataLoader(val_dataset, batch_size=16)

num_epochs = 3
optim = AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
total_steps = num_epochs * len(train_loader)
scheduler = get_linear_schedule_with_warmup(optim, num_warmup_steps=int(0.1 * total_steps),
                                            num_training_steps=total_steps)

model.train()
examples = 0
for epoch in range(num_epochs):
    epoch_loss = 0.0
    for step, batch in enumerate(train_loader):
        optim.zero_grad()
        input_ids = batch['input_ids'].to(device)
        attention_mask = batch['attention_mask'].to(device)
        start_positions = batch['start_positions'].to(device)
        end_positions = batch['end_positions'].to(device)
        outputs = model(input_ids, attention_mask=attention_mask, start_positions=start_positions,
                        end_positions=end_positions)
        loss = outputs[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        scheduler.step()
        epoch_loss += loss.item()
        examples += input_ids.size(0)
        if (step + 1) % 20 == 0:
            print(f'epoch {epoch + 1} step {step + 1}/{len(train_loader)} loss {epoch_loss / (step + 1):.4f}')
    em, f1, acc = evaluate(model, val_loader, val_answers)
    print(f'Epoch {epoch + 1}: train loss {epoch_loss / len(train_loader):.4f}, EM {em:.2f}, F1 {f1:.2f}, '
          f'position accuracy {acc:.4f}')

model.save_pretrained('distilbert-custom')
tokenizer.save_pretrained('distilbert-custom')
"""

LOADERS = CELL[CELL.index("train_loader = DataLoader") : CELL.index("num_epochs = 3")]
COLLATE = """
def trimmed(items):
    batch = torch.utils.data.default_collate(items)
    longest = int(batch['attention_mask'].sum(1).max())
    return {key: value[:, :longest] if value.dim() == 2 else value for key, value in batch.items()}


"""
SIMILAR = """
class SimilarLengths(torch.utils.data.Sampler):
    def __init__(self, lengths, batch_size):
        self.lengths, self.batch_size = lengths, batch_size

    def __len__(self):
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self):
        batches = torch.argsort(self.lengths + torch.rand(len(self.lengths))).split(self.batch_size)
        for index in torch.randperm(len(batches)).tolist():
            yield batches[index].tolist()


"""
DYNAMIC = LOADERS.replace("shuffle=True)", "shuffle=True, collate_fn=trimmed)").replace(
    "val_dataset, batch_size=16)", "val_dataset, batch_size=16, collate_fn=trimmed)"
)
BUCKETS = DYNAMIC.replace(
    "batch_size=16, shuffle=True,",
    "batch_sampler=SimilarLengths(torch.tensor([sum(m) for m in train_encodings['attention_mask']]), 16),",
)

CHANGES = (
    Change("batches padded to their own length", "padding", edits={LOADERS: COLLATE.lstrip("\n") + DYNAMIC}),
    Change(
        "batches of similar length, padded to it",
        "padding",
        edits={LOADERS: COLLATE.lstrip("\n") + SIMILAR.lstrip("\n") + BUCKETS},
    ),
    Change(
        "whole batches of tensors",
        "batch_whole",
        edits={
            "        self.encodings = encodings\n": ""
            "        self.encodings = encodings\n"
            "        self.tensors = {key: torch.tensor(val) for key, val in encodings.items()}\n",
            "    def __len__(self):\n        return len(self.encodings.input_ids)\n": ""
            "    def __getitems__(self, indices):\n"
            "        return {key: val[indices] for key, val in self.tensors.items()}\n\n"
            "    def __len__(self):\n        return len(self.encodings.input_ids)\n",
            LOADERS: LOADERS.replace("shuffle=True)", "shuffle=True, collate_fn=lambda batch: batch)").replace(
                "val_dataset, batch_size=16)", "val_dataset, batch_size=16, collate_fn=lambda batch: batch)"
            ),
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        outputs = model(input_ids, attention_mask=attention_mask, start_positions=start_positions,\n"
            "                        end_positions=end_positions)\n"
            "        loss = outputs[0]\n": ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            outputs = model(input_ids, attention_mask=attention_mask, start_positions=start_positions,\n"
            "                            end_positions=end_positions)\n"
            "            loss = outputs[0]\n"
        },
    ),
    Change(
        "batches of 32",
        "larger_batch",
        edits={"train_dataset, batch_size=16, shuffle=True)": "train_dataset, batch_size=32, shuffle=True)"},
    ),
    Change(
        "two workers",
        "num_workers",
        edits={"batch_size=16, shuffle=True)": "batch_size=16, shuffle=True, num_workers=2)"},
    ),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=0.01)": "weight_decay=0.01, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="examples", seconds=7)
