"""Direct preference optimization of a small GPT-2 with Accelerate; a frozen reference scores every pair in every epoch."""

import logging

import numpy as np
from accelerate.state import AcceleratorState
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Tokenized prompts with a chosen and a rejected answer each, and the policy after supervised fine-tuning."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    AcceleratorState._reset_state(True)  # another run in this process may have had another precision
    rng = np.random.default_rng(0)
    pairs = [
        {
            name: rng.integers(3, 2000, rng.integers(low, high)).tolist()
            for name, low, high in (("prompt", 30, 80), ("chosen", 15, 50), ("rejected", 10, 45))
        }
        for _ in range(scaled(7 * 16, scale, 8))
    ]
    config = GPT2Config(
        vocab_size=2000,
        n_positions=192,
        n_embd=128,
        n_layer=3,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return {"pairs": pairs, "sft_model": GPT2LMHeadModel(config)}


CELL = """
import copy

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD, BETA, BATCH_SIZE, EPOCHS = 0, 0.1, 4, 3


def collate(examples):
    batch = {'index': torch.tensor([e['index'] for e in examples])}
    ids, masks = [], []
    for side in ('chosen', 'rejected'):
        for e in examples:
            ids.append(torch.tensor(e['prompt'] + e[side]))
            masks.append(torch.tensor([0] * len(e['prompt']) + [1] * len(e[side])))
    batch['input_ids'] = pad_sequence(ids, batch_first=True, padding_value=PAD)
    batch['response_mask'] = pad_sequence(masks, batch_first=True)
    batch['attention_mask'] = pad_sequence([torch.ones_like(i) for i in ids], batch_first=True)
    return batch


def sequence_logps(model, batch):
    out = model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask'], use_cache=False)
    logits = out.logits[:, :-1]
    labels = batch['input_ids'][:, 1:]
    mask = batch['response_mask'][:, 1:]
    logps = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    return (logps * mask).sum(-1)


def dpo_loss(policy_logps, ref_logps):
    policy_chosen, policy_rejected = policy_logps.chunk(2)
    ref_chosen, ref_rejected = ref_logps.chunk(2)
    logits = (policy_chosen - policy_rejected) - (ref_chosen - ref_rejected)
    rewards = BETA * (policy_chosen - ref_chosen).detach(), BETA * (policy_rejected - ref_rejected).detach()
    return -F.logsigmoid(BETA * logits).mean(), rewards


accelerator = Accelerator(cpu=True)
policy = sft_model
reference = copy.deepcopy(sft_model).eval()
reference.requires_grad_(False)
examples = [dict(p, index=i) for i, p in enumerate(pairs)]
loader = DataLoader(examples, batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-5)
policy, optimizer, loader = accelerator.prepare(policy, optimizer, loader)

pairs_seen = 0
for epoch in range(EPOCHS):
    policy.train()
    accuracies = []
    for step, batch in enumerate(loader):
        policy_logps = sequence_logps(policy, batch)
        with torch.no_grad():
            ref_logps = sequence_logps(reference, batch)
        loss, (chosen_rewards, rejected_rewards) = dpo_loss(policy_logps, ref_logps)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(policy.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        accuracies.append((chosen_rewards > rejected_rewards).float().mean())
        pairs_seen += len(batch['index'])
    accelerator.print(f'epoch {epoch}: loss {loss.item():.4f} reward accuracy {torch.stack(accuracies).mean().item():.3f}')
"""

CHANGES = (
    Change(
        "reference scores computed once",
        "cache_items",
        edits={
            "pairs_seen = 0\n": "ref_table = torch.zeros(len(examples), 2)\nwith torch.no_grad():\n    for batch in loader:\n"
            "        ref_table[batch['index']] = sequence_logps(reference, batch).view(2, -1).T\n\npairs_seen = 0\n",
            "        with torch.no_grad():\n            ref_logps = sequence_logps(reference, batch)\n": ""
            "        ref_logps = ref_table[batch['index']].T.flatten()\n",
        },
    ),
    Change(
        "scores of the answers only",
        "selected_positions",
        edits={
            "    out = model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask'], use_cache=False)\n"
            "    logits = out.logits[:, :-1]\n": "    hidden = model.transformer(input_ids=batch['input_ids'],\n"
            "                               attention_mask=batch['attention_mask'], use_cache=False)[0][:, :-1]\n",
            "    logps = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)\n"
            "    return (logps * mask).sum(-1)\n": "    chosen = mask.bool()\n"
            "    logps = -F.cross_entropy(model.lm_head(hidden[chosen]).float(), labels[chosen], reduction='none')\n"
            "    rows = torch.arange(len(mask)).unsqueeze(1).expand_as(mask)[chosen]\n"
            "    return torch.zeros(len(mask)).index_add(0, rows, logps)\n",
        },
    ),
    Change(
        "bfloat16",
        "precision",
        edits={
            "accelerator = Accelerator(cpu=True)": "accelerator = Accelerator(cpu=True, mixed_precision='bf16')",
            "            ref_logps = sequence_logps(reference, batch)\n": "            with accelerator.autocast():\n"
            "                ref_logps = sequence_logps(reference, batch)\n",
        },
    ),
    Change("foreach RMSprop", "foreach_optimizer", edits={"lr=1e-5)": "lr=1e-5, foreach=True)"}),
    Change("two workers", "num_workers", edits={"collate_fn=collate)": "collate_fn=collate, num_workers=2)"}),
    Change("batches of 8 pairs", "larger_batch", edits={"= 0, 0.1, 4, 3": "= 0, 0.1, 8, 3"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="pairs_seen", seconds=10)
