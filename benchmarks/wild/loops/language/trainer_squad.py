"""Extractive question answering with the Trainer: encodings padded to the longest text in a torch Dataset, as in the custom datasets guide."""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

SYLLABLES = [
    "ba",
    "ce",
    "di",
    "fo",
    "gu",
    "la",
    "me",
    "ni",
    "po",
    "ru",
    "sa",
    "te",
    "vi",
    "xo",
    "zu",
    "an",
    "er",
    "ist",
    "ol",
    "um",
]


def write_squad(path: Path, words: np.ndarray, paragraphs: int, rng: np.random.Generator) -> None:
    """Articles with paragraphs of different length and four questions each, in the format of SQuAD."""
    data = []
    for _ in range(paragraphs):
        length = int(np.clip(rng.lognormal(4.6, 0.4), 40, 300))
        text = words[np.minimum(rng.zipf(1.3, length) - 1, len(words) - 1)].tolist()
        questions = []
        for _ in range(4):
            first = int(rng.integers(1, length - 6))
            last = first + int(rng.integers(1, 4))
            start = len(" ".join(text[:first])) + 1
            answer = {"text": " ".join(text[first:last]), "answer_start": start}
            question = "what comes after " + " ".join(text[max(0, first - 5) : first]) + " ?"
            questions.append({"question": question, "answers": [answer]})
        data.append({"paragraphs": [{"context": " ".join(text), "qas": questions}]})
    path.write_text(json.dumps({"data": data}))


def prepare(scale: float) -> Namespace:
    """Two files of questions about paragraphs, and a tokenizer whose vocabulary is that of the paragraphs."""
    rng = np.random.default_rng(0)
    words = np.array(sorted({"".join(rng.choice(SYLLABLES, rng.integers(1, 5))) for _ in range(6000)}))
    rng.shuffle(words)
    Path("squad").mkdir()
    write_squad(Path("squad/train-v2.0.json"), words, scaled(80, scale, 4), rng)
    write_squad(Path("squad/dev-v2.0.json"), words, scaled(10, scale), rng)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: i for i, word in enumerate([*specials, "what", "comes", "after", "?", *words.tolist()])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=384,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    fast.save_pretrained("squad-tokenizer")
    return {}


CELL = """
import json
import numpy as np
import torch
from pathlib import Path
from transformers import (DistilBertConfig, DistilBertForQuestionAnswering, PreTrainedTokenizerFast, Trainer,
                          TrainingArguments)

def read_squad(path):
    path = Path(path)
    with open(path, 'rb') as f:
        squad_dict = json.load(f)
    contexts, questions, answers = [], [], []
    for group in squad_dict['data']:
        for passage in group['paragraphs']:
            context = passage['context']
            for qa in passage['qas']:
                question = qa['question']
                for answer in qa['answers']:
                    contexts.append(context)
                    questions.append(question)
                    answers.append(answer)
    return contexts, questions, answers

train_contexts, train_questions, train_answers = read_squad('squad/train-v2.0.json')
val_contexts, val_questions, val_answers = read_squad('squad/dev-v2.0.json')

def add_end_idx(answers, contexts):
    for answer, context in zip(answers, contexts):
        gold_text = answer['text']
        start_idx = answer['answer_start']
        end_idx = start_idx + len(gold_text)
        # sometimes squad answers are off by a character or two
        if context[start_idx:end_idx] == gold_text:
            answer['answer_end'] = end_idx
        elif context[start_idx-1:end_idx-1] == gold_text:
            answer['answer_start'] = start_idx - 1
            answer['answer_end'] = end_idx - 1

add_end_idx(train_answers, train_contexts)
add_end_idx(val_answers, val_contexts)

tokenizer = PreTrainedTokenizerFast.from_pretrained('squad-tokenizer')
train_encodings = tokenizer(train_contexts, train_questions, truncation=True, padding=True)
val_encodings = tokenizer(val_contexts, val_questions, truncation=True, padding=True)

def add_token_positions(encodings, answers):
    start_positions = []
    end_positions = []
    for i in range(len(answers)):
        start_positions.append(encodings.char_to_token(i, answers[i]['answer_start']))
        end_positions.append(encodings.char_to_token(i, answers[i]['answer_end'] - 1))
        # if None, the answer passage has been truncated
        if start_positions[-1] is None:
            start_positions[-1] = tokenizer.model_max_length
        if end_positions[-1] is None:
            end_positions[-1] = tokenizer.model_max_length
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

def compute_metrics(pred):
    start, end = pred.predictions[0].argmax(-1), pred.predictions[1].argmax(-1)
    start_true, end_true = pred.label_ids
    return {'exact_match': float(np.mean((start == start_true) & (end == end_true)))}

config = DistilBertConfig(vocab_size=len(tokenizer), max_position_embeddings=512, dim=128, n_layers=3, n_heads=4,
                          hidden_dim=512)
model = DistilBertForQuestionAnswering(config)

training_args = TrainingArguments(
    output_dir='./results',
    num_train_epochs=1,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=16,
    warmup_steps=10,
    learning_rate=5e-4,
    weight_decay=0.01,
    logging_steps=10,
    eval_strategy='epoch',
    report_to='none',
)

trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=train_dataset,
    eval_dataset=val_dataset,
    compute_metrics=compute_metrics,
)
result = trainer.train()
print(trainer.evaluate())
"""

CHANGES = (
    Change(
        "batches padded to their own longest text",
        "padding",
        edits={
            "train_contexts, train_questions, truncation=True, padding=True)": "train_contexts, train_questions, truncation=True)",
            "val_contexts, val_questions, truncation=True, padding=True)": "val_contexts, val_questions, truncation=True)",
            "    eval_dataset=val_dataset,\n": "    eval_dataset=val_dataset,\n    processing_class=tokenizer,\n",
        },
    ),
    Change(
        "own padding, and texts of similar length together",
        "padding",
        edits={
            "train_contexts, train_questions, truncation=True, padding=True)": "train_contexts, train_questions, truncation=True)",
            "val_contexts, val_questions, truncation=True, padding=True)": "val_contexts, val_questions, truncation=True)",
            "    eval_dataset=val_dataset,\n": "    eval_dataset=val_dataset,\n    processing_class=tokenizer,\n",
            "    report_to='none',\n": "    report_to='none',\n    train_sampling_strategy='group_by_length',\n",
        },
    ),
    Change(
        "encodings as tensors, rows by index",
        "vectorize_items",
        edits={
            "        self.encodings = encodings\n": "        self.encodings = encodings\n"
            "        self.tensors = {key: torch.tensor(val) for key, val in encodings.items()}\n",
            "{key: torch.tensor(val[idx]) for key, val in self.encodings.items()}": ""
            "{key: val[idx] for key, val in self.tensors.items()}",
        },
    ),
    Change(
        "batches of 16",
        "larger_batch",
        edits={"per_device_train_batch_size=8": "per_device_train_batch_size=16"},
    ),
    Change(
        "bf16",
        "precision",
        edits={
            "    report_to='none',\n": "    report_to='none',\n    bf16=True,\n    use_cpu=not torch.cuda.is_available(),\n"
        },
    ),
    Change(
        "two workers",
        "num_workers",
        edits={"    report_to='none',\n": "    report_to='none',\n    dataloader_num_workers=2,\n"},
    ),
)

LOOP = Loop(
    __doc__,
    prepare,
    CELL,
    CHANGES,
    samples="len(train_dataset) * round(trainer.state.epoch)",
    loss="result.training_loss",
    seconds=7,
)
