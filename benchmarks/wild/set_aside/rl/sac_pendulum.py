"""Soft actor-critic on a pendulum; the replay buffer is a deque of tuples of arrays, the targets follow parameter by parameter."""

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """The number of steps in the environment."""
    return {"total_steps": scaled(1600, scale, 10)}


CELL = """
import math, random
from collections import deque
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

class Pendulum:
    def reset(self):
        self.th, self.thdot, self.t = random.uniform(-math.pi, math.pi), random.uniform(-1, 1), 0
        return self.obs()

    def obs(self):
        return np.array([math.cos(self.th), math.sin(self.th), self.thdot], dtype=np.float32)

    def step(self, a):
        u = float(np.clip(a, -1, 1)) * 2
        th = (self.th + math.pi) % (2 * math.pi) - math.pi
        cost = th ** 2 + 0.1 * self.thdot ** 2 + 0.001 * u ** 2
        self.thdot = float(np.clip(self.thdot + (15 * math.sin(self.th) + 3 * u) * 0.05, -8, 8))
        self.th += self.thdot * 0.05
        self.t += 1
        return self.obs(), -cost, self.t >= 200

class Actor(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.mu, self.log_std = nn.Linear(hidden, 1), nn.Linear(hidden, 1)

    def forward(self, s):
        h = self.net(s)
        dist = torch.distributions.Normal(self.mu(h), self.log_std(h).clamp(-20, 2).exp())
        u = dist.rsample()
        a = torch.tanh(u)
        logp = (dist.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)).sum(-1, keepdim=True)
        return a, logp

class Critic(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, s, a):
        return self.net(torch.cat([s, a], dim=-1))

class ReplayBuffer:
    def __init__(self, capacity):
        self.buffer = deque(maxlen=capacity)

    def push(self, *transition):
        self.buffer.append(transition)

    def sample(self, batch_size):
        batch = random.sample(self.buffer, batch_size)
        s, a, r, s2, d = map(np.stack, zip(*batch))
        return [torch.FloatTensor(x).reshape(batch_size, -1) for x in (s, a, r, s2, d)]

    def __len__(self):
        return len(self.buffer)

env = Pendulum()
actor, q1, q2, q1_t, q2_t = Actor(), Critic(), Critic(), Critic(), Critic()
q1_t.load_state_dict(q1.state_dict())
q2_t.load_state_dict(q2.state_dict())
log_alpha = torch.zeros(1, requires_grad=True)
actor_opt = torch.optim.Adam(actor.parameters(), lr=3e-4)
q1_opt = torch.optim.Adam(q1.parameters(), lr=3e-4)
q2_opt = torch.optim.Adam(q2.parameters(), lr=3e-4)
alpha_opt = torch.optim.Adam([log_alpha], lr=3e-4)
buffer = ReplayBuffer(100000)
gamma, tau, batch_size, warmup = 0.99, 0.005, 128, 30

def soft_update(net, target):
    for p, pt in zip(net.parameters(), target.parameters()):
        pt.data.copy_(tau * p.data + (1 - tau) * pt.data)

def update():
    s, a, r, s2, d = buffer.sample(batch_size)
    alpha = log_alpha.exp().item()
    a2, logp2 = actor(s2)
    target = r / 10 + gamma * (1 - d) * (torch.min(q1_t(s2, a2), q2_t(s2, a2)) - alpha * logp2)
    q1_loss = F.mse_loss(q1(s, a), target.detach())
    q2_loss = F.mse_loss(q2(s, a), target.detach())
    q1_opt.zero_grad(); q1_loss.backward(); q1_opt.step()
    q2_opt.zero_grad(); q2_loss.backward(); q2_opt.step()
    new_a, logp = actor(s)
    actor_loss = (alpha * logp - torch.min(q1(s, new_a), q2(s, new_a))).mean()
    actor_opt.zero_grad(); actor_loss.backward(); actor_opt.step()
    alpha_loss = -(log_alpha * (logp + 1).detach()).mean()
    alpha_opt.zero_grad(); alpha_loss.backward(); alpha_opt.step()
    soft_update(q1, q1_t)
    soft_update(q2, q2_t)
    return q1_loss.item(), actor_loss.item()

transitions, ep_ret, q_loss = 0, 0.0, 0.0
state = env.reset()
for step in range(total_steps):
    action, _ = actor(torch.FloatTensor(state).unsqueeze(0))
    action = action.detach().numpy()[0]
    next_state, reward, done = env.step(action[0])
    buffer.push(state, action, reward, next_state, float(done))
    state = next_state
    ep_ret += reward
    if done:
        print(f'step {step} return {ep_ret:.1f} q loss {q_loss:.4f}')
        state, ep_ret = env.reset(), 0.0
    if len(buffer) >= max(warmup, batch_size // 4):
        batch_size = min(128, len(buffer))
        q_loss, pi_loss = update()
        transitions += batch_size
"""

CHANGES = (
    Change(
        "replay buffer in arrays",
        "storage_format",
        edits={
            "self.buffer = deque(maxlen=capacity)": "self.size = 0\n        self.data = torch.zeros(capacity, 9)",
            "self.buffer.append(transition)": "self.data[self.size] = torch.from_numpy(np.hstack(transition).astype(np.float32))\n        self.size += 1",
            """        batch = random.sample(self.buffer, batch_size)
        s, a, r, s2, d = map(np.stack, zip(*batch))
        return [torch.FloatTensor(x).reshape(batch_size, -1) for x in (s, a, r, s2, d)]
""": "        batch = self.data[torch.randint(0, self.size, (batch_size,))]\n        return batch.split([3, 1, 1, 3, 1], dim=1)\n",
            "return len(self.buffer)": "return self.size",
        },
    ),
    Change(
        "no graph for targets and actions",
        "no_grad",
        edits={
            "    a2, logp2 = actor(s2)\n    target = r / 10": "    with torch.no_grad():\n        a2, logp2 = actor(s2)\n        target = r / 10",
            "    action, _ = actor(torch.FloatTensor(state).unsqueeze(0))\n": "    with torch.no_grad():\n        action, _ = actor(torch.FloatTensor(state).unsqueeze(0))\n",
        },
    ),
    Change(
        "targets by foreach",
        "remove_python",
        edits={
            """    for p, pt in zip(net.parameters(), target.parameters()):
        pt.data.copy_(tau * p.data + (1 - tau) * pt.data)
""": "    with torch.no_grad():\n        torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), tau)\n"
        },
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={
            "(actor.parameters(), lr=3e-4)": "(actor.parameters(), lr=3e-4, fused=True)",
            "(q1.parameters(), lr=3e-4)": "(q1.parameters(), lr=3e-4, fused=True)",
            "(q2.parameters(), lr=3e-4)": "(q2.parameters(), lr=3e-4, fused=True)",
            "([log_alpha], lr=3e-4)": "([log_alpha], lr=3e-4, fused=True)",
        },
    ),
    Change("one thread", "threads", edits={"env = Pendulum()": "torch.set_num_threads(1)\nenv = Pendulum()"}),
    Change(
        "losses stay tensors",
        "remove_syncs",
        edits={"return q1_loss.item(), actor_loss.item()": "return q1_loss.detach(), actor_loss.detach()"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="transitions", loss="float(q_loss)", seconds=5)
