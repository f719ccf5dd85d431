"""Continuations of a file of prompts by a small Llama: one call of generate per prompt, sampled, without training."""

import json
import logging
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A model and a word-level tokenizer in a folder, and a JSONL file of prompts."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    vocab = {token: index for index, token in enumerate(["[PAD]", "[UNK]", "</s>", *(f"w{k}" for k in range(3997))])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=inner, **names).save_pretrained("story-model")
    config = LlamaConfig(
        vocab_size=4000,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained("story-model")
    rng = np.random.default_rng(0)
    with Path("prompts.jsonl").open("w") as stream:
        for index in range(scaled(40, scale, 8)):
            words = " ".join(f"w{k}" for k in np.minimum(rng.zipf(1.3, rng.integers(8, 48)), 3996))
            stream.write(json.dumps({"id": index, "prompt": words}) + "\n")
    return {}


CELL = """
import json
from pathlib import Path

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

MODEL = 'story-model'
MAX_NEW_TOKENS = 48
device = 'cuda' if torch.cuda.is_available() else 'cpu'

set_seed(42)
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL)
model.to(device)
model.eval()

records = [json.loads(line) for line in Path('prompts.jsonl').read_text().splitlines()]

def complete(prompts):
    inputs = tokenizer(prompts, return_tensors='pt', padding=True, return_token_type_ids=False).to(device)
    with torch.no_grad():
        outputs = model.generate(
            **inputs,
            do_sample=True,
            temperature=0.8,
            top_k=50,
            top_p=0.95,
            repetition_penalty=1.1,
            min_new_tokens=MAX_NEW_TOKENS,
            max_new_tokens=MAX_NEW_TOKENS,
            pad_token_id=tokenizer.pad_token_id,
        )
    return outputs[:, inputs['input_ids'].shape[1]:]

new_tokens = 0
with open('completions.jsonl', 'w') as f:
    for record in tqdm(records):
        completion = complete([record['prompt']])
        new_tokens += completion.numel()
        record['completion'] = tokenizer.decode(completion[0], skip_special_tokens=True)
        f.write(json.dumps(record) + '\\n')
        f.flush()
"""

_ONE = CELL[CELL.index("    for record in tqdm(records):\n") :]
_EIGHT = """    for start in tqdm(range(0, len(records), 8)):
        batch = records[start:start + 8]
        completion = complete([record['prompt'] for record in batch])
        new_tokens += completion.numel()
        for record, ids in zip(batch, completion):
            record['completion'] = tokenizer.decode(ids, skip_special_tokens=True)
            f.write(json.dumps(record) + '\\n')
        f.flush()
"""
_TOKENIZER = "tokenizer = AutoTokenizer.from_pretrained(MODEL)\n"

CHANGES = (
    Change(
        "eight prompts at a time, padded on the left",
        "larger_batch",
        edits={_ONE: _EIGHT, _TOKENIZER: "tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side='left')\n"},
    ),
    Change("bfloat16 weights", "precision", edits={"model.to(device)\n": "model.to(device, dtype=torch.bfloat16)\n"}),
    Change("one thread", "threads", edits={"set_seed(42)\n": "set_seed(42)\ntorch.set_num_threads(1)\n"}),
    Change("inference_mode", "no_grad", edits={"with torch.no_grad():": "with torch.inference_mode():"}),
    Change(
        "no flush, no progress bar",
        "fewer_logs",
        edits={"in tqdm(records):": "in records:", "        f.flush()\n": ""},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="new_tokens", loss="completion.float().mean().item()", seconds=10)
