"""A small Dreamer on the states of a pendulum: recurrent world model, actor and critic, as in replications."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class Pendulum:
    """Swing-up of a pendulum: cosine, sine and speed, one torque, an episode of `limit` actions of two steps each."""

    observation_size, action_size = 3, 1

    def __init__(self, seed: int = 0, limit: int = 100) -> None:
        self.rng = np.random.default_rng(seed)
        self.limit = limit

    def observation(self) -> np.ndarray:
        """The state as the agent sees it."""
        return np.array([np.cos(self.angle), np.sin(self.angle), self.speed / 8], dtype=np.float32)

    def reset(self) -> np.ndarray:
        """Start an episode."""
        self.angle, self.speed = self.rng.uniform(-np.pi, np.pi), self.rng.uniform(-1, 1)
        self.count = 0
        return self.observation()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Apply the torque in two steps."""
        torque, reward = 2 * float(np.clip(action[0], -1, 1)), 0.0
        for _ in range(2):
            reward -= (((self.angle + np.pi) % (2 * np.pi)) - np.pi) ** 2 + 0.1 * self.speed**2 + 0.001 * torque**2
            self.speed = float(np.clip(self.speed + (15 * np.sin(self.angle) + 3 * torque) * 0.05, -8, 8))
            self.angle += self.speed * 0.05
        self.count += 1
        return self.observation(), reward / 16, self.count == self.limit


def prepare(scale: float) -> Namespace:
    """The environment and the number of episodes."""
    return {"Pendulum": Pendulum, "num_episodes": scaled(4, scale)}


