"""Conservative Q-learning on a logged data set of a two-link arm, in one file with a dataclass of settings, as in offline RL repositories."""

from typing import Any

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class ArmEnv:
    """A two-link arm in a plane that shall reach a point; it knows the part of Gym's interface that agents use."""

    max_episode_steps = 40
    observation_size = 10
    action_size = 2

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def seed(self, seed: int) -> None:
        """Seed the starting positions."""
        self.rng = np.random.default_rng(seed)

    def observation(self) -> np.ndarray:
        """Angles, velocities, the goal and the way to it."""
        cos, sin = np.cos(self.angles), np.sin(self.angles)
        return np.concatenate([cos, sin, self.velocities, self.goal, self.tip() - self.goal]).astype(np.float32)

    def tip(self) -> np.ndarray:
        """The position of the finger tip."""
        first, both = self.angles[0], self.angles.sum()
        return np.array([np.cos(first) + np.cos(both), np.sin(first) + np.sin(both)]) * 0.1

    def reset(self) -> np.ndarray:
        """Start an episode."""
        self.angles, self.velocities = self.rng.uniform(-0.5, 0.5, 2), np.zeros(2)
        radius, angle = self.rng.uniform(0.05, 0.18), self.rng.uniform(-np.pi, np.pi)
        self.goal, self.steps = radius * np.array([np.cos(angle), np.sin(angle)]), 0
        return self.observation()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        """Apply two torques."""
        action = np.clip(action, -1, 1)
        for _ in range(2):
            self.velocities += 0.05 * (20 * action - 2 * self.velocities)
            self.angles += 0.05 * self.velocities
        self.steps += 1
        reward = -np.linalg.norm(self.tip() - self.goal) * 10 - 0.1 * float(action @ action)
        return self.observation(), float(reward), self.steps >= self.max_episode_steps, {}


def prepare(scale: float) -> Namespace:
    """A file of 8000 transitions by a mediocre controller, and the environment."""
    env, rng = ArmEnv(), np.random.default_rng(1)
    rows: dict[str, list[Any]] = {
        "observations": [],
        "actions": [],
        "rewards": [],
        "next_observations": [],
        "terminals": [],
    }
    observation = env.reset()
    for _ in range(8000):
        first, both = env.angles[0], env.angles.sum()
        jacobian = 0.1 * np.array([[-np.sin(first) - np.sin(both), np.cos(first) + np.cos(both)]] * 2)
        jacobian[1] = 0.1 * np.array([-np.sin(both), np.cos(both)])
        action = np.clip(25 * jacobian @ (env.goal - env.tip()) + rng.normal(0, 0.5, 2), -1, 1).astype(np.float32)
        following, reward, done, _ = env.step(action)
        for name, value in zip(rows, (observation, action, reward, following, False), strict=True):
            rows[name].append(value)
        observation = env.reset() if done else following
    arrays: dict[str, Any] = {name: np.asarray(values, dtype=np.float32) for name, values in rows.items()}
    np.savez("arm-medium-v0.npz", **arrays)
    return {"ArmEnv": ArmEnv, "max_timesteps": scaled(200, scale, 20)}


