"""Soft actor-critic on a pendulum: a deque of transitions, twin critics, one update of all networks per step."""

import math
import random

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class Pendulum:
    """The swing-up task with the interface of Gymnasium."""

    def __init__(self, limit: int = 200) -> None:
        self.limit, self.steps, self.theta, self.speed = limit, 0, 0.0, 0.0

    def observe(self) -> np.ndarray:
        """Cosine, sine, and angular velocity."""
        return np.array([math.cos(self.theta), math.sin(self.theta), self.speed], dtype=np.float32)

    def reset(self) -> tuple[np.ndarray, dict[str, object]]:
        """Start at a random angle and velocity."""
        self.theta, self.speed, self.steps = random.uniform(-math.pi, math.pi), random.uniform(-1, 1), 0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        """Apply a torque for 0.05 s."""
        torque = float(np.clip(action, -2.0, 2.0)[0])
        angle = (self.theta + math.pi) % (2 * math.pi) - math.pi
        cost = angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2
        self.speed += (15.0 * math.sin(self.theta) + 3.0 * torque) * 0.05
        self.speed = min(max(self.speed, -8.0), 8.0)
        self.theta += self.speed * 0.05
        self.steps += 1
        return self.observe(), -cost, False, self.steps >= self.limit, {}


def prepare(scale: float) -> Namespace:
    """Two environments and a budget of steps."""
    return {"env": Pendulum(), "eval_env": Pendulum(), "max_steps": 300 + scaled(500, scale)}


