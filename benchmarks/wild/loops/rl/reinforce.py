"""REINFORCE on CartPole, one action at a time with torch.distributions, in the manner of pytorch/examples."""

from benchmarks.wild.loop import Change, Loop, Namespace, scaled
from benchmarks.wild.loops.rl._cartpole import CartPole


def prepare(scale: float) -> Namespace:
    """An environment and a budget of steps."""
    return {"env": CartPole(), "max_steps": scaled(14_000, scale)}


CELL = """
from collections import deque
from itertools import count
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

gamma, log_interval = 0.99, 10
env.reset(seed=543)
torch.manual_seed(543)

class Policy(nn.Module):
    def __init__(self):
        super(Policy, self).__init__()
        self.affine1 = nn.Linear(4, 128)
        self.dropout = nn.Dropout(p=0.6)
        self.affine2 = nn.Linear(128, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        x = self.affine1(x)
        x = self.dropout(x)
        x = F.relu(x)
        action_scores = self.affine2(x)
        return F.softmax(action_scores, dim=1)

policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
eps = np.finfo(np.float32).eps.item()

def select_action(state):
    state = torch.from_numpy(state).float().unsqueeze(0)
    probs = policy(state)
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()

def finish_episode():
    R = 0
    policy_loss = []
    returns = deque()
    for r in policy.rewards[::-1]:
        R = r + gamma * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for log_prob, R in zip(policy.saved_log_probs, returns):
        policy_loss.append(-log_prob * R)
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]
    return policy_loss

running_reward, total_steps = 10, 0
for i_episode in count(1):
    state, _ = env.reset()
    ep_reward = 0
    for t in range(1, 10000):
        action = select_action(state)
        state, reward, done, truncated, _ = env.step(action)
        policy.rewards.append(reward)
        ep_reward += reward
        total_steps += 1
        if (done or truncated or total_steps >= max_steps) and t > 2:
            break
    running_reward = 0.05 * ep_reward + (1 - 0.05) * running_reward
    loss = finish_episode()
    if i_episode % log_interval == 0:
        print(f'Episode {i_episode}\\tLast reward: {ep_reward:.2f}\\tAverage reward: {running_reward:.2f}')
    if total_steps >= max_steps:
        break
"""

CHANGES = (
    Change(
        "log probabilities by hand",
        "remove_python",
        edits={
            """    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()
""": """    action = int(torch.rand(()).item() > probs[0, 0].item())
    policy.saved_log_probs.append(probs[:, action].log())
    return action
"""
        },
    ),
    Change(
        "act without graph, one forward pass per episode",
        "batch_whole",
        edits={
            """    probs = policy(state)
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()
""": """    with torch.no_grad():
        probs = policy(state)
    action = int(torch.rand(()).item() > probs[0, 0].item())
    policy.saved_log_probs.append((state, action))
    return action
""",
            """    for log_prob, R in zip(policy.saved_log_probs, returns):
        policy_loss.append(-log_prob * R)
""": """    states, actions = zip(*policy.saved_log_probs)
    log_probs = policy(torch.cat(states)).log().gather(1, torch.tensor(actions)[:, None])[:, 0]
    policy_loss.append(-log_probs * returns)
""",
        },
    ),
    Change("one thread", "threads", edits={"env.reset(seed=543)": "torch.set_num_threads(1)\nenv.reset(seed=543)"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-2)": "lr=1e-2, fused=True)"}),
    Change(
        "no validation of distributions",
        "other",
        edits={"Categorical(probs)": "Categorical(probs, validate_args=False)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="total_steps // 100", same_steps=False, seconds=5)