CELL = """
import os
import random
import uuid
from copy import deepcopy
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal, TanhTransform, TransformedDistribution


@dataclass
class TrainConfig:
    device: str = 'cuda' if torch.cuda.is_available() else 'cpu'
    env: str = 'arm-medium-v0'
    seed: int = 0
    eval_freq: int = 20
    n_episodes: int = 5
    max_timesteps: int = max_timesteps
    checkpoints_path: str = 'checkpoints'
    buffer_size: int = 20_000
    batch_size: int = 128
    discount: float = 0.99
    alpha_multiplier: float = 1.0
    use_automatic_entropy_tuning: bool = True
    policy_lr: float = 3e-4
    qf_lr: float = 3e-4
    soft_target_update_rate: float = 5e-3
    hidden: int = 128
    n_hidden_layers: int = 3
    cql_n_actions: int = 10
    cql_alpha: float = 5.0
    cql_temp: float = 1.0
    cql_clip_diff_min: float = -np.inf
    cql_clip_diff_max: float = np.inf
    normalize: bool = True
    normalize_reward: bool = False

    def __post_init__(self):
        self.name = f'CQL-{self.env}-{str(uuid.uuid4())[:8]}'
        self.checkpoints_path = os.path.join(self.checkpoints_path, self.name)


config = TrainConfig()
device = torch.device(config.device)


def set_seed(seed, env):
    env.seed(seed)
    os.environ['PYTHONHASHSEED'] = str(seed)
    np.random.seed(seed)
    random.seed(seed)
    torch.manual_seed(seed)


class ReplayBuffer:
    def __init__(self, state_dim, action_dim, buffer_size, device):
        self._size = 0
        self._states = torch.zeros((buffer_size, state_dim), dtype=torch.float32, device=device)
        self._actions = torch.zeros((buffer_size, action_dim), dtype=torch.float32, device=device)
        self._rewards = torch.zeros((buffer_size, 1), dtype=torch.float32, device=device)
        self._next_states = torch.zeros((buffer_size, state_dim), dtype=torch.float32, device=device)
        self._dones = torch.zeros((buffer_size, 1), dtype=torch.float32, device=device)
        self._device = device

    def _to_tensor(self, data):
        return torch.tensor(data, dtype=torch.float32, device=self._device)

    def load_dataset(self, data):
        n = data['observations'].shape[0]
        self._states[:n] = self._to_tensor(data['observations'])
        self._actions[:n] = self._to_tensor(data['actions'])
        self._rewards[:n] = self._to_tensor(data['rewards'][..., None])
        self._next_states[:n] = self._to_tensor(data['next_observations'])
        self._dones[:n] = self._to_tensor(data['terminals'][..., None])
        self._size = n
        print(f'Dataset size: {n}')

    def sample(self, batch_size):
        indices = np.random.randint(0, self._size, size=batch_size)
        return [self._states[indices], self._actions[indices], self._rewards[indices], self._next_states[indices],
                self._dones[indices]]


def extend_and_repeat(tensor, dim, repeat):
    return tensor.unsqueeze(dim).repeat_interleave(repeat, dim=dim)


class Scalar(nn.Module):
    def __init__(self, init_value):
        super().__init__()
        self.constant = nn.Parameter(torch.tensor(init_value, dtype=torch.float32))

    def forward(self):
        return self.constant


def mlp(n_in, n_out, hidden, n_layers):
    layers = []
    for _ in range(n_layers):
        layers += [nn.Linear(n_in, hidden), nn.ReLU()]
        n_in = hidden
    layers.append(nn.Linear(hidden, n_out))
    return nn.Sequential(*layers)


class TanhGaussianPolicy(nn.Module):
    def __init__(self, state_dim, action_dim, hidden, n_layers, log_std_multiplier=1.0, log_std_offset=-1.0):
        super().__init__()
        self.base_network = mlp(state_dim, 2 * action_dim, hidden, n_layers)
        self.log_std_multiplier = Scalar(log_std_multiplier)
        self.log_std_offset = Scalar(log_std_offset)
        self.log_std_min, self.log_std_max = -20.0, 2.0

    def forward(self, observations, deterministic=False, repeat=None):
        if repeat is not None:
            observations = extend_and_repeat(observations, 1, repeat)
        mean, log_std = torch.chunk(self.base_network(observations), 2, dim=-1)
        log_std = self.log_std_multiplier() * log_std + self.log_std_offset()
        std = torch.exp(torch.clamp(log_std, self.log_std_min, self.log_std_max))
        dist = TransformedDistribution(Normal(mean, std), TanhTransform(cache_size=1), validate_args=False)
        action = torch.tanh(mean) if deterministic else dist.rsample()
        return action, dist.log_prob(action).sum(dim=-1)

    @torch.no_grad()
    def act(self, state, device='cpu'):
        state = torch.tensor(state.reshape(1, -1), device=device, dtype=torch.float32)
        actions, _ = self(state, not self.training)
        return actions.cpu().data.numpy().flatten()


class FullyConnectedQFunction(nn.Module):
    def __init__(self, state_dim, action_dim, hidden, n_layers):
        super().__init__()
        self.network = mlp(state_dim + action_dim, 1, hidden, n_layers)

    def forward(self, observations, actions):
        multiple_actions = False
        batch_size = observations.shape[0]
        if actions.ndim == 3 and observations.ndim == 2:
            multiple_actions = True
            observations = extend_and_repeat(observations, 1, actions.shape[1]).reshape(-1, observations.shape[-1])
            actions = actions.reshape(-1, actions.shape[-1])
        q_values = torch.squeeze(self.network(torch.cat([observations, actions], dim=-1)), dim=-1)
        if multiple_actions:
            q_values = q_values.reshape(batch_size, -1)
        return q_values


class ContinuousCQL:
    def __init__(self, config, critic_1, critic_2, actor, target_entropy):
        self.c = config
        self.critic_1, self.critic_2, self.actor = critic_1, critic_2, actor
        self.target_critic_1 = deepcopy(critic_1).to(device)
        self.target_critic_2 = deepcopy(critic_2).to(device)
        self.critic_1_optimizer = torch.optim.Adam(critic_1.parameters(), config.qf_lr)
        self.critic_2_optimizer = torch.optim.Adam(critic_2.parameters(), config.qf_lr)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), config.policy_lr)
        self.target_entropy = target_entropy
        self.log_alpha = Scalar(0.0)
        self.alpha_optimizer = torch.optim.Adam(self.log_alpha.parameters(), lr=config.policy_lr)
        self.total_it = 0

    def update_target_network(self, tau):
        for source, target in ((self.critic_1, self.target_critic_1), (self.critic_2, self.target_critic_2)):
            for p, tp in zip(source.parameters(), target.parameters()):
                tp.data.copy_((1 - tau) * tp.data + tau * p.data)

    def _alpha_and_alpha_loss(self, log_pi):
        alpha_loss = -(self.log_alpha() * (log_pi + self.target_entropy).detach()).mean()
        alpha = self.log_alpha().exp() * self.c.alpha_multiplier
        return alpha, alpha_loss

    def _policy_loss(self, observations, new_actions, alpha, log_pi):
        q_new_actions = torch.min(self.critic_1(observations, new_actions), self.critic_2(observations, new_actions))
        return (alpha.detach() * log_pi - q_new_actions).mean()

    def _q_loss(self, observations, actions, next_observations, rewards, dones, alpha, log_dict):
        c = self.c
        q1_predicted = self.critic_1(observations, actions)
        q2_predicted = self.critic_2(observations, actions)

        new_next_actions, next_log_pi = self.actor(next_observations)
        target_q_values = torch.min(self.target_critic_1(next_observations, new_next_actions),
                                    self.target_critic_2(next_observations, new_next_actions))
        td_target = rewards.squeeze(-1) + (1.0 - dones.squeeze(-1)) * c.discount * target_q_values.detach()
        qf1_loss = F.mse_loss(q1_predicted, td_target)
        qf2_loss = F.mse_loss(q2_predicted, td_target)

        # CQL
        batch_size, action_dim = actions.shape
        cql_random_actions = actions.new_empty((batch_size, c.cql_n_actions, action_dim)).uniform_(-1, 1)
        cql_current_actions, cql_current_log_pis = self.actor(observations, repeat=c.cql_n_actions)
        cql_next_actions, cql_next_log_pis = self.actor(next_observations, repeat=c.cql_n_actions)
        cql_current_actions, cql_current_log_pis = cql_current_actions.detach(), cql_current_log_pis.detach()
        cql_next_actions, cql_next_log_pis = cql_next_actions.detach(), cql_next_log_pis.detach()

        cql_q1_rand = self.critic_1(observations, cql_random_actions)
        cql_q2_rand = self.critic_2(observations, cql_random_actions)
        cql_q1_current_actions = self.critic_1(observations, cql_current_actions)
        cql_q2_current_actions = self.critic_2(observations, cql_current_actions)
        cql_q1_next_actions = self.critic_1(observations, cql_next_actions)
        cql_q2_next_actions = self.critic_2(observations, cql_next_actions)

        random_density = np.log(0.5 ** action_dim)
        cql_cat_q1 = torch.cat([cql_q1_rand - random_density, cql_q1_next_actions - cql_next_log_pis,
                                cql_q1_current_actions - cql_current_log_pis], dim=1)
        cql_cat_q2 = torch.cat([cql_q2_rand - random_density, cql_q2_next_actions - cql_next_log_pis,
                                cql_q2_current_actions - cql_current_log_pis], dim=1)
        cql_std_q1 = torch.std(cql_cat_q1, dim=1)
        cql_std_q2 = torch.std(cql_cat_q2, dim=1)
        cql_qf1_ood = torch.logsumexp(cql_cat_q1 / c.cql_temp, dim=1) * c.cql_temp
        cql_qf2_ood = torch.logsumexp(cql_cat_q2 / c.cql_temp, dim=1) * c.cql_temp
        cql_qf1_diff = torch.clamp(cql_qf1_ood - q1_predicted, c.cql_clip_diff_min, c.cql_clip_diff_max).mean()
        cql_qf2_diff = torch.clamp(cql_qf2_ood - q2_predicted, c.cql_clip_diff_min, c.cql_clip_diff_max).mean()
        qf_loss = qf1_loss + qf2_loss + c.cql_alpha * (cql_qf1_diff + cql_qf2_diff)

        log_dict.update(dict(
            qf1_loss=qf1_loss.item(), qf2_loss=qf2_loss.item(), alpha=alpha.item(),
            average_qf1=q1_predicted.mean().item(), average_qf2=q2_predicted.mean().item(),
            average_target_q=target_q_values.mean().item(),
            cql_std_q1=cql_std_q1.mean().item(), cql_std_q2=cql_std_q2.mean().item(),
            cql_q1_rand=cql_q1_rand.mean().item(), cql_q2_rand=cql_q2_rand.mean().item(),
            cql_qf1_diff=cql_qf1_diff.item(), cql_qf2_diff=cql_qf2_diff.item(),
            cql_q1_current_actions=cql_q1_current_actions.mean().item(),
            cql_q2_current_actions=cql_q2_current_actions.mean().item(),
            cql_q1_next_actions=cql_q1_next_actions.mean().item(),
            cql_q2_next_actions=cql_q2_next_actions.mean().item(),
        ))
        return qf_loss

    def train(self, batch):
        observations, actions, rewards, next_observations, dones = batch
        self.total_it += 1

        new_actions, log_pi = self.actor(observations)
        alpha, alpha_loss = self._alpha_and_alpha_loss(log_pi)
        policy_loss = self._policy_loss(observations, new_actions, alpha, log_pi)
        log_dict = dict(log_pi=log_pi.mean().item(), policy_loss=policy_loss.item(), alpha_loss=alpha_loss.item())

        if self.c.use_automatic_entropy_tuning:
            self.alpha_optimizer.zero_grad()
            alpha_loss.backward()
            self.alpha_optimizer.step()

        self.actor_optimizer.zero_grad()
        policy_loss.backward()
        self.actor_optimizer.step()

        qf_loss = self._q_loss(observations, actions, next_observations, rewards, dones, alpha, log_dict)
        self.critic_1_optimizer.zero_grad()
        self.critic_2_optimizer.zero_grad()
        qf_loss.backward()
        self.critic_1_optimizer.step()
        self.critic_2_optimizer.step()

        self.update_target_network(self.c.soft_target_update_rate)
        return log_dict

    def state_dict(self):
        return {'actor': self.actor.state_dict(), 'critic1': self.critic_1.state_dict(),
                'critic2': self.critic_2.state_dict(), 'critic1_target': self.target_critic_1.state_dict(),
                'critic2_target': self.target_critic_2.state_dict(),
                'critic_1_optimizer': self.critic_1_optimizer.state_dict(),
                'critic_2_optimizer': self.critic_2_optimizer.state_dict(),
                'actor_optim': self.actor_optimizer.state_dict(), 'total_it': self.total_it}


@torch.no_grad()
def eval_actor(env, actor, device, n_episodes, seed):
    env.seed(seed)
    actor.eval()
    episode_rewards = []
    for _ in range(n_episodes):
        state, done = env.reset(), False
        episode_reward = 0.0
        while not done:
            action = actor.act((state - state_mean) / state_std, device)
            state, reward, done, _ = env.step(action)
            episode_reward += reward
        episode_rewards.append(episode_reward)
    actor.train()
    return np.asarray(episode_rewards)


env = ArmEnv()
state_dim, action_dim = env.observation_size, env.action_size
dataset = dict(np.load(f'{config.env}.npz'))
if config.normalize_reward:
    dataset['rewards'] = dataset['rewards'] / np.abs(dataset['rewards']).max()
if config.normalize:
    state_mean, state_std = dataset['observations'].mean(0), dataset['observations'].std(0) + 1e-3
else:
    state_mean, state_std = 0, 1
dataset['observations'] = (dataset['observations'] - state_mean) / state_std
dataset['next_observations'] = (dataset['next_observations'] - state_mean) / state_std

replay_buffer = ReplayBuffer(state_dim, action_dim, config.buffer_size, device)
replay_buffer.load_dataset(dataset)
os.makedirs(config.checkpoints_path, exist_ok=True)
set_seed(config.seed, env)

critic_1 = FullyConnectedQFunction(state_dim, action_dim, config.hidden, config.n_hidden_layers).to(device)
critic_2 = FullyConnectedQFunction(state_dim, action_dim, config.hidden, config.n_hidden_layers).to(device)
actor = TanhGaussianPolicy(state_dim, action_dim, config.hidden, config.n_hidden_layers).to(device)
trainer = ContinuousCQL(config, critic_1, critic_2, actor, target_entropy=-float(action_dim))

print('---------------------------------------')
print(f'Training CQL, Env: {config.env}, Seed: {config.seed}, {asdict(config)}')
print('---------------------------------------')

evaluations, logs, transitions = [], [], 0
for t in range(config.max_timesteps):
    batch = replay_buffer.sample(config.batch_size)
    batch = [b.to(device) for b in batch]
    log_dict = trainer.train(batch)
    logs.append(log_dict)
    transitions += len(batch[0])
    if (t + 1) % config.eval_freq == 0:
        eval_scores = eval_actor(env, actor, device, n_episodes=config.n_episodes, seed=config.seed)
        evaluations.append(eval_scores.mean())
        print(f'Time steps: {t + 1}  Evaluation over {config.n_episodes} episodes: {eval_scores.mean():.3f}')
        torch.save(trainer.state_dict(), os.path.join(config.checkpoints_path, f'checkpoint_{t}.pt'))
"""

