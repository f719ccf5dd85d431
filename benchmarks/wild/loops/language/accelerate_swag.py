"""Multiple choice on SWAG-like endings with Accelerate; the collator flattens and pads lists, as in run_swag_no_trainer."""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

SYLLABLES = [
    "ta",
    "ke",
    "li",
    "mo",
    "nu",
    "ra",
    "se",
    "ti",
    "vo",
    "wu",
    "ja",
    "pe",
    "qi",
    "so",
    "yu",
    "en",
    "ar",
    "ing",
    "oth",
    "is",
]


def write_questions(path: Path, words: np.ndarray, count: int, rng: np.random.Generator) -> None:
    """Beginnings with four endings each, one JSON object per line."""
    with path.open("w") as file:
        for _ in range(count):
            lengths = np.clip(rng.lognormal([2.6, 0.8, 2.2, 2.2, 2.2, 2.2], 0.45), 2, 40).astype(int)
            texts = [" ".join(words[np.minimum(rng.zipf(1.4, n) - 1, len(words) - 1)]) for n in lengths]
            row = {"sent1": texts[0], "sent2": texts[1], "label": int(rng.integers(4))}
            row |= {f"ending{i}": text for i, text in enumerate(texts[2:])}
            file.write(json.dumps(row) + "\n")


def prepare(scale: float) -> Namespace:
    """Files of questions and a tokenizer for them."""
    rng = np.random.default_rng(0)
    words = np.array(sorted({"".join(rng.choice(SYLLABLES, rng.integers(1, 5))) for _ in range(8000)}))
    rng.shuffle(words)
    write_questions(Path("train.json"), words, scaled(240, scale, 16), rng)
    write_questions(Path("validation.json"), words, scaled(64, scale, 8), rng)
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words.tolist()])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained("swag-tokenizer")
    return {}


CELL = """
import json
import logging
import math
import os
from dataclasses import dataclass
from itertools import chain

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm
from transformers import (BertConfig, BertForMultipleChoice, PreTrainedTokenizerBase, PreTrainedTokenizerFast,
                          get_scheduler)

logger = logging.getLogger(__name__)

train_file, validation_file = 'train.json', 'validation.json'
max_seq_length = 128
per_device_train_batch_size = 8
per_device_eval_batch_size = 8
learning_rate, weight_decay = 5e-4, 0.01
num_train_epochs, gradient_accumulation_steps, num_warmup_steps = 2, 1, 0
output_dir = 'swag-out'

@dataclass
class DataCollatorForMultipleChoice:
    tokenizer: PreTrainedTokenizerBase
    padding: bool = True

    def __call__(self, features):
        labels = [feature.pop('labels') for feature in features]
        batch_size = len(features)
        num_choices = len(features[0]['input_ids'])
        flattened_features = [
            [{k: v[i] for k, v in feature.items()} for i in range(num_choices)] for feature in features
        ]
        flattened_features = list(chain(*flattened_features))
        batch = self.tokenizer.pad(flattened_features, padding=self.padding, return_tensors='pt')
        # Un-flatten
        batch = {k: v.view(batch_size, num_choices, -1) for k, v in batch.items()}
        # Add back labels
        batch['labels'] = torch.tensor(labels, dtype=torch.int64)
        return batch

class SwagDataset(Dataset):
    def __init__(self, path, tokenizer):
        with open(path) as f:
            examples = [json.loads(line) for line in f]
        ending_names = [f'ending{i}' for i in range(4)]
        first_sentences = list(chain(*[[example['sent1']] * 4 for example in examples]))
        second_sentences = list(chain(*[[f"{example['sent2']} {example[end]}" for end in ending_names]
                                        for example in examples]))
        tokenized_examples = tokenizer(first_sentences, second_sentences, max_length=max_seq_length, padding=False,
                                       truncation=True)
        # Un-flatten
        self.data = {k: [v[i:i + 4] for i in range(0, len(v), 4)] for k, v in tokenized_examples.items()}
        self.data['labels'] = [example['label'] for example in examples]

    def __len__(self):
        return len(self.data['labels'])

    def __getitem__(self, i):
        return {k: v[i] for k, v in self.data.items()}

accelerator = Accelerator(gradient_accumulation_steps=gradient_accumulation_steps)
set_seed(42)

tokenizer = PreTrainedTokenizerFast.from_pretrained('swag-tokenizer')
config = BertConfig(vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
                    intermediate_size=512)
model = BertForMultipleChoice(config)

train_dataset = SwagDataset(train_file, tokenizer)
eval_dataset = SwagDataset(validation_file, tokenizer)
data_collator = DataCollatorForMultipleChoice(tokenizer)
train_dataloader = DataLoader(train_dataset, shuffle=True, collate_fn=data_collator,
                              batch_size=per_device_train_batch_size)
eval_dataloader = DataLoader(eval_dataset, collate_fn=data_collator, batch_size=per_device_eval_batch_size)

# Split weights in two groups, one with weight decay and the other not.
no_decay = ['bias', 'LayerNorm.weight']
optimizer_grouped_parameters = [
    {'params': [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
     'weight_decay': weight_decay},
    {'params': [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)],
     'weight_decay': 0.0},
]
optimizer = torch.optim.AdamW(optimizer_grouped_parameters, lr=learning_rate)

num_update_steps_per_epoch = math.ceil(len(train_dataloader) / gradient_accumulation_steps)
max_train_steps = num_train_epochs * num_update_steps_per_epoch
lr_scheduler = get_scheduler(name='linear', optimizer=optimizer, num_warmup_steps=num_warmup_steps,
                             num_training_steps=max_train_steps)

model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
)

logger.info('***** Running training *****')
progress_bar = tqdm(range(max_train_steps), disable=not accelerator.is_local_main_process)
completed_steps, samples_seen = 0, 0

for epoch in range(num_train_epochs):
    model.train()
    total_loss = 0
    for step, batch in enumerate(train_dataloader):
        with accelerator.accumulate(model):
            outputs = model(**batch)
            loss = outputs.loss
            # We keep track of the loss at each epoch
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

        samples_seen += len(batch['labels'])
        if accelerator.sync_gradients:
            progress_bar.update(1)
            completed_steps += 1

    model.eval()
    correct, total = 0, 0
    for step, batch in enumerate(eval_dataloader):
        with torch.no_grad():
            outputs = model(**batch)
        predictions = outputs.logits.argmax(dim=-1)
        predictions, references = accelerator.gather_for_metrics((predictions, batch['labels']))
        correct += (predictions == references).sum().item()
        total += len(references)
    accelerator.print(f'epoch {epoch}: accuracy {correct / total:.4f}, train loss '
                      f'{total_loss.item() / len(train_dataloader):.4f}')

accelerator.wait_for_everyone()
unwrapped_model = accelerator.unwrap_model(model)
unwrapped_model.save_pretrained(output_dir, is_main_process=accelerator.is_main_process,
                                save_function=accelerator.save)
if accelerator.is_main_process:
    with open(os.path.join(output_dir, 'all_results.json'), 'w') as f:
        json.dump({'eval_accuracy': correct / total}, f)
"""