CELL = """
import time
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.kl import kl_divergence
from torch.distributions.transforms import TanhTransform

cfg = SimpleNamespace(
    seed_episodes=5, collect_interval=20, batch_size=16, chunk_length=20, horizon=10,
    stoch=30, deter=100, hidden=100, embed=64,
    model_lr=6e-4, actor_lr=8e-5, critic_lr=8e-5, clip_grad_norm=100.0,
    free_nats=3.0, gamma=0.99, lambda_=0.95, buffer_size=10000, test_interval=2,
)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')


def mlp(in_dim, hidden, out_dim, layers=2):
    dims = [in_dim] + [hidden] * layers
    net = []
    for a, b in zip(dims[:-1], dims[1:]):
        net += [nn.Linear(a, b), nn.ELU()]
    return nn.Sequential(*net, nn.Linear(dims[-1], out_dim))


class ReplayBuffer:
    def __init__(self, capacity, obs_dim, act_dim):
        self.obs = np.zeros((capacity, obs_dim), dtype=np.float32)
        self.actions = np.zeros((capacity, act_dim), dtype=np.float32)
        self.rewards = np.zeros((capacity, 1), dtype=np.float32)
        self.done = np.zeros((capacity, 1), dtype=bool)
        self.capacity, self.index, self.full = capacity, 0, False

    def __len__(self):
        return self.capacity if self.full else self.index

    def push(self, obs, action, reward, done):
        self.obs[self.index] = obs
        self.actions[self.index] = action
        self.rewards[self.index] = reward
        self.done[self.index] = done
        self.index = (self.index + 1) % self.capacity
        self.full = self.full or self.index == 0

    def sample(self, batch_size, chunk_length):
        episode_borders = np.where(self.done[:len(self), 0])[0]
        sampled_indexes = []
        for _ in range(batch_size):
            cross_border = True
            while cross_border:
                initial_index = np.random.randint(len(self) - chunk_length + 1)
                final_index = initial_index + chunk_length - 1
                cross_border = np.logical_and(initial_index <= episode_borders,
                                              episode_borders < final_index).any()
            sampled_indexes += list(range(initial_index, final_index + 1))
        shape = (batch_size, chunk_length, -1)
        return [torch.as_tensor(data[sampled_indexes].reshape(shape), device=device)
                for data in (self.obs, self.actions, self.rewards)]


class RSSM(nn.Module):
    def __init__(self, act_dim):
        super().__init__()
        self.fc_state_action = nn.Linear(cfg.stoch + act_dim, cfg.hidden)
        self.rnn = nn.GRUCell(cfg.hidden, cfg.deter)
        self.fc_prior = mlp(cfg.deter, cfg.hidden, 2 * cfg.stoch, layers=1)
        self.fc_posterior = mlp(cfg.deter + cfg.embed, cfg.hidden, 2 * cfg.stoch, layers=1)

    def _dist(self, params):
        mean, std = params.chunk(2, dim=-1)
        return Normal(mean, F.softplus(std) + 0.1)

    def recurrent(self, state, action, rnn_hidden):
        hidden = F.elu(self.fc_state_action(torch.cat([state, action], dim=-1)))
        return self.rnn(hidden, rnn_hidden)

    def prior(self, rnn_hidden):
        return self._dist(self.fc_prior(rnn_hidden))

    def posterior(self, rnn_hidden, embedded_obs):
        return self._dist(self.fc_posterior(torch.cat([rnn_hidden, embedded_obs], dim=-1)))


class Actor(nn.Module):
    def __init__(self, act_dim):
        super().__init__()
        self.net = mlp(cfg.stoch + cfg.deter, cfg.hidden, 2 * act_dim, layers=3)

    def forward(self, state, rnn_hidden, training=True):
        mean, std = self.net(torch.cat([state, rnn_hidden], dim=-1)).chunk(2, dim=-1)
        mean = 5.0 * torch.tanh(mean / 5.0)
        if not training:
            return torch.tanh(mean)
        base = Normal(mean, F.softplus(std + 1.0) + 1e-4)
        return Independent(TransformedDistribution(base, [TanhTransform()]), 1).rsample()


env = Pendulum(seed=1)
obs_dim, act_dim = env.observation_size, env.action_size
feature = cfg.stoch + cfg.deter
encoder = mlp(obs_dim, cfg.hidden, cfg.embed).to(device)
rssm = RSSM(act_dim).to(device)
decoder = mlp(feature, cfg.hidden, obs_dim).to(device)
reward_model = mlp(feature, cfg.hidden, 1).to(device)
actor = Actor(act_dim).to(device)
critic = mlp(feature, cfg.hidden, 1, layers=3).to(device)

model_params = [*encoder.parameters(), *rssm.parameters(), *decoder.parameters(), *reward_model.parameters()]
model_optimizer = torch.optim.Adam(model_params, lr=cfg.model_lr, eps=1e-5)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=cfg.actor_lr, eps=1e-5)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=cfg.critic_lr, eps=1e-5)
buffer = ReplayBuffer(cfg.buffer_size, obs_dim, act_dim)


def compute_model_loss(obs, actions, rewards):
    embedded = encoder(obs)
    state = torch.zeros(len(obs), cfg.stoch, device=device)
    rnn_hidden = torch.zeros(len(obs), cfg.deter, device=device)
    states, rnn_hiddens, priors, posteriors = [], [], [], []
    for t in range(cfg.chunk_length - 1):
        rnn_hidden = rssm.recurrent(state, actions[:, t], rnn_hidden)
        prior = rssm.prior(rnn_hidden)
        posterior = rssm.posterior(rnn_hidden, embedded[:, t + 1])
        state = posterior.rsample()
        states.append(state)
        rnn_hiddens.append(rnn_hidden)
        priors.append(prior)
        posteriors.append(posterior)

    kl = torch.stack([kl_divergence(q, p).sum(dim=-1) for q, p in zip(posteriors, priors)], dim=1)
    kl_loss = kl.clamp(min=cfg.free_nats).mean()
    states, rnn_hiddens = torch.stack(states, dim=1), torch.stack(rnn_hiddens, dim=1)
    features = torch.cat([states, rnn_hiddens], dim=-1)
    obs_loss = 0.5 * F.mse_loss(decoder(features), obs[:, 1:], reduction='none').sum(-1).mean()
    reward_loss = 0.5 * F.mse_loss(reward_model(features), rewards[:, :-1])
    return kl_loss + obs_loss + reward_loss, states.detach(), rnn_hiddens.detach()


def lambda_target(rewards, values):
    returns = []
    last = values[-1]
    for t in reversed(range(len(rewards))):
        last = rewards[t] + cfg.gamma * ((1 - cfg.lambda_) * values[t] + cfg.lambda_ * last)
        returns.append(last)
    return torch.stack(returns[::-1])


def imagine(states, rnn_hiddens):
    state, rnn_hidden = states.flatten(0, 1), rnn_hiddens.flatten(0, 1)
    features = []
    for t in range(cfg.horizon):
        action = actor(state, rnn_hidden)
        rnn_hidden = rssm.recurrent(state, action, rnn_hidden)
        state = rssm.prior(rnn_hidden).rsample()
        features.append(torch.cat([state, rnn_hidden], dim=-1))
    features = torch.stack(features)
    targets = lambda_target(reward_model(features), critic(features))
    return -targets.mean(), features.detach(), targets.detach()


def update():
    obs, actions, rewards = buffer.sample(cfg.batch_size, cfg.chunk_length)
    model_loss, states, rnn_hiddens = compute_model_loss(obs, actions, rewards)
    model_optimizer.zero_grad()
    model_loss.backward()
    nn.utils.clip_grad_norm_(model_params, cfg.clip_grad_norm)
    model_optimizer.step()

    actor_loss, features, targets = imagine(states, rnn_hiddens)
    actor_optimizer.zero_grad()
    actor_loss.backward()
    nn.utils.clip_grad_norm_(actor.parameters(), cfg.clip_grad_norm)
    actor_optimizer.step()

    critic_loss = 0.5 * F.mse_loss(critic(features), targets)
    critic_optimizer.zero_grad()
    critic_loss.backward()
    nn.utils.clip_grad_norm_(critic.parameters(), cfg.clip_grad_norm)
    critic_optimizer.step()
    return model_loss.item(), actor_loss.item(), critic_loss.item()


@torch.no_grad()
def run_episode(explore=True):
    state = torch.zeros(1, cfg.stoch, device=device)
    rnn_hidden = torch.zeros(1, cfg.deter, device=device)
    action = torch.zeros(1, act_dim, device=device)
    obs, done, total_reward = env.reset(), False, 0.0
    while not done:
        embedded = encoder(torch.as_tensor(obs, device=device).unsqueeze(0))
        rnn_hidden = rssm.recurrent(state, action, rnn_hidden)
        state = rssm.posterior(rnn_hidden, embedded).sample()
        action = actor(state, rnn_hidden, training=explore)
        if explore:
            action = (action + 0.1 * torch.randn_like(action)).clamp(-1, 1)
        next_obs, reward, done = env.step(action[0].cpu().numpy())
        if explore:
            buffer.push(obs, action[0].cpu().numpy(), reward, done)
        obs = next_obs
        total_reward += reward
    return total_reward


# random episodes first
for episode in range(cfg.seed_episodes):
    obs, done = env.reset(), False
    while not done:
        action = np.random.uniform(-1, 1, act_dim).astype(np.float32)
        next_obs, reward, done = env.step(action)
        buffer.push(obs, action, reward, done)
        obs = next_obs

chunks_seen = 0
for episode in range(num_episodes):
    start = time.time()
    for update_step in range(cfg.collect_interval):
        model_loss, actor_loss, critic_loss = update()
        chunks_seen += cfg.batch_size
        if (update_step + 1) % 10 == 0:
            print('update_step: %3d model loss: %.5f, actor loss: %.5f, critic loss: %.5f'
                  % (update_step + 1, model_loss, actor_loss, critic_loss))
    total_reward = run_episode()
    print('episode [%4d/%4d] is collected. Total reward is %f, elapsed time: %.2fs'
          % (episode + 1, num_episodes, total_reward, time.time() - start))
    if episode % cfg.test_interval == 0:
        print('test reward at episode [%4d/%4d]: %f' % (episode + 1, num_episodes, run_episode(explore=False)))

torch.save({'encoder': encoder.state_dict(), 'rssm': rssm.state_dict(), 'decoder': decoder.state_dict(),
            'reward': reward_model.state_dict(), 'actor': actor.state_dict(), 'critic': critic.state_dict()},
           'dreamer.pth')
"""

