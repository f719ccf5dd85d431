"""A reward model on pairs of answers with a Trainer subclass that scores chosen and rejected one after the other."""

import logging

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A word-level tokenizer, and questions with a better and a worse answer of very different lengths."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    vocab = {token: index for index, token in enumerate(["[PAD]", "[UNK]", *(f"w{k}" for k in range(4998))])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")
    rng = np.random.default_rng(0)

    def text(mean: float) -> str:
        length = int(np.clip(rng.lognormal(np.log(mean), 0.7), 4, 110))
        return " ".join(f"w{k}" for k in np.minimum(rng.zipf(1.3, length), 4997))

    count = scaled(512, scale, 32)
    rows = [{"question": text(20), "response_j": text(45), "response_k": text(40)} for _ in range(count)]
    return {"tokenizer": tokenizer, "rows": rows}


CELL = """
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Union

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler
from transformers import GPT2Config, GPT2ForSequenceClassification, PreTrainedTokenizerBase, Trainer, TrainingArguments


@dataclass
class ScriptArguments:
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 1
    learning_rate: float = 1e-4
    weight_decay: float = 0.001
    max_length: int = 256
    bf16: bool = False
    num_workers: int = 0


script_args = ScriptArguments()


def preprocess_function(examples):
    new_examples = {'input_ids_j': [], 'attention_mask_j': [], 'input_ids_k': [], 'attention_mask_k': []}
    for ex in examples:
        tokenized_j = tokenizer('Question: ' + ex['question'] + ' Answer: ' + ex['response_j'], truncation=True,
                                max_length=script_args.max_length)
        tokenized_k = tokenizer('Question: ' + ex['question'] + ' Answer: ' + ex['response_k'], truncation=True,
                                max_length=script_args.max_length)
        new_examples['input_ids_j'].append(tokenized_j['input_ids'])
        new_examples['attention_mask_j'].append(tokenized_j['attention_mask'])
        new_examples['input_ids_k'].append(tokenized_k['input_ids'])
        new_examples['attention_mask_k'].append(tokenized_k['attention_mask'])
    return [dict(zip(new_examples, values)) for values in zip(*new_examples.values())]


train_dataset = preprocess_function(rows)

config = GPT2Config(vocab_size=len(tokenizer), n_positions=256, n_embd=128, n_layer=3, n_head=4, num_labels=1,
                    pad_token_id=tokenizer.pad_token_id, bos_token_id=0, eos_token_id=0)
model = GPT2ForSequenceClassification(config)
model.config.use_cache = False


# We need to define a special data collator that batches the data in our j vs k format.
@dataclass
class RewardDataCollatorWithPadding:
    tokenizer: PreTrainedTokenizerBase
    padding: Union[bool, str] = True
    max_length: Optional[int] = None
    return_tensors: str = 'pt'

    def __call__(self, features: List[Dict[str, Any]]) -> Dict[str, Any]:
        features_j = []
        features_k = []
        for feature in features:
            features_j.append({'input_ids': feature['input_ids_j'], 'attention_mask': feature['attention_mask_j']})
            features_k.append({'input_ids': feature['input_ids_k'], 'attention_mask': feature['attention_mask_k']})
        batch_j = self.tokenizer.pad(features_j, padding=self.padding, return_tensors=self.return_tensors)
        batch_k = self.tokenizer.pad(features_k, padding=self.padding, return_tensors=self.return_tensors)
        return {
            'input_ids_j': batch_j['input_ids'],
            'attention_mask_j': batch_j['attention_mask'],
            'input_ids_k': batch_k['input_ids'],
            'attention_mask_k': batch_k['attention_mask'],
            'return_loss': True,
        }


class RewardTrainer(Trainer):
    def get_train_dataloader(self):
        return DataLoader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            sampler=RandomSampler(self.train_dataset),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
        )

    # Define how to compute the reward loss. We use the InstructGPT pairwise logloss.
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        rewards_j = model(input_ids=inputs['input_ids_j'], attention_mask=inputs['attention_mask_j'])[0]
        rewards_k = model(input_ids=inputs['input_ids_k'], attention_mask=inputs['attention_mask_k'])[0]
        loss = -nn.functional.logsigmoid(rewards_j - rewards_k).mean()
        if return_outputs:
            return loss, {'rewards_j': rewards_j, 'rewards_k': rewards_k}
        return loss


training_args = TrainingArguments(
    output_dir='reward_model',
    learning_rate=script_args.learning_rate,
    per_device_train_batch_size=script_args.per_device_train_batch_size,
    num_train_epochs=1,
    weight_decay=script_args.weight_decay,
    save_strategy='no',
    gradient_accumulation_steps=script_args.gradient_accumulation_steps,
    use_cpu=not torch.cuda.is_available(),
    remove_unused_columns=False,
    label_names=[],
    bf16=script_args.bf16,
    logging_strategy='steps',
    logging_steps=10,
    lr_scheduler_type='linear',
    dataloader_num_workers=script_args.num_workers,
    report_to='none',
)

trainer = RewardTrainer(
    model=model,
    args=training_args,
    train_dataset=train_dataset,
    data_collator=RewardDataCollatorWithPadding(tokenizer=tokenizer, max_length=script_args.max_length),
)
result = trainer.train()
n_pairs = trainer.state.global_step * script_args.per_device_train_batch_size
print('Saving last checkpoint of the model')
model.save_pretrained('reward_model_peft_last_checkpoint')
"""

_TWICE = """        rewards_j = model(input_ids=inputs['input_ids_j'], attention_mask=inputs['attention_mask_j'])[0]
        rewards_k = model(input_ids=inputs['input_ids_k'], attention_mask=inputs['attention_mask_k'])[0]
"""
_ONCE = """        rewards = model(input_ids=inputs['input_ids'], attention_mask=inputs['attention_mask'])[0]
        rewards_j, rewards_k = rewards.chunk(2)
"""
_COLLATE = CELL[CELL.index("        batch_j = self.tokenizer.pad(") : CELL.index("            'return_loss': True,\n")]
_COLLATE_ONCE = """        batch = self.tokenizer.pad(features_j + features_k, padding=self.padding, return_tensors=self.return_tensors)
        return {
            'input_ids': batch['input_ids'],
            'attention_mask': batch['attention_mask'],
"""
_GROUPED = """            sampler=LengthGroupedSampler(
                self.args.train_batch_size,
                lengths=[len(row['input_ids_j']) + len(row['input_ids_k']) for row in self.train_dataset],
            ),
"""
_LIBRARY = "from torch.utils.data import DataLoader, RandomSampler\n"

CHANGES = (
    Change("one forward pass for both", "other", edits={_TWICE: _ONCE, _COLLATE: _COLLATE_ONCE}),
    Change(
        "pairs of similar length",
        "padding",
        edits={
            "            sampler=RandomSampler(self.train_dataset),\n": _GROUPED,
            _LIBRARY: _LIBRARY + "from transformers.trainer_pt_utils import LengthGroupedSampler\n",
        },
    ),
    Change("bf16", "precision", edits={"bf16: bool = False": "bf16: bool = True"}),
    Change("two workers", "num_workers", edits={"num_workers: int = 0": "num_workers: int = 2"}),
    Change("log every hundredth step", "fewer_logs", edits={"logging_steps=10,": "logging_steps=100,"}),
    Change(
        "batches of 8 pairs",
        "larger_batch",
        edits={"per_device_train_batch_size: int = 4": "per_device_train_batch_size: int = 8"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_pairs", loss="result.training_loss", seconds=10)
