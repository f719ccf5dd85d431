"""A small GPT-2 pretrained with Accelerate on packed blocks, with bfloat16, fused AdamW and sparse logging."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A file of token ids, as nanoGPT's prepare.py writes it."""
    rng = np.random.default_rng(0)
    tokens = np.minimum(rng.zipf(1.4, scaled(640, scale, 32) * 128), 1999).astype(np.uint16)
    tokens.tofile("train.bin")
    return {}


CELL = """
import numpy as np
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

block_size, batch_size, max_lr = 128, 16, 6e-4
data = np.fromfile('train.bin', dtype=np.uint16).astype(np.int64)
packed = torch.from_numpy(data).view(-1, block_size)
train_loader = DataLoader(TensorDataset(packed), batch_size=batch_size, shuffle=True, drop_last=True)

accelerator = Accelerator(mixed_precision='bf16', cpu=True)
config = GPT2Config(vocab_size=2000, n_positions=block_size, n_embd=256, n_layer=3, n_head=4,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, activation_function='gelu_pytorch_tanh',
                    use_cache=False)
model = GPT2LMHeadModel(config)
decay = [p for p in model.parameters() if p.dim() >= 2]
no_decay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{'params': decay, 'weight_decay': 0.1}, {'params': no_decay, 'weight_decay': 0.0}],
                              lr=max_lr, betas=(0.9, 0.95), fused=True)
scheduler = get_cosine_schedule_with_warmup(optimizer, 5, len(train_loader))
model, optimizer, train_loader, scheduler = accelerator.prepare(model, optimizer, train_loader, scheduler)

model.train()
blocks_seen, running = 0, torch.zeros(())
for step, (input_ids,) in enumerate(train_loader):
    loss = model(input_ids=input_ids, labels=input_ids).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    running += loss.detach()
    blocks_seen += len(input_ids)
    if (step + 1) % 20 == 0:
        accelerator.print(f'step {step + 1}: loss {running.item() / 20:.4f} lr {scheduler.get_last_lr()[0]:.2e}')
        running.zero_()
"""

CHANGES = (
    Change("two workers", "num_workers", edits={"drop_last=True)": "drop_last=True, num_workers=2)"}),
    Change(
        "torch.compile",
        "compile",
        edits={"model = GPT2LMHeadModel(config)": "model = torch.compile(GPT2LMHeadModel(config))"},
    ),
    Change(
        "foreach clipping",
        "clip_grad",
        edits={
            "accelerator.clip_grad_norm_(model.parameters(), 1.0)": ""
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)"
        },
    ),
    Change(
        "batches of 32",
        "larger_batch",
        edits={"block_size, batch_size, max_lr = 128, 16": "block_size, batch_size, max_lr = 128, 32"},
    ),
    Change("no log in between", "fewer_logs", edits={"if (step + 1) % 20 == 0:": "if step + 1 == len(train_loader):"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="blocks_seen", seconds=8)