CELL = """
import random
from collections import deque
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

LOG_SIG_MAX, LOG_SIG_MIN, epsilon = 2, -20, 1e-6
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

def weights_init_(m):
    if isinstance(m, nn.Linear):
        nn.init.xavier_uniform_(m.weight, gain=1)
        nn.init.constant_(m.bias, 0)

class ReplayMemory:
    def __init__(self, capacity):
        self.buffer = deque(maxlen=capacity)

    def push(self, state, action, reward, next_state, mask):
        self.buffer.append((state, action, reward, next_state, mask))

    def sample(self, batch_size):
        batch = random.sample(self.buffer, batch_size)
        state, action, reward, next_state, mask = map(np.stack, zip(*batch))
        return state, action, reward, next_state, mask

    def __len__(self):
        return len(self.buffer)

class QNetwork(nn.Module):
    def __init__(self, num_inputs, num_actions, hidden_dim):
        super().__init__()
        # Q1 architecture
        self.linear1 = nn.Linear(num_inputs + num_actions, hidden_dim)
        self.linear2 = nn.Linear(hidden_dim, hidden_dim)
        self.linear3 = nn.Linear(hidden_dim, 1)
        # Q2 architecture
        self.linear4 = nn.Linear(num_inputs + num_actions, hidden_dim)
        self.linear5 = nn.Linear(hidden_dim, hidden_dim)
        self.linear6 = nn.Linear(hidden_dim, 1)
        self.apply(weights_init_)

    def forward(self, state, action):
        xu = torch.cat([state, action], 1)
        x1 = F.relu(self.linear1(xu))
        x1 = F.relu(self.linear2(x1))
        x1 = self.linear3(x1)
        x2 = F.relu(self.linear4(xu))
        x2 = F.relu(self.linear5(x2))
        x2 = self.linear6(x2)
        return x1, x2

class GaussianPolicy(nn.Module):
    def __init__(self, num_inputs, num_actions, hidden_dim, action_scale):
        super().__init__()
        self.linear1 = nn.Linear(num_inputs, hidden_dim)
        self.linear2 = nn.Linear(hidden_dim, hidden_dim)
        self.mean_linear = nn.Linear(hidden_dim, num_actions)
        self.log_std_linear = nn.Linear(hidden_dim, num_actions)
        self.action_scale = action_scale
        self.apply(weights_init_)

    def forward(self, state):
        x = F.relu(self.linear1(state))
        x = F.relu(self.linear2(x))
        mean = self.mean_linear(x)
        log_std = self.log_std_linear(x)
        log_std = torch.clamp(log_std, min=LOG_SIG_MIN, max=LOG_SIG_MAX)
        return mean, log_std

    def sample(self, state):
        mean, log_std = self.forward(state)
        normal = Normal(mean, log_std.exp())
        x_t = normal.rsample()
        y_t = torch.tanh(x_t)
        action = y_t * self.action_scale
        log_prob = normal.log_prob(x_t)
        # Enforcing action bound
        log_prob -= torch.log(self.action_scale * (1 - y_t.pow(2)) + epsilon)
        log_prob = log_prob.sum(1, keepdim=True)
        return action, log_prob, torch.tanh(mean) * self.action_scale

def soft_update(target, source, tau):
    for target_param, param in zip(target.parameters(), source.parameters()):
        target_param.data.copy_(target_param.data * (1.0 - tau) + param.data * tau)

class SAC(object):
    def __init__(self, num_inputs, num_actions, gamma=0.99, tau=0.005, lr=3e-4, hidden_size=256):
        self.gamma, self.tau, self.alpha = gamma, tau, 0.2
        self.critic = QNetwork(num_inputs, num_actions, hidden_size).to(device)
        self.critic_target = QNetwork(num_inputs, num_actions, hidden_size).to(device)
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.policy = GaussianPolicy(num_inputs, num_actions, hidden_size, 2.0).to(device)
        self.critic_optim = torch.optim.Adam(self.critic.parameters(), lr=lr)
        self.policy_optim = torch.optim.Adam(self.policy.parameters(), lr=lr)
        self.target_entropy = -float(num_actions)
        self.log_alpha = torch.zeros(1, requires_grad=True, device=device)
        self.alpha_optim = torch.optim.Adam([self.log_alpha], lr=lr)

    def select_action(self, state, evaluate=False):
        state = torch.FloatTensor(state).to(device).unsqueeze(0)
        if evaluate is False:
            action, _, _ = self.policy.sample(state)
        else:
            _, _, action = self.policy.sample(state)
        return action.detach().cpu().numpy()[0]

    def update_parameters(self, memory, batch_size, updates):
        state_batch, action_batch, reward_batch, next_state_batch, mask_batch = memory.sample(batch_size=batch_size)
        state_batch = torch.FloatTensor(state_batch).to(device)
        next_state_batch = torch.FloatTensor(next_state_batch).to(device)
        action_batch = torch.FloatTensor(action_batch).to(device)
        reward_batch = torch.FloatTensor(reward_batch).to(device).unsqueeze(1)
        mask_batch = torch.FloatTensor(mask_batch).to(device).unsqueeze(1)

        with torch.no_grad():
            next_state_action, next_state_log_pi, _ = self.policy.sample(next_state_batch)
            qf1_next_target, qf2_next_target = self.critic_target(next_state_batch, next_state_action)
            min_qf_next_target = torch.min(qf1_next_target, qf2_next_target) - self.alpha * next_state_log_pi
            next_q_value = reward_batch + mask_batch * self.gamma * min_qf_next_target
        qf1, qf2 = self.critic(state_batch, action_batch)
        qf1_loss = F.mse_loss(qf1, next_q_value)
        qf2_loss = F.mse_loss(qf2, next_q_value)
        qf_loss = qf1_loss + qf2_loss

        self.critic_optim.zero_grad()
        qf_loss.backward()
        self.critic_optim.step()

        pi, log_pi, _ = self.policy.sample(state_batch)
        qf1_pi, qf2_pi = self.critic(state_batch, pi)
        min_qf_pi = torch.min(qf1_pi, qf2_pi)
        policy_loss = ((self.alpha * log_pi) - min_qf_pi).mean()

        self.policy_optim.zero_grad()
        policy_loss.backward()
        self.policy_optim.step()

        alpha_loss = -(self.log_alpha * (log_pi + self.target_entropy).detach()).mean()
        self.alpha_optim.zero_grad()
        alpha_loss.backward()
        self.alpha_optim.step()
        self.alpha = self.log_alpha.exp().detach()

        soft_update(self.critic_target, self.critic, self.tau)
        return qf1_loss.item(), qf2_loss.item(), policy_loss.item(), alpha_loss.item()

start_steps, batch_size, eval_every = 300, 256, 500
agent = SAC(3, 1)
memory = ReplayMemory(100000)
total_numsteps, updates, episode = 0, 0, 0

while total_numsteps < max_steps:
    episode_reward, done = 0, False
    state, _ = env.reset()
    while not done and total_numsteps < max_steps:
        if total_numsteps < start_steps:
            action = np.random.uniform(-2.0, 2.0, size=1).astype(np.float32)
        else:
            action = agent.select_action(state)
        if len(memory) > batch_size:
            critic_1_loss, critic_2_loss, policy_loss, ent_loss = agent.update_parameters(memory, batch_size, updates)
            updates += 1
        next_state, reward, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
        total_numsteps += 1
        episode_reward += reward
        memory.push(state, action, reward, next_state, float(not terminated))
        state = next_state

        if total_numsteps % eval_every == 0:
            avg_reward = 0.
            for _ in range(3):
                s, _ = eval_env.reset()
                finished = False
                while not finished:
                    s, r, term, trunc, _ = eval_env.step(agent.select_action(s, evaluate=True))
                    avg_reward += r / 3
                    finished = term or trunc
            print('Test Avg. Reward: {}'.format(round(avg_reward, 2)))
    episode += 1
    print('Episode: {}, total numsteps: {}, reward: {}'.format(episode, total_numsteps, round(episode_reward, 2)))
"""

