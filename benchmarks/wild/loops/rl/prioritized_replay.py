"""A dueling DQN with a prioritized replay memory that weighs all transitions for every batch, as in RL-Adventure."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled
from benchmarks.wild.loops.rl._cartpole import CartPole


def prepare(scale: float) -> Namespace:
    """An environment, and transitions that an earlier run has left."""
    count = 95_000
    transitions = list(
        zip(
            np.random.normal(scale=0.1, size=(count, 1, 4)).astype(np.float32),
            np.random.randint(0, 2, count).tolist(),
            [1.0] * count,
            np.random.normal(scale=0.1, size=(count, 1, 4)).astype(np.float32),
            (np.random.rand(count) < 0.05).tolist(),
            strict=True,
        )
    )
    return {"env": CartPole(), "old_transitions": transitions, "num_frames": scaled(2400, scale, 40)}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim

class NaivePrioritizedBuffer:
    def __init__(self, capacity, prob_alpha=0.6):
        self.prob_alpha = prob_alpha
        self.capacity = capacity
        self.buffer = []
        self.pos = 0
        self.priorities = np.zeros((capacity,), dtype=np.float32)
        self.max_prio = 1.0

    def push(self, state, action, reward, next_state, done):
        if len(self.buffer) < self.capacity:
            self.buffer.append((state, action, reward, next_state, done))
        else:
            self.buffer[self.pos] = (state, action, reward, next_state, done)
        self.priorities[self.pos] = self.max_prio
        self.pos = (self.pos + 1) % self.capacity

    def sample(self, batch_size, beta=0.4):
        if len(self.buffer) == self.capacity:
            prios = self.priorities
        else:
            prios = self.priorities[:self.pos]
        probs = prios ** self.prob_alpha
        probs /= probs.sum()
        indices = np.random.choice(len(self.buffer), batch_size, p=probs)
        samples = [self.buffer[idx] for idx in indices]
        total = len(self.buffer)
        weights = (total * probs[indices]) ** (-beta)
        weights /= weights.max()
        weights = np.array(weights, dtype=np.float32)
        batch = list(zip(*samples))
        states = np.concatenate(batch[0])
        next_states = np.concatenate(batch[3])
        return states, batch[1], batch[2], next_states, batch[4], indices, weights

    def update_priorities(self, batch_indices, batch_priorities):
        for idx, prio in zip(batch_indices, batch_priorities):
            self.priorities[idx] = prio
            self.max_prio = max(self.max_prio, prio)

class DuelingDQN(nn.Module):
    def __init__(self, num_inputs, num_actions):
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(num_inputs, 128), nn.ReLU())
        self.advantage = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, num_actions))
        self.value = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, x):
        x = self.feature(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
current_model, target_model = DuelingDQN(4, 2).to(device), DuelingDQN(4, 2).to(device)
target_model.load_state_dict(current_model.state_dict())
optimizer = optim.Adam(current_model.parameters(), lr=1e-4)
replay_buffer = NaivePrioritizedBuffer(100000)
for transition in old_transitions:
    replay_buffer.push(*transition)

batch_size, train_every, gamma = 32, 1, 0.99

def compute_td_loss(batch_size, beta):
    state, action, reward, next_state, done, indices, weights = replay_buffer.sample(batch_size, beta)
    state = torch.FloatTensor(state).to(device)
    next_state = torch.FloatTensor(next_state).to(device)
    action = torch.LongTensor(action).to(device)
    reward = torch.FloatTensor(reward).to(device)
    done = torch.FloatTensor(done).to(device)
    weights = torch.FloatTensor(weights).to(device)

    q_value = current_model(state).gather(1, action.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        next_q_value = target_model(next_state).max(1)[0]
    expected_q_value = reward + gamma * next_q_value * (1 - done)
    loss = (q_value - expected_q_value).pow(2) * weights
    prios = loss + 1e-5
    loss = loss.mean()
    optimizer.zero_grad()
    loss.backward()
    replay_buffer.update_priorities(indices, prios.detach().cpu().numpy())
    optimizer.step()
    return loss

losses, all_rewards, episode_reward = [], [], 0
state, _ = env.reset()
for frame_idx in range(1, num_frames + 1):
    epsilon = 0.01 + 0.99 * np.exp(-frame_idx / 500)
    beta = min(1.0, 0.4 + frame_idx * 0.6 / 1000)
    if np.random.rand() > epsilon:
        with torch.no_grad():
            action = current_model(torch.FloatTensor(state).unsqueeze(0).to(device)).argmax(1).item()
    else:
        action = np.random.randint(2)
    next_state, reward, terminated, truncated, _ = env.step(action)
    replay_buffer.push(state[None], action, reward, next_state[None], terminated)
    state = next_state
    episode_reward += reward
    if terminated or truncated:
        state, _ = env.reset()
        all_rewards.append(episode_reward)
        episode_reward = 0
    if frame_idx % train_every == 0:
        loss = compute_td_loss(batch_size, beta)
        losses.append(loss.item())
    if frame_idx % 200 == 0:
        print(f'frame {frame_idx}: reward {np.mean(all_rewards[-10:]):.1f} loss {np.mean(losses[-100:]):.4f}')
    if frame_idx % 500 == 0:
        target_model.load_state_dict(current_model.state_dict())
"""

