"""Masked language modelling from scratch with the Trainer, as in the "how to train a new language model" tutorial."""

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def prepare(scale: float) -> Namespace:
    """A word-level tokenizer, and blocks of 64 token ids as `group_texts` makes them."""
    vocab = {token: index for index, token in enumerate([*SPECIAL, *(f"w{k}" for k in range(11_995))])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    rng = np.random.default_rng(0)
    blocks = np.minimum(rng.zipf(1.3, (scaled(352, scale, 32), 64)) + 4, 11_999)
    return {"tokenizer": tokenizer, "blocks": blocks.tolist()}


CELL = """
from datasets import Dataset
from transformers import BertConfig, BertForMaskedLM
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

lm_dataset = Dataset.from_dict({'input_ids': blocks, 'attention_mask': [[1] * len(b) for b in blocks]})

config = BertConfig(
    vocab_size=tokenizer.vocab_size,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=128,
)
model = BertForMaskedLM(config)
print(f'{model.num_parameters() / 1e6:.1f} M parameters')

data_collator = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm=True, mlm_probability=0.15)

training_args = TrainingArguments(
    output_dir='bert-tiny-esperanto',
    num_train_epochs=1,
    per_device_train_batch_size=16,
    learning_rate=5e-4,
    weight_decay=0.01,
    logging_steps=5,
    save_strategy='no',
    report_to='none',
    use_cpu=True,
)

trainer = Trainer(
    model=model,
    args=training_args,
    data_collator=data_collator,
    train_dataset=lm_dataset,
)

result = trainer.train()
blocks_seen = trainer.state.global_step * training_args.per_device_train_batch_size
print(result.metrics)
"""

CHANGES = (
    Change(
        "scores at the masked positions only",
        "selected_positions",
        edits={
            "model = BertForMaskedLM(config)": """from torch.nn.functional import cross_entropy
from transformers.modeling_outputs import MaskedLMOutput

class BertForMaskedPositions(BertForMaskedLM):
    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
        hidden = self.bert(input_ids, attention_mask=attention_mask)[0]
        chosen = labels != -100
        return MaskedLMOutput(loss=cross_entropy(self.cls(hidden[chosen]), labels[chosen]))

model = BertForMaskedPositions(config)"""
        },
    ),
    Change("bfloat16", "precision", edits={"    save_strategy='no',": "    save_strategy='no',\n    bf16=True,"}),
    Change(
        "two workers",
        "num_workers",
        edits={"    save_strategy='no',": "    save_strategy='no',\n    dataloader_num_workers=2,"},
    ),
    Change("log every fiftieth step", "fewer_logs", edits={"logging_steps=5,": "logging_steps=50,"}),
    Change("batches of 32", "larger_batch", edits={"train_batch_size=16": "train_batch_size=32"}),
)

LOOP = Loop(
    __doc__,
    prepare,
    CELL,
    CHANGES,
    samples="blocks_seen",
    loss="result.training_loss",
    seconds=7,
)
