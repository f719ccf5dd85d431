"""TD3 on a pendulum that plays ten test episodes after every few updates, in the manner of the authors' code."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class Pendulum:
    """The classic swing-up task with gym's interface of old."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.steps = 0
        self.state = np.zeros(2)

    def observe(self) -> np.ndarray:
        """Cosine, sine and angular velocity."""
        theta, speed = map(float, self.state)
        return np.array([np.cos(theta), np.sin(theta), speed], dtype=np.float32)

    def reset(self) -> np.ndarray:
        """A random start."""
        self.state = self.rng.uniform([-np.pi, -1.0], [np.pi, 1.0])
        self.steps = 0
        return self.observe()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """One twentieth of a second."""
        theta, speed = map(float, self.state)
        torque = float(np.clip(action[0], -2.0, 2.0))
        angle = (theta + np.pi) % (2 * np.pi) - np.pi
        reward = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = float(np.clip(speed + (15.0 * np.sin(theta) + 3.0 * torque) * 0.05, -8.0, 8.0))
        self.state = np.array([theta + speed * 0.05, speed])
        self.steps += 1
        return self.observe(), float(reward), self.steps >= 200


def prepare(scale: float) -> Namespace:
    """The environment and the number of time steps."""
    return {"Pendulum": Pendulum, "max_timesteps": scaled(800, scale, 40) + 200}


CELL = """
import copy
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

start_timesteps, eval_freq, batch_size = 200, 40, 128
discount, tau, policy_noise, noise_clip, policy_freq, max_action = 0.99, 0.005, 0.4, 1.0, 2, 2.0

def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, o))

actor, q1, q2 = nn.Sequential(mlp(3, 1), nn.Tanh()), mlp(4, 1), mlp(4, 1)
actor_target, q1_target, q2_target = copy.deepcopy(actor), copy.deepcopy(q1), copy.deepcopy(q2)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
critic_optimizer = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=3e-4)
buf = {'s': np.zeros((20000, 3)), 'a': np.zeros((20000, 1)), 's2': np.zeros((20000, 3)), 'r': np.zeros((20000, 1))}

def select_action(state):
    state = torch.FloatTensor(state.reshape(1, -1))
    return (max_action * actor(state)).cpu().data.numpy().flatten()

def eval_policy(eval_episodes=10):
    eval_env, avg_reward = Pendulum(100), 0.
    for _ in range(eval_episodes):
        state, done = eval_env.reset(), False
        while not done:
            state, reward, done = eval_env.step(select_action(state))
            avg_reward += reward
    print(f'Evaluation over {eval_episodes} episodes: {avg_reward / eval_episodes:.3f}')
    return avg_reward / eval_episodes

def train(it):
    ind = np.random.randint(0, size, size=batch_size)
    s, a, s2, r = (torch.FloatTensor(buf[k][ind]) for k in ('s', 'a', 's2', 'r'))
    with torch.no_grad():
        noise = (torch.randn_like(a) * policy_noise).clamp(-noise_clip, noise_clip)
        a2 = (max_action * actor_target(s2) + noise).clamp(-max_action, max_action)
        sa2 = torch.cat([s2, a2], 1)
        target_Q = r + discount * torch.min(q1_target(sa2), q2_target(sa2))
    sa = torch.cat([s, a], 1)
    critic_loss = F.mse_loss(q1(sa), target_Q) + F.mse_loss(q2(sa), target_Q)
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    if it % policy_freq == 0:
        actor_loss = -q1(torch.cat([s, max_action * actor(s)], 1)).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        for net, target in ((q1, q1_target), (q2, q2_target), (actor, actor_target)):
            for param, target_param in zip(net.parameters(), target.parameters()):
                target_param.data.copy_(tau * param.data + (1 - tau) * target_param.data)
    return critic_loss

env, size, transitions = Pendulum(0), 0, 0
state, evaluations = env.reset(), [eval_policy()]
for t in range(max_timesteps):
    if t < start_timesteps:
        action = np.random.uniform(-max_action, max_action, 1)
    else:
        action = (select_action(state) + np.random.normal(0, 0.2, size=1)).clip(-max_action, max_action)
    next_state, reward, done = env.step(action)
    buf['s'][size], buf['a'][size], buf['s2'][size], buf['r'][size] = state, action, next_state, reward
    size += 1
    state = env.reset() if done else next_state
    if t >= start_timesteps:
        loss = train(t)
        transitions += batch_size
    if (t + 1) % eval_freq == 0:
        evaluations.append(eval_policy())
"""

EPISODES = """    for _ in range(eval_episodes):
        state, done = eval_env.reset(), False
        while not done:
            state, reward, done = eval_env.step(select_action(state))
            avg_reward += reward
"""

CHANGES = (
    Change(
        "evaluate every 200 steps",
        "eval_less_often",
        edits={"eval_freq, batch_size = 200, 40,": "eval_freq, batch_size = 200, 200,"},
    ),
    Change(
        "ten test episodes side by side",
        "remove_python",
        edits={
            EPISODES: """    envs = [Pendulum(100 + k) for k in range(eval_episodes)]
    states, done = [e.reset() for e in envs], False
    while not done:
        with torch.no_grad():
            actions = (max_action * actor(torch.from_numpy(np.stack(states)))).numpy()
        results = [e.step(a) for e, a in zip(envs, actions)]
        states, done = [r[0] for r in results], results[0][2]
        avg_reward += sum(r[1] for r in results)
""",
        },
    ),
    Change(
        "no gradients while acting",
        "no_grad",
        edits={"def select_action(state):": "@torch.no_grad()\ndef select_action(state):"},
    ),
    Change(
        "one foreach call per target update",
        "foreach_optimizer",
        edits={
            """            for param, target_param in zip(net.parameters(), target.parameters()):
                target_param.data.copy_(tau * param.data + (1 - tau) * target_param.data)
""": """            with torch.no_grad():
                torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), tau)
"""
        },
    ),
    Change("one thread", "threads", edits={"env, size, trans": "torch.set_num_threads(1)\nenv, size, trans"}),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={
            "actor.parameters(), lr=3e-4)": "actor.parameters(), lr=3e-4, fused=True)",
            "*q2.parameters()], lr=3e-4)": "*q2.parameters()], lr=3e-4, fused=True)",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="transitions", seconds=8)