TREE = """class SumTreeBuffer:
    def __init__(self, capacity, prob_alpha=0.6):
        self.prob_alpha, self.capacity = prob_alpha, capacity
        self.depth = (capacity - 1).bit_length()
        self.tree = np.zeros(2 << self.depth)
        self.buffer, self.pos, self.max_prio = [], 0, 1.0

    def set(self, indices, values):
        nodes = indices + (1 << self.depth)
        self.tree[nodes] = values
        for _ in range(self.depth):
            nodes = nodes >> 1
            self.tree[nodes] = self.tree[2 * nodes] + self.tree[2 * nodes + 1]

    def push(self, state, action, reward, next_state, done):
        if len(self.buffer) < self.capacity:
            self.buffer.append((state, action, reward, next_state, done))
        else:
            self.buffer[self.pos] = (state, action, reward, next_state, done)
        node, value = self.pos + (1 << self.depth), self.max_prio ** self.prob_alpha
        change = value - self.tree.item(node)
        while node:
            self.tree[node] += change
            node >>= 1
        self.pos = (self.pos + 1) % self.capacity

    def sample(self, batch_size, beta=0.4):
        mass = np.random.rand(batch_size) * self.tree[1]
        nodes = np.ones(batch_size, dtype=np.int64)
        for _ in range(self.depth):
            nodes = 2 * nodes
            left = self.tree[nodes]
            right = mass > left
            mass = np.where(right, mass - left, mass)
            nodes += right
        indices = np.minimum(nodes - (1 << self.depth), len(self.buffer) - 1)
        weights = (len(self.buffer) * self.tree[nodes] / self.tree[1]) ** (-beta)
        weights = (weights / weights.max()).astype(np.float32)
        batch = list(zip(*[self.buffer[idx] for idx in indices]))
        return np.concatenate(batch[0]), batch[1], batch[2], np.concatenate(batch[3]), batch[4], indices, weights

    def update_priorities(self, batch_indices, batch_priorities):
        self.set(batch_indices, batch_priorities ** self.prob_alpha)
        self.max_prio = max(self.max_prio, batch_priorities.max().item())

"""

_NAIVE = CELL[CELL.index("class NaivePrioritizedBuffer") : CELL.index("class DuelingDQN")]
_START = "losses, all_rewards, episode_reward = [], [], 0\n"

CHANGES = (
    Change(
        "sum tree",
        "other",
        edits={
            _NAIVE: TREE,
            """replay_buffer = NaivePrioritizedBuffer(100000)
for transition in old_transitions:
    replay_buffer.push(*transition)
""": """replay_buffer = SumTreeBuffer(100000)
replay_buffer.buffer, replay_buffer.pos = list(old_transitions), len(old_transitions)
replay_buffer.set(np.arange(len(old_transitions)), 1.0)
""",
        },
    ),
    Change(
        "batches of 128 every fourth frame",
        "larger_batch",
        edits={"batch_size, train_every, gamma = 32, 1,": "batch_size, train_every, gamma = 128, 4,"},
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-4)": "lr=1e-4, fused=True)"}),
    Change("one thread", "threads", edits={_START: "torch.set_num_threads(1)\n" + _START}),
    Change(
        "losses as tensors",
        "remove_syncs",
        edits={
            "losses.append(loss.item())": "losses.append(loss.detach())",
            "np.mean(losses[-100:])": "torch.stack(losses[-100:]).mean().item()",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="num_frames", seconds=6)
