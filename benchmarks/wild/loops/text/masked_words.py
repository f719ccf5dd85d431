"""A small RoBERTa pretrained from scratch on masked words with Accelerate, in the manner of run_mlm_no_trainer."""

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Lines of made-up words with a Zipf distribution, and a tokenizer of whole words."""
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(9_990)]
    vocabulary = {word: index for index, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *words])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
        mask_token="<mask>",
    )  # fmt: skip
    ranks = np.minimum(rng.zipf(1.25, size=(scaled(960, scale, 16), 62)), 9_989)
    return {"tokenizer": tokenizer, "lines": [" ".join(words[rank] for rank in row) for row in ranks]}


CELL = """
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling, RobertaConfig, RobertaForMaskedLM, get_scheduler

set_seed(42)
accelerator = Accelerator()
raw = Dataset.from_dict({'text': lines})

def tokenize_function(examples):
    texts = ['<s> ' + line + ' </s>' for line in examples['text']]
    return tokenizer(texts, truncation=True, max_length=64, return_special_tokens_mask=True)

tokenized = raw.map(tokenize_function, batched=True, remove_columns=['text'])
data_collator = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=0.15)
per_device_train_batch_size = 16
train_dataloader = DataLoader(
    tokenized, shuffle=True, collate_fn=data_collator, batch_size=per_device_train_batch_size)

config = RobertaConfig(
    vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512,
    max_position_embeddings=80, pad_token_id=tokenizer.pad_token_id)
model = RobertaForMaskedLM(config)
no_decay = ['bias', 'LayerNorm.weight']
grouped = [
    {'params': [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], 'weight_decay': 0.01},
    {'params': [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], 'weight_decay': 0.0},
]
optimizer = torch.optim.AdamW(grouped, lr=5e-4)
lr_scheduler = get_scheduler('linear', optimizer, num_warmup_steps=5, num_training_steps=len(train_dataloader))
model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, lr_scheduler)

completed, total_loss = 0, 0
model.train()
for step, batch in enumerate(train_dataloader):
    batch.pop('token_type_ids', None)
    outputs = model(**batch)
    loss = outputs.loss
    total_loss += loss.detach().float()
    accelerator.backward(loss)
    optimizer.step()
    lr_scheduler.step()
    optimizer.zero_grad()
    completed += batch['input_ids'].shape[0]
    if step % 20 == 0:
        accelerator.print(f'step {step}: perplexity {torch.exp(loss.detach()).item():.1f}')
accelerator.print('train loss', total_loss.item() / len(train_dataloader))
"""

CHANGES = (
    Change(
        "scores of the masked words only",
        "selected_positions",
        edits={
            "    outputs = model(**batch)\n    loss = outputs.loss\n": """    labels = batch.pop('labels')
    hidden = model.roberta(**batch)[0]
    chosen = labels != -100
    loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[chosen]), labels[chosen])
"""
        },
    ),
    Change(
        "bfloat16",
        "precision",
        edits={
            "    outputs = model(**batch)\n": "    with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "        outputs = model(**batch)\n"
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"lr=5e-4)": "lr=5e-4, fused=True)"}),
    Change(
        "two workers",
        "num_workers",
        edits={"batch_size=per_device_train_batch_size)": "batch_size=per_device_train_batch_size, num_workers=2)"},
    ),
    Change(
        "batches of 48",
        "larger_batch",
        edits={"per_device_train_batch_size = 16": "per_device_train_batch_size = 48"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="completed", seconds=7)