PRIOR = "        prior = rssm.prior(rnn_hidden)\n"
KL = CELL[CELL.index("    kl = torch.stack([kl_div") : CELL.index("    features = torch.cat([states")]
AT_ONCE = """    states, rnn_hiddens = torch.stack(states, dim=1), torch.stack(rnn_hiddens, dim=1)
    means = torch.stack([q.loc for q in posteriors], dim=1)
    stds = torch.stack([q.scale for q in posteriors], dim=1)
    kl_loss = kl_divergence(Normal(means, stds), rssm.prior(rnn_hiddens)).sum(dim=-1).clamp(min=cfg.free_nats).mean()
"""
IMAGINED = """    actor_loss, features, targets = imagine(states, rnn_hiddens)
    actor_optimizer.zero_grad()
    actor_loss.backward()
"""
CHECKED = "device = torch.device("
HALF = "@torch.autocast(device.type, dtype=torch.bfloat16)\n"

CHANGES = (
    Change(
        "priors and divergences of the chunk at once",
        "other",
        edits={PRIOR: "", "        priors.append(prior)\n": "", KL: AT_ONCE},
    ),
    Change(
        "no weight gradients of the world model for the actor",
        "no_grad",
        edits={
            IMAGINED: ""
            "    frozen = [*model_params, *critic.parameters()]\n"
            "    for p in frozen:\n"
            "        p.requires_grad_(False)\n"
            f"{IMAGINED}"
            "    for p in frozen:\n"
            "        p.requires_grad_(True)\n"
        },
    ),
    Change(
        "distributions without argument checks",
        "remove_syncs",
        edits={CHECKED: f"torch.distributions.Distribution.set_default_validate_args(False)\n{CHECKED}"},
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={
            f"lr=cfg.{name}_lr, eps=1e-5)": f"lr=cfg.{name}_lr, eps=1e-5, fused=True)"
            for name in ("model", "actor", "critic")
        },
    ),
    Change(
        "batches of 32",
        "larger_batch",
        edits={"collect_interval=20, batch_size=16,": "collect_interval=10, batch_size=32,"},
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "def compute_model_loss(": f"{HALF}def compute_model_loss(",
            "def imagine(": f"{HALF}def imagine(",
            "    critic_loss = 0.5 * F.mse_loss(critic(features), targets)\n": ""
            "    with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "        critic_loss = 0.5 * F.mse_loss(critic(features), targets)\n",
        },
    ),
    Change("one thread", "threads", edits={CHECKED: f"torch.set_num_threads(1)\n{CHECKED}"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="chunks_seen", loss="model_loss", seconds=8)