SIX_CALLS = CELL[CELL.index("        cql_q1_rand = self.critic_1") : CELL.index("        random_density")]
TWO_CALLS = """        cql_all_actions = torch.cat([cql_random_actions, cql_current_actions, cql_next_actions], dim=1)
        cql_q1_rand, cql_q1_current_actions, cql_q1_next_actions = torch.chunk(
            self.critic_1(observations, cql_all_actions), 3, dim=1)
        cql_q2_rand, cql_q2_current_actions, cql_q2_next_actions = torch.chunk(
            self.critic_2(observations, cql_all_actions), 3, dim=1)

"""
LOG = CELL[CELL.index("        log_dict.update(dict(\n") : CELL.index("        return qf_loss\n")]
ACTOR_CALLS = CELL[
    CELL.index("        cql_current_actions, cql_current_log_pis = self.actor(") : CELL.index(
        "        cql_current_actions, cql_current_log_pis = cql_current_actions.detach()"
    )
]
NEXT_CALLS = CELL[CELL.index("        new_next_actions, next_log_pi") : CELL.index("        td_target = ")]
EPISODES = CELL[CELL.index("    episode_rewards = []\n") : CELL.index("    actor.train()\n")]
TOGETHER = """    envs = [deepcopy(env) for _ in range(n_episodes)]
    for i, e in enumerate(envs):
        e.seed(seed + i)
    states = np.stack([e.reset() for e in envs])
    episode_rewards, done = np.zeros(n_episodes), False
    while not done:
        actions, _ = actor(torch.as_tensor((states - state_mean) / state_std, dtype=torch.float32, device=device), True)
        results = [e.step(action) for e, action in zip(envs, actions.cpu().numpy())]
        states = np.stack([result[0] for result in results])
        episode_rewards += [result[1] for result in results]
        done = results[0][2]
"""
Q_LOSS = "        qf_loss = self._q_loss(observations, actions, next_observations, rewards, dones, alpha, log_dict)\n"
POLICY = """        new_actions, log_pi = self.actor(observations)
        alpha, alpha_loss = self._alpha_and_alpha_loss(log_pi)
        policy_loss = self._policy_loss(observations, new_actions, alpha, log_pi)
"""


