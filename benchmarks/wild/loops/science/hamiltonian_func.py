"""A Hamiltonian neural network as pure functions of a dictionary of weights, with torch.func and an Adam of its own."""

import numpy as np
import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Points in the phase space of a chain of springs, with their noisy time derivatives."""
    rng = np.random.default_rng(0)
    count, masses = 20_000, 4
    q, p = rng.normal(0, 1, (2, count, masses)).astype(np.float32)
    stretch = np.diff(q, axis=1, prepend=0, append=0)
    force = stretch[:, 1:] - stretch[:, :-1] - 0.1 * q**3
    derivatives = np.concatenate([p, force], 1) + rng.normal(0, 0.05, (count, 2 * masses))
    return {
        "coords": torch.from_numpy(np.concatenate([q, p], 1)),
        "dcoords": torch.from_numpy(derivatives.astype(np.float32)),
        "n_steps": scaled(1800, scale, 4),
    }


CELL = """
import torch
from torch.func import grad, grad_and_value, vmap

torch.manual_seed(1)
dim, width, depth = coords.shape[1], 160, 3
batch_size = 256
half = dim // 2


def init_mlp(sizes):
    params = {}
    for i, (n_in, n_out) in enumerate(zip(sizes[:-1], sizes[1:])):
        params[f'w{i}'] = torch.randn(n_in, n_out) / n_in ** 0.5
        params[f'b{i}'] = torch.zeros(n_out)
    return params


def hamiltonian(params, x):
    h = x
    for i in range(depth):
        h = torch.tanh(h @ params[f'w{i}'] + params[f'b{i}'])
    return (h @ params[f'w{depth}'] + params[f'b{depth}']).squeeze(-1)


def dynamics(params, x):
    dH = grad(hamiltonian, argnums=1)(params, x)
    return torch.cat([dH[half:], -dH[:half]])


def mse(params, x, dx):
    dx_hat = vmap(dynamics, in_dims=(None, 0))(params, x)
    return ((dx_hat - dx) ** 2).mean()


def init_adam(params):
    zeros = lambda: {k: torch.zeros_like(v) for k, v in params.items()}
    return {'m': zeros(), 'v': zeros(), 't': 0}


def adam_update(params, grads, state, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8):
    t = state['t'] + 1
    m = {k: b1 * state['m'][k] + (1 - b1) * grads[k] for k in params}
    v = {k: b2 * state['v'][k] + (1 - b2) * grads[k] ** 2 for k in params}
    new = {}
    for k in params:
        m_hat = m[k] / (1 - b1 ** t)
        v_hat = v[k] / (1 - b2 ** t)
        new[k] = params[k] - lr * m_hat / (v_hat.sqrt() + eps)
    return new, {'m': m, 'v': v, 't': t}


params = init_mlp([dim] + [width] * depth + [1])
opt_state = init_adam(params)
loss_and_grad = grad_and_value(mse)
points = 0
history = []
for step in range(n_steps * 256 // batch_size):
    idx = torch.randint(0, len(coords), (batch_size,))
    grads, loss = loss_and_grad(params, coords[idx], dcoords[idx])
    params, opt_state = adam_update(params, grads, opt_state)
    points += len(idx)
    history.append(loss)
    if step % 200 == 0:
        print(f'step {step:5d}  train loss {loss.item():.4e}')
final_loss = torch.stack(history[-20:]).mean().item()
"""

_UPDATE = CELL[CELL.index("    t = state['t'] + 1\n") : CELL.index("\n\nparams = init_mlp")]

CHANGES = (
    Change(
        "one gradient of the sum instead of vmap over points",
        "other",
        edits={
            "    return torch.cat([dH[half:], -dH[:half]])\n": "    return torch.cat([dH[:, half:], -dH[:, :half]], 1)\n",
            "    dH = grad(hamiltonian, argnums=1)(params, x)\n": ""
            "    dH = grad(lambda p, z: hamiltonian(p, z).sum(), argnums=1)(params, x)\n",
            "    dx_hat = vmap(dynamics, in_dims=(None, 0))(params, x)\n": "    dx_hat = dynamics(params, x)\n",
        },
    ),
    Change(
        "torch.optim's fused Adam",
        "fused_optimizer",
        edits={
            _UPDATE: "    for k, p in params.items():\n        p.grad = grads[k]\n    state.step()\n    return params, state\n",
            "opt_state = init_adam(params)\n": ""
            "opt_state = torch.optim.Adam(list(params.values()), lr=1e-3, fused=True)\n",
        },
    ),
    Change(
        "Adam in place with foreach",
        "foreach_optimizer",
        edits={
            _UPDATE: "    state['t'] += 1\n"
            "    p, g, m, v = ([d[k] for k in params] for d in (params, grads, state['m'], state['v']))\n"
            "    torch._foreach_lerp_(m, g, 1 - b1)\n"
            "    torch._foreach_mul_(v, b2)\n"
            "    torch._foreach_addcmul_(v, g, g, 1 - b2)\n"
            "    root = torch._foreach_sqrt(v)\n"
            "    torch._foreach_div_(root, (1 - b2 ** state['t']) ** 0.5)\n"
            "    torch._foreach_add_(root, eps)\n"
            "    torch._foreach_addcdiv_(p, m, root, -lr / (1 - b1 ** state['t']))\n"
            "    return params, state\n",
        },
    ),
    Change("one thread", "threads", edits={"torch.manual_seed(1)": "torch.set_num_threads(1)\ntorch.manual_seed(1)"}),
    Change("batches of 1024", "larger_batch", edits={"batch_size = 256": "batch_size = 1024"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "    grads, loss = loss_and_grad(params, coords[idx], dcoords[idx])\n": ""
            "    with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "        grads, loss = loss_and_grad(params, coords[idx], dcoords[idx])\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="points", loss="final_loss", seconds=10, same_steps=False)
