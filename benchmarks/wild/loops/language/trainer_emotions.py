"""Eleven emotions of tweets, several per tweet, by a small BERT in the Hugging Face Trainer, as in multi-label notebooks."""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

EMOTIONS = [
    "anger",
    "anticipation",
    "disgust",
    "fear",
    "joy",
    "love",
    "optimism",
    "pessimism",
    "sadness",
    "surprise",
    "trust",
]


def prepare(scale: float) -> Namespace:
    """Tweets with columns of emotions in two CSV files, and a small BERT with its WordPiece vocabulary in a folder."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    rng = np.random.default_rng(0)
    syllables = ["ka", "to", "mi", "re", "lu", "sha", "be", "or", "in", "fe", "da", "no", "wi", "chi", "su", "ta"]
    words = ["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(4000)]
    weights = 1 / np.arange(12, len(words) + 12)
    weights /= weights.sum()
    keys = rng.choice(words, (len(EMOTIONS), 10))
    frequency = rng.uniform(0.06, 0.35, len(EMOTIONS))

    def frame(count: int) -> pd.DataFrame:
        rows = []
        for index in range(count):
            flags = rng.random(len(EMOTIONS)) < frequency
            tweet = rng.choice(words, int(np.clip(rng.gamma(5, 2.6), 3, 30)), p=weights).tolist()
            for emotion in np.flatnonzero(flags):
                tweet.insert(int(rng.integers(len(tweet) + 1)), str(rng.choice(keys[emotion])))
            if rng.random() < 0.4:
                tweet.append("#" + str(rng.choice(words)))
            rows.append([f"2018-En-{index:05d}", " ".join(tweet) + str(rng.choice(["", "!", " ...", "?"])), *flags])
        return pd.DataFrame(rows, columns=["ID", "Tweet", *EMOTIONS])

    Path("data").mkdir()
    frame(scaled(320, scale, 16)).to_csv("data/train.csv", index=False)
    frame(scaled(80, scale, 8)).to_csv("data/validation.csv", index=False)

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *"abcdefghijklmnopqrstuvwxyz#!?.", *syllables, *("##" + s for s in syllables), *words[:1500]]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained("bert_uncased_L-2_H-256")
    BertModel(
        BertConfig(
            vocab_size=len(vocab),
            hidden_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=1024,
        )
    ).save_pretrained("bert_uncased_L-2_H-256")
    return {}


CELL = """
import numpy as np
import pandas as pd
import torch
from datasets import Dataset, DatasetDict
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from transformers import (AutoModelForSequenceClassification, AutoTokenizer, EvalPrediction, Trainer,
                          TrainingArguments)

checkpoint = "bert_uncased_L-2_H-256"
batch_size = 8
metric_name = "f1"

dataset = DatasetDict({
    split: Dataset.from_pandas(pd.read_csv(f"data/{split}.csv")) for split in ["train", "validation"]
})
labels = [name for name in dataset["train"].features.keys() if name not in ["ID", "Tweet"]]
id2label = {idx: label for idx, label in enumerate(labels)}
label2id = {label: idx for idx, label in enumerate(labels)}

tokenizer = AutoTokenizer.from_pretrained(checkpoint)

def encode(examples):
    # tokenize the whole batch of tweets
    encoding = tokenizer(examples["Tweet"], padding="max_length", truncation=True, max_length=128)
    # one row of zeros and ones per tweet
    targets = np.zeros((len(examples["Tweet"]), len(labels)))
    for idx, label in enumerate(labels):
        targets[:, idx] = examples[label]
    encoding["labels"] = targets.tolist()
    return encoding

encoded_dataset = dataset.map(encode, batched=True, remove_columns=dataset["train"].column_names)
encoded_dataset.set_format("torch")

example = encoded_dataset["train"][0]
print(tokenizer.decode(example["input_ids"], skip_special_tokens=True))
print([id2label[idx] for idx, flag in enumerate(example["labels"]) if flag == 1.0])

model = AutoModelForSequenceClassification.from_pretrained(
    checkpoint,
    problem_type="multi_label_classification",
    num_labels=len(labels),
    id2label=id2label,
    label2id=label2id,
)

args = TrainingArguments(
    "bert-finetuned-tweet-emotions",
    eval_strategy="epoch",
    save_strategy="epoch",
    learning_rate=2e-4,
    per_device_train_batch_size=batch_size,
    per_device_eval_batch_size=batch_size,
    num_train_epochs=2,
    weight_decay=0.01,
    logging_steps=10,
    load_best_model_at_end=True,
    metric_for_best_model=metric_name,
    report_to="none",
)

def multi_label_metrics(logits, y_true, threshold=0.5):
    probs = torch.sigmoid(torch.Tensor(logits)).numpy()
    y_pred = np.zeros(probs.shape)
    y_pred[np.where(probs >= threshold)] = 1
    return {
        "f1": f1_score(y_true=y_true, y_pred=y_pred, average="micro", zero_division=0),
        "roc_auc": roc_auc_score(y_true, probs, average="micro"),
        "accuracy": accuracy_score(y_true, y_pred),
    }

def compute_metrics(p: EvalPrediction):
    preds = p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions
    return multi_label_metrics(preds, p.label_ids)

trainer = Trainer(
    model,
    args,
    train_dataset=encoded_dataset["train"],
    eval_dataset=encoded_dataset["validation"],
    processing_class=tokenizer,
    compute_metrics=compute_metrics,
)

train_result = trainer.train()
print(trainer.evaluate())

# what does the model say about a new tweet?
text = dataset["validation"][0]["Tweet"]
encoding = tokenizer(text, return_tensors="pt")
encoding = {k: v.to(trainer.model.device) for k, v in encoding.items()}
outputs = trainer.model(**encoding)
probs = torch.sigmoid(outputs.logits.squeeze().cpu())
predicted_labels = [id2label[idx] for idx, prob in enumerate(probs.tolist()) if prob >= 0.5]
print(text, predicted_labels)
"""

PADDED = 'padding="max_length", truncation=True'

CHANGES = (
    Change("padding to the longest of the batch", "padding", edits={PADDED: "truncation=True"}),
    Change(
        "batches of similar length",
        "padding",
        edits={
            PADDED: "truncation=True",
            "    weight_decay=0.01,\n": '    weight_decay=0.01,\n    train_sampling_strategy="group_by_length",\n',
        },
    ),
    Change("batches of 32", "larger_batch", edits={"batch_size = 8": "batch_size = 32"}),
    Change(
        "bfloat16",
        "precision",
        edits={
            "    weight_decay=0.01,\n": "    weight_decay=0.01,\n    bf16=True,\n    use_cpu=not torch.cuda.is_available(),\n"
        },
    ),
    Change(
        "two workers",
        "num_workers",
        edits={"    weight_decay=0.01,\n": "    weight_decay=0.01,\n    dataloader_num_workers=2,\n"},
    ),
    Change(
        "checkpoints without the optimizer",
        "fewer_logs",
        edits={"    weight_decay=0.01,\n": "    weight_decay=0.01,\n    save_only_model=True,\n"},
    ),
    Change(
        "evaluation in batches of 64",
        "other",
        edits={"per_device_eval_batch_size=batch_size": "per_device_eval_batch_size=64"},
    ),
)

LOOP = Loop(
    __doc__,
    prepare,
    CELL,
    CHANGES,
    samples='round(trainer.state.epoch * len(encoded_dataset["train"]))',
    loss="train_result.training_loss",
    seconds=8,
)
