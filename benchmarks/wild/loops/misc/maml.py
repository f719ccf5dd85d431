"""MAML on sine waves, task by task, with a functional network and second-order gradients, as in few-shot repositories."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Amplitudes and phases of tasks."""
    return {"iterations": scaled(180, scale), "rng": np.random.default_rng(0)}


CELL = """
import numpy as np
import torch
import torch.nn.functional as F

meta_batch, k_shot, inner_lr, inner_steps = 16, 10, 0.01, 2
params = [torch.empty(s, 1 if i == 0 else 40).uniform_(-0.3, 0.3).requires_grad_() if b else torch.zeros(s).requires_grad_()
          for i, s in enumerate((40, 40, 1)) for b in (True, False)]
meta_opt = torch.optim.Adam(params, lr=1e-3)

def net(x, w):
    x = F.relu(F.linear(x, w[0], w[1]))
    x = F.relu(F.linear(x, w[2], w[3]))
    return F.linear(x, w[4], w[5])

def sample_task():
    a, p = rng.uniform(0.1, 5.0), rng.uniform(0, np.pi)
    x = rng.uniform(-5, 5, (2 * k_shot, 1))
    x, y = torch.tensor(x).float(), torch.tensor(a * np.sin(x + p)).float()
    return x[:k_shot], y[:k_shot], x[k_shot:], y[k_shot:]

tasks = 0
for it in range(iterations):
    meta_loss = 0
    for _ in range(meta_batch):
        xs, ys, xq, yq = sample_task()
        fast = list(params)
        for _ in range(inner_steps):
            inner_loss = F.mse_loss(net(xs, fast), ys)
            grads = torch.autograd.grad(inner_loss, fast, create_graph=True)
            fast = [w - inner_lr * g for w, g in zip(fast, grads)]
        meta_loss = meta_loss + F.mse_loss(net(xq, fast), yq)
        tasks += 1
    meta_loss = meta_loss / meta_batch
    meta_opt.zero_grad()
    meta_loss.backward()
    torch.nn.utils.clip_grad_norm_(params, 10.0)
    meta_opt.step()
    if it % 20 == 0:
        print(f'iteration {it}: meta loss {meta_loss.item():.4f}')
loss = meta_loss
"""

CHANGES = (
    Change(
        "vmap over the tasks",
        "batch_whole",
        edits={
            """    meta_loss = 0
    for _ in range(meta_batch):
        xs, ys, xq, yq = sample_task()
        fast = list(params)
        for _ in range(inner_steps):
            inner_loss = F.mse_loss(net(xs, fast), ys)
            grads = torch.autograd.grad(inner_loss, fast, create_graph=True)
            fast = [w - inner_lr * g for w, g in zip(fast, grads)]
        meta_loss = meta_loss + F.mse_loss(net(xq, fast), yq)
        tasks += 1
    meta_loss = meta_loss / meta_batch
""": """    def task_loss(xs, ys, xq, yq):
        fast = list(params)
        for _ in range(inner_steps):
            grads = torch.func.grad(lambda w: F.mse_loss(net(xs, w), ys))(fast)
            fast = [w - inner_lr * g for w, g in zip(fast, grads)]
        return F.mse_loss(net(xq, fast), yq)
    batch = [torch.stack(column) for column in zip(*(sample_task() for _ in range(meta_batch)))]
    meta_loss = torch.vmap(task_loss)(*batch).mean()
    tasks += meta_batch
"""
        },
    ),
    Change(
        "foreach update of the fast weights",
        "foreach_optimizer",
        edits={
            "            fast = [w - inner_lr * g for w, g in zip(fast, grads)]\n": ""
            "            fast = torch._foreach_add(fast, grads, alpha=-inner_lr)\n"
        },
    ),
    Change("one thread", "threads", edits={"tasks = 0\n": "tasks = 0\ntorch.set_num_threads(1)\n"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change("collector off", "gc", edits={"tasks = 0\n": "tasks = 0\nimport gc\ngc.disable()\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="tasks", seconds=6)