LOADER = CELL[CELL.index("train_dataloader = DataLoader(") : CELL.index("eval_dataloader = DataLoader(")]
SIMILAR = """import random

class SimilarLengths(torch.utils.data.Sampler):
    def __init__(self, dataset, batch_size):
        self.lengths, self.batch_size = [max(map(len, ids)) for ids in dataset.data['input_ids']], batch_size

    def __len__(self):
        return math.ceil(len(self.lengths) / self.batch_size)

    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=lambda i: self.lengths[i] + random.random())
        batches = [order[i:i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        random.shuffle(batches)
        return iter(batches)

train_dataloader = DataLoader(train_dataset, collate_fn=data_collator,
                              batch_sampler=SimilarLengths(train_dataset, per_device_train_batch_size))
"""

FLATTENING = CELL[CELL.index("        flattened_features = [\n") : CELL.index("        # Add back labels\n")]
TENSORS = """        rows = [torch.tensor(ids) for feature in features for ids in feature['input_ids']]
        input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.tokenizer.pad_token_id)
        types = [torch.tensor(ids) for feature in features for ids in feature['token_type_ids']]
        token_type_ids = torch.nn.utils.rnn.pad_sequence(types, batch_first=True)
        batch = {'input_ids': input_ids, 'token_type_ids': token_type_ids,
                 'attention_mask': (input_ids != self.tokenizer.pad_token_id).long()}
        batch = {k: v.view(batch_size, num_choices, -1) for k, v in batch.items()}
"""

CHANGES = (
    Change("batches of similar length", "padding", edits={LOADER: SIMILAR}),
    Change("padding with pad_sequence", "batch_whole", edits={FLATTENING: TENSORS}),
    Change(
        "batches of 16",
        "larger_batch",
        edits={"per_device_train_batch_size = 8": "per_device_train_batch_size = 16"},
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "            outputs = model(**batch)\n            loss = outputs.loss\n": ""
            "            with torch.autocast(accelerator.device.type, dtype=torch.bfloat16):\n"
            "                outputs = model(**batch)\n"
            "            loss = outputs.loss\n"
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"lr=learning_rate)": "lr=learning_rate, fused=True)"}),
    Change(
        "two workers",
        "num_workers",
        edits={"shuffle=True, collate_fn=data_collator,": "shuffle=True, collate_fn=data_collator, num_workers=2,"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="samples_seen", seconds=7)