ARRAYS = """class ReplayMemory:
    def __init__(self, capacity):
        self.state, self.next_state = np.zeros((2, capacity, 3), dtype=np.float32)
        self.action = np.zeros((capacity, 1), dtype=np.float32)
        self.reward, self.mask = np.zeros((2, capacity), dtype=np.float32)
        self.capacity, self.count = capacity, 0

    def push(self, state, action, reward, next_state, mask):
        i = self.count % self.capacity
        self.state[i], self.action[i], self.reward[i] = state, action, reward
        self.next_state[i], self.mask[i] = next_state, mask
        self.count += 1

    def sample(self, batch_size):
        i = np.random.randint(len(self), size=batch_size)
        return self.state[i], self.action[i], self.reward[i], self.next_state[i], self.mask[i]

    def __len__(self):
        return min(self.count, self.capacity)
"""
DEQUE = CELL[CELL.index("class ReplayMemory") : CELL.index("\nclass QNetwork")]

CHANGES = (
    Change("replay memory of arrays", "batch_whole", edits={DEQUE: ARRAYS}),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={
            "(self.critic.parameters(), lr=lr)": "(self.critic.parameters(), lr=lr, fused=True)",
            "(self.policy.parameters(), lr=lr)": "(self.policy.parameters(), lr=lr, fused=True)",
            "([self.log_alpha], lr=lr)": "([self.log_alpha], lr=lr, fused=True)",
        },
    ),
    Change(
        "no gradients of the critic in the policy loss",
        "no_grad",
        edits={
            "        qf1_pi, qf2_pi = self.critic(state_batch, pi)\n": "        self.critic.requires_grad_(False)\n"
            "        qf1_pi, qf2_pi = self.critic(state_batch, pi)\n",
            "        self.policy_optim.step()\n": "        self.policy_optim.step()\n"
            "        self.critic.requires_grad_(True)\n",
        },
    ),
    Change(
        "target update with foreach",
        "foreach_optimizer",
        edits={
            "    for target_param, param in zip(target.parameters(), source.parameters()):\n"
            "        target_param.data.copy_(target_param.data * (1.0 - tau) + param.data * tau)\n": (
                "    with torch.no_grad():\n"
                "        torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)\n"
            )
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        mean = self.mean_linear(x)\n": "        mean = self.mean_linear(x).float()\n",
            "        log_std = self.log_std_linear(x)\n": "        log_std = self.log_std_linear(x).float()\n",
            "agent.update_parameters(memory, batch_size, updates)\n": "update(memory, batch_size, updates)\n",
            "agent = SAC(3, 1)\n": "agent = SAC(3, 1)\n"
            "update = torch.autocast(device.type, dtype=torch.bfloat16)(agent.update_parameters)\n",
        },
    ),
    Change("one thread", "threads", edits={"agent = SAC(3, 1)\n": "torch.set_num_threads(1)\nagent = SAC(3, 1)\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="total_numsteps", loss="critic_1_loss", seconds=6)