def indented(lines: str) -> str:
    """The lines four spaces further to the right."""
    return "".join(f"    {line}" if line.strip() else line for line in lines.splitlines(keepends=True))


CHANGES = (
    Change("three calls of each critic joined", "other", edits={SIX_CALLS: TWO_CALLS}),
    Change(
        "no graph of sampled actions, no critic gradients in the policy's step",
        "no_grad",
        edits={
            ACTOR_CALLS: "        with torch.no_grad():\n" + indented(ACTOR_CALLS),
            NEXT_CALLS: "        with torch.no_grad():\n" + indented(NEXT_CALLS),
            "        policy_loss = self._policy_loss(observations, new_actions, alpha, log_pi)\n": ""
            "        self.critic_1.requires_grad_(False)\n"
            "        self.critic_2.requires_grad_(False)\n"
            "        policy_loss = self._policy_loss(observations, new_actions, alpha, log_pi)\n",
            "        policy_loss.backward()\n": ""
            "        policy_loss.backward()\n"
            "        self.critic_1.requires_grad_(True)\n"
            "        self.critic_2.requires_grad_(True)\n",
        },
    ),
    Change(
        "numbers logged every 20 steps",
        "fewer_logs",
        edits={LOG: "        if self.total_it % 20 == 0:\n" + indented(LOG)},
    ),
    Change("evaluation episodes side by side", "other", edits={EPISODES: TOGETHER}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            POLICY: "        with torch.autocast(device.type, dtype=torch.bfloat16):\n" + indented(POLICY),
            Q_LOSS: "        with torch.autocast(device.type, dtype=torch.bfloat16):\n" + indented(Q_LOSS),
        },
    ),
    Change(
        "batches of 256",
        "larger_batch",
        edits={
            "batch_size: int = 128": "batch_size: int = 256",
            "max_timesteps: int = max_timesteps": "max_timesteps: int = max_timesteps // 2",
            "eval_freq: int = 20": "eval_freq: int = 10",
        },
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={
            "critic_1.parameters(), config.qf_lr)": "critic_1.parameters(), config.qf_lr, fused=True)",
            "critic_2.parameters(), config.qf_lr)": "critic_2.parameters(), config.qf_lr, fused=True)",
            "actor.parameters(), config.policy_lr)": "actor.parameters(), config.policy_lr, fused=True)",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="transitions", loss="log_dict['policy_loss']", seconds=5)
