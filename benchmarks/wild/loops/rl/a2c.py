"""A2C that trades on a price series, with a list of environments stepped one after another, as in trading bot repositories."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A price series and a budget of frames."""
    prices = 100 * np.exp(np.cumsum(np.random.normal(scale=0.01, size=5000)))
    return {"prices": prices.astype(np.float32), "max_frames": scaled(115200, scale, 640)}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions import Categorical

WINDOW, EPISODE = 32, 250

class TradingEnv:
    def __init__(self, prices, fee=0.001):
        self.prices, self.fee = prices, fee

    def _obs(self):
        window = self.prices[self.t - WINDOW:self.t + 1]
        returns = np.diff(window) / window[:-1]
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        return np.append(returns, [self.position, (self.t - self.start) / EPISODE]).astype(np.float32)

    def reset(self):
        self.start = self.t = np.random.randint(WINDOW, len(self.prices) - EPISODE - 1)
        self.position = 0
        return self._obs()

    def step(self, action):
        position = int(action) - 1  # short, flat or long
        cost = self.fee * abs(position - self.position)
        self.position = position
        self.t += 1
        reward = position * (self.prices[self.t] / self.prices[self.t - 1] - 1) - cost
        return self._obs(), reward * 100, self.t - self.start >= EPISODE, {}

class VecEnv:
    def __init__(self, envs):
        self.envs = envs

    def reset(self):
        return np.stack([env.reset() for env in self.envs])

    def step(self, actions):
        obs, rewards, dones = [], [], []
        for env, action in zip(self.envs, actions):
            ob, reward, done, _ = env.step(action)
            obs.append(env.reset() if done else ob)
            rewards.append(reward)
            dones.append(done)
        return np.stack(obs), np.array(rewards), np.array(dones)

class ActorCritic(nn.Module):
    def __init__(self, num_inputs, num_outputs, hidden_size=128):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(num_inputs, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 1))
        self.actor = nn.Sequential(nn.Linear(num_inputs, hidden_size), nn.ReLU(), nn.Linear(hidden_size, num_outputs))

    def forward(self, x):
        return Categorical(logits=self.actor(x)), self.critic(x)

def compute_returns(next_value, rewards, masks, gamma=0.99):
    R = next_value
    returns = []
    for step in reversed(range(len(rewards))):
        R = rewards[step] + gamma * R * masks[step]
        returns.insert(0, R)
    return returns

num_envs, num_steps = 16, 5
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
envs = VecEnv([TradingEnv(prices) for _ in range(num_envs)])
model = ActorCritic(WINDOW + 2, 3).to(device)
optimizer = optim.Adam(model.parameters(), lr=7e-4)

frame_idx, reward_history = 0, []
state = envs.reset()
while frame_idx < max_frames:
    log_probs, values, rewards, masks, entropy = [], [], [], [], 0
    for _ in range(num_steps):
        state = torch.FloatTensor(state).to(device)
        dist, value = model(state)
        action = dist.sample()
        next_state, reward, done = envs.step(action.cpu().numpy())
        entropy += dist.entropy().mean()
        log_probs.append(dist.log_prob(action))
        values.append(value.squeeze(1))
        rewards.append(torch.FloatTensor(reward).to(device))
        masks.append(torch.FloatTensor(1 - done).to(device))
        reward_history.append(reward.mean())
        state = next_state
        frame_idx += num_envs

    with torch.no_grad():
        _, next_value = model(torch.FloatTensor(next_state).to(device))
    returns = torch.cat(compute_returns(next_value.squeeze(1), rewards, masks)).detach()
    log_probs, values = torch.cat(log_probs), torch.cat(values)
    advantage = returns - values
    loss = -(log_probs * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean() - 0.001 * entropy
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    if frame_idx % 4000 == 0:
        print(f'frame {frame_idx}: reward {np.mean(reward_history[-200:]):.5f} loss {loss.item():.4f}')
"""

ARRAYS = """class VecEnv:
    def __init__(self, prices, num_envs, fee=0.001):
        self.prices, self.n, self.fee = prices, num_envs, fee
        windows = np.lib.stride_tricks.sliding_window_view(np.diff(prices) / prices[:-1], WINDOW)
        mean, std = windows.mean(1, keepdims=True), windows.std(1, keepdims=True)
        self.features = ((windows - mean) / (std + 1e-8)).astype(np.float32)

    def _obs(self):
        columns = np.stack([self.position, (self.t - self.start) / EPISODE], 1).astype(np.float32)
        return np.concatenate([self.features[self.t - WINDOW], columns], 1)

    def reset(self):
        self.start = np.random.randint(WINDOW, len(self.prices) - EPISODE - 1, self.n)
        self.t, self.position = self.start.copy(), np.zeros(self.n, dtype=int)
        return self._obs()

    def step(self, actions):
        position = actions - 1
        cost = self.fee * np.abs(position - self.position)
        self.position = position
        self.t += 1
        rewards = (position * (self.prices[self.t] / self.prices[self.t - 1] - 1) - cost) * 100
        dones = self.t - self.start >= EPISODE
        if dones.any():
            self.start[dones] = np.random.randint(WINDOW, len(self.prices) - EPISODE - 1, dones.sum())
            self.t[dones], self.position[dones] = self.start[dones], 0
        return self._obs(), rewards, dones

"""

_LIST = CELL[CELL.index("class TradingEnv") : CELL.index("class ActorCritic")]

CHANGES = (
    Change(
        "environments as arrays",
        "remove_python",
        edits={_LIST: ARRAYS, "VecEnv([TradingEnv(prices) for _ in range(num_envs)])": "VecEnv(prices, num_envs)"},
    ),
    Change("64 environments", "larger_batch", edits={"num_envs, num_steps = 16, 5": "num_envs, num_steps = 64, 5"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=7e-4)": "lr=7e-4, fused=True)"}),
    Change(
        "one thread",
        "threads",
        edits={"frame_idx, reward_history = 0": "torch.set_num_threads(1)\nframe_idx, reward_history = 0"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="frame_idx", seconds=6)
