"""The transformers Trainer on a small GPT-2 with tiny batches, accumulation, gradient checkpointing and frequent logs."""

import logging

import torch
from accelerate.state import AcceleratorState
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Blocks of token ids and a model built from a configuration."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    AcceleratorState._reset_state(True)  # another run in this process may have had another precision
    config = GPT2Config(vocab_size=2000, n_positions=64, n_embd=96, n_layer=3, n_head=4)
    blocks = torch.randint(0, 2000, (scaled(480, scale, 16), 64)).tolist()
    return {"blocks": blocks, "model": GPT2LMHeadModel(config)}


CELL = """
from datasets import Dataset
from transformers import Trainer, TrainingArguments, default_data_collator

train_dataset = Dataset.from_dict({'input_ids': blocks, 'labels': blocks})

training_args = TrainingArguments(
    output_dir='gpt2-finetuned',
    num_train_epochs=1,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    gradient_checkpointing=True,
    learning_rate=2e-4,
    weight_decay=0.01,
    logging_steps=1,
    save_strategy='no',
    report_to='none',
)

trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=train_dataset,
    data_collator=default_data_collator,
)
result = trainer.train()
print(result)
"""

CHANGES = (
    Change(
        "batches of 16 without accumulation",
        "larger_batch",
        edits={
            "per_device_train_batch_size=2,": "per_device_train_batch_size=16,",
            "gradient_accumulation_steps=8": "gradient_accumulation_steps=1",
        },
    ),
    Change(
        "no gradient checkpointing",
        "checkpointing_off",
        edits={"gradient_checkpointing=True": "gradient_checkpointing=False"},
    ),
    Change("log every twentieth step", "fewer_logs", edits={"logging_steps=1,": "logging_steps=20,"}),
    Change("bf16", "precision", edits={"learning_rate=2e-4": "bf16=True,\n    use_cpu=True,\n    learning_rate=2e-4"}),
    Change(
        "two workers", "num_workers", edits={"learning_rate=2e-4": "dataloader_num_workers=2,\n    learning_rate=2e-4"}
    ),
)

LOOP = Loop(
    __doc__,
    prepare,
    CELL,
    CHANGES,
    samples="trainer.state.global_step * 16",
    loss="result.training_loss",
    seconds=6,
)
