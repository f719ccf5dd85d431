"""QMIX with recurrent agents that cover landmarks on a grid together, as in multi-agent frameworks like PyMARL."""

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """The number of rounds, each of which plays eight episodes."""
    return {"n_rounds": scaled(100, scale, 4)}


CELL = """
import copy
import random
from types import SimpleNamespace as SN
import numpy as np
import torch as th
import torch.nn as nn
import torch.nn.functional as F

args = SN(n_agents=4, n_landmarks=4, n_actions=5, grid=6, sight=3, episode_limit=24,
          batch_size_run=8, buffer_size=512, warmup_rounds=8, batch_size=32, learn_every=1,
          lr=5e-4, gamma=0.99, grad_norm_clip=10, target_update_interval=20, double_q=True,
          epsilon_start=1.0, epsilon_finish=0.05, epsilon_anneal_rounds=80,
          rnn_hidden_dim=64, mixing_embed_dim=32, hypernet_embed=64, log_interval=20, test_interval=40)
args.obs_shape = 2 + 3 * (args.n_agents - 1) + 3 * args.n_landmarks
args.state_shape = 2 * (args.n_agents + args.n_landmarks)


class CoverageEnv:
    MOVES = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)]

    def __init__(self, args, seed):
        self.args = args
        self.rng = random.Random(seed)

    def reset(self):
        cells = [(x, y) for x in range(self.args.grid) for y in range(self.args.grid)]
        picked = self.rng.sample(cells, self.args.n_agents + self.args.n_landmarks)
        self.agents = [list(cell) for cell in picked[:self.args.n_agents]]
        self.landmarks = [list(cell) for cell in picked[self.args.n_agents:]]
        self.covered = self.count_covered()
        self.steps = 0

    def count_covered(self):
        return sum(landmark in self.agents for landmark in self.landmarks)

    def get_obs_agent(self, i):
        x, y = self.agents[i]
        feats = [x / self.args.grid, y / self.args.grid]
        others = [a for j, a in enumerate(self.agents) if j != i]
        for ox, oy in others + self.landmarks:
            if max(abs(ox - x), abs(oy - y)) <= self.args.sight:
                feats += [1.0, (ox - x) / self.args.sight, (oy - y) / self.args.sight]
            else:
                feats += [0.0, 0.0, 0.0]
        return np.array(feats, dtype=np.float32)

    def get_obs(self):
        return [self.get_obs_agent(i) for i in range(self.args.n_agents)]

    def get_state(self):
        return np.array(self.agents + self.landmarks, dtype=np.float32).flatten() / self.args.grid

    def get_avail_agent_actions(self, i):
        x, y = self.agents[i]
        return [int(0 <= x + dx < self.args.grid and 0 <= y + dy < self.args.grid) for dx, dy in self.MOVES]

    def get_avail_actions(self):
        return [self.get_avail_agent_actions(i) for i in range(self.args.n_agents)]

    def step(self, actions):
        for agent, action in zip(self.agents, actions):
            agent[0] += self.MOVES[action][0]
            agent[1] += self.MOVES[action][1]
        collisions = self.args.n_agents - len({tuple(agent) for agent in self.agents})
        covered = self.count_covered()
        reward = 0.5 * (covered - self.covered) - 0.1 * collisions - 0.05
        self.covered = covered
        self.steps += 1
        terminated = covered == self.args.n_landmarks
        if terminated:
            reward += 5
        return reward, terminated, self.steps >= self.args.episode_limit


def new_batch(n, args):
    T = args.episode_limit + 1
    return {'obs': th.zeros(n, T, args.n_agents, args.obs_shape),
            'state': th.zeros(n, T, args.state_shape),
            'avail_actions': th.zeros(n, T, args.n_agents, args.n_actions),
            'actions': th.zeros(n, T, args.n_agents, 1, dtype=th.long),
            'actions_onehot': th.zeros(n, T, args.n_agents, args.n_actions),
            'reward': th.zeros(n, T, 1),
            'terminated': th.zeros(n, T, 1),
            'filled': th.zeros(n, T, 1)}


class ReplayBuffer:
    def __init__(self, args):
        self.data = new_batch(args.buffer_size, args)
        self.buffer_size = args.buffer_size
        self.index, self.episodes_in_buffer = 0, 0

    def insert_episode_batch(self, batch):
        n = batch['obs'].shape[0]
        for k, v in batch.items():
            self.data[k][self.index:self.index + n] = v
        self.index = (self.index + n) % self.buffer_size
        self.episodes_in_buffer = min(self.episodes_in_buffer + n, self.buffer_size)

    def sample(self, batch_size):
        ep_ids = np.random.choice(self.episodes_in_buffer, batch_size, replace=False)
        batch = {k: v[ep_ids] for k, v in self.data.items()}
        max_ep_t = min(int(batch['filled'].sum(1).max()) + 1, batch['filled'].shape[1])
        return {k: v[:, :max_ep_t] for k, v in batch.items()}


class RNNAgent(nn.Module):
    def __init__(self, input_shape, args):
        super().__init__()
        self.args = args
        self.fc1 = nn.Linear(input_shape, args.rnn_hidden_dim)
        self.rnn = nn.GRUCell(args.rnn_hidden_dim, args.rnn_hidden_dim)
        self.fc2 = nn.Linear(args.rnn_hidden_dim, args.n_actions)

    def init_hidden(self):
        return self.fc1.weight.new(1, self.args.rnn_hidden_dim).zero_()

    def forward(self, inputs, hidden_state):
        x = F.relu(self.fc1(inputs))
        h_in = hidden_state.reshape(-1, self.args.rnn_hidden_dim)
        h = self.rnn(x, h_in)
        q = self.fc2(h)
        return q, h


class BasicMAC:
    def __init__(self, args):
        self.args = args
        self.agent = RNNAgent(args.obs_shape + args.n_actions + args.n_agents, args)
        self.hidden_states = None

    def init_hidden(self, batch_size):
        self.hidden_states = self.agent.init_hidden().unsqueeze(0).expand(batch_size, self.args.n_agents, -1)

    def _build_inputs(self, batch, t):
        bs = batch['obs'].shape[0]
        inputs = [batch['obs'][:, t]]
        if t == 0:
            inputs.append(th.zeros_like(batch['actions_onehot'][:, t]))
        else:
            inputs.append(batch['actions_onehot'][:, t - 1])
        inputs.append(th.eye(self.args.n_agents).unsqueeze(0).expand(bs, -1, -1))
        return th.cat([x.reshape(bs * self.args.n_agents, -1) for x in inputs], dim=1)

    def forward(self, batch, t):
        agent_outs, self.hidden_states = self.agent(self._build_inputs(batch, t), self.hidden_states)
        return agent_outs.view(batch['obs'].shape[0], self.args.n_agents, -1)

    def select_actions(self, batch, t, epsilon):
        with th.no_grad():
            q = self.forward(batch, t)
        avail = batch['avail_actions'][:, t]
        q = q.masked_fill(avail == 0, -float('inf'))
        pick_random = (th.rand_like(q[:, :, 0]) < epsilon).long()
        random_actions = th.distributions.Categorical(avail.float() + 1e-8).sample().long()
        return pick_random * random_actions + (1 - pick_random) * q.max(dim=2)[1]

    def parameters(self):
        return self.agent.parameters()

    def load_state(self, other):
        self.agent.load_state_dict(other.agent.state_dict())


class QMixer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n_agents, self.embed_dim, self.state_dim = args.n_agents, args.mixing_embed_dim, args.state_shape
        self.hyper_w_1 = nn.Sequential(nn.Linear(self.state_dim, args.hypernet_embed), nn.ReLU(),
                                       nn.Linear(args.hypernet_embed, self.embed_dim * self.n_agents))
        self.hyper_w_final = nn.Sequential(nn.Linear(self.state_dim, args.hypernet_embed), nn.ReLU(),
                                           nn.Linear(args.hypernet_embed, self.embed_dim))
        self.hyper_b_1 = nn.Linear(self.state_dim, self.embed_dim)
        self.V = nn.Sequential(nn.Linear(self.state_dim, self.embed_dim), nn.ReLU(), nn.Linear(self.embed_dim, 1))

    def forward(self, agent_qs, states):
        bs = agent_qs.size(0)
        states = states.reshape(-1, self.state_dim)
        agent_qs = agent_qs.reshape(-1, 1, self.n_agents)
        w1 = th.abs(self.hyper_w_1(states)).view(-1, self.n_agents, self.embed_dim)
        b1 = self.hyper_b_1(states).view(-1, 1, self.embed_dim)
        hidden = F.elu(th.bmm(agent_qs, w1) + b1)
        w_final = th.abs(self.hyper_w_final(states)).view(-1, self.embed_dim, 1)
        v = self.V(states).view(-1, 1, 1)
        return (th.bmm(hidden, w_final) + v).view(bs, -1, 1)


class Runner:
    def __init__(self, args, mac):
        self.args, self.mac = args, mac
        self.envs = [CoverageEnv(args, seed) for seed in range(args.batch_size_run)]

    def run(self, epsilon):
        for env in self.envs:
            env.reset()
        batch = new_batch(len(self.envs), self.args)
        self.mac.init_hidden(len(self.envs))
        finished = [False] * len(self.envs)
        episode_returns = [0] * len(self.envs)
        for t in range(self.args.episode_limit + 1):
            for i, env in enumerate(self.envs):
                if not finished[i]:
                    batch['obs'][i, t] = th.tensor(np.array(env.get_obs()))
                    batch['state'][i, t] = th.tensor(env.get_state())
                    batch['avail_actions'][i, t] = th.tensor(env.get_avail_actions())
                    batch['filled'][i, t] = 1
                else:
                    batch['avail_actions'][i, t, :, 0] = 1
            actions = self.mac.select_actions(batch, t, epsilon)
            batch['actions'][:, t] = actions.unsqueeze(-1)
            batch['actions_onehot'][:, t] = F.one_hot(actions, self.args.n_actions).float()
            if t == self.args.episode_limit:
                break
            cpu_actions = actions.to('cpu').numpy()
            for i, env in enumerate(self.envs):
                if not finished[i]:
                    reward, terminated, truncated = env.step(cpu_actions[i])
                    batch['reward'][i, t] = reward
                    batch['terminated'][i, t] = float(terminated)
                    episode_returns[i] += reward
                    finished[i] = terminated
            if all(finished):
                break
        return batch, episode_returns


class QLearner:
    def __init__(self, mac, args):
        self.args, self.mac = args, mac
        self.mixer = QMixer(args)
        self.target_mac = copy.deepcopy(mac)
        self.target_mixer = copy.deepcopy(self.mixer)
        self.params = list(mac.parameters()) + list(self.mixer.parameters())
        self.optimiser = th.optim.Adam(params=self.params, lr=args.lr)
        self.train_steps, self.last_target_update = 0, 0

    def compute_loss(self, batch):
        rewards = batch['reward'][:, :-1]
        actions = batch['actions'][:, :-1]
        terminated = batch['terminated'][:, :-1].float()
        mask = batch['filled'][:, :-1].float()
        mask[:, 1:] = mask[:, 1:] * (1 - terminated[:, :-1])
        avail_actions = batch['avail_actions']

        # Estimated Q values of the chosen actions
        mac_out = []
        self.mac.init_hidden(batch['obs'].shape[0])
        for t in range(batch['obs'].shape[1]):
            agent_outs = self.mac.forward(batch, t=t)
            mac_out.append(agent_outs)
        mac_out = th.stack(mac_out, dim=1)
        chosen_action_qvals = th.gather(mac_out[:, :-1], dim=3, index=actions).squeeze(3)

        # Q values of the target network
        target_mac_out = []
        self.target_mac.init_hidden(batch['obs'].shape[0])
        for t in range(batch['obs'].shape[1]):
            target_agent_outs = self.target_mac.forward(batch, t=t)
            target_mac_out.append(target_agent_outs)
        target_mac_out = th.stack(target_mac_out[1:], dim=1)
        target_mac_out[avail_actions[:, 1:] == 0] = -9999999

        if self.args.double_q:
            mac_out_detach = mac_out.clone().detach()
            mac_out_detach[avail_actions == 0] = -9999999
            cur_max_actions = mac_out_detach[:, 1:].max(dim=3, keepdim=True)[1]
            target_max_qvals = th.gather(target_mac_out, 3, cur_max_actions).squeeze(3)
        else:
            target_max_qvals = target_mac_out.max(dim=3)[0]

        # Mix
        chosen_action_qvals = self.mixer(chosen_action_qvals, batch['state'][:, :-1])
        target_max_qvals = self.target_mixer(target_max_qvals, batch['state'][:, 1:])

        # 1-step Q-learning targets
        targets = rewards + self.args.gamma * (1 - terminated) * target_max_qvals
        td_error = chosen_action_qvals - targets.detach()
        mask = mask.expand_as(td_error)
        masked_td_error = td_error * mask
        loss = (masked_td_error ** 2).sum() / mask.sum()
        mask_elems = mask.sum().item()
        stats = {'td_error_abs': masked_td_error.abs().sum().item() / mask_elems,
                 'q_taken_mean': (chosen_action_qvals * mask).sum().item() / (mask_elems * self.args.n_agents),
                 'target_mean': (targets * mask).sum().item() / (mask_elems * self.args.n_agents)}
        return loss, stats

    def train(self, batch):
        loss, stats = self.compute_loss(batch)
        self.optimiser.zero_grad()
        loss.backward()
        grad_norm = th.nn.utils.clip_grad_norm_(self.params, self.args.grad_norm_clip)
        self.optimiser.step()
        self.train_steps += 1
        if self.train_steps - self.last_target_update >= self.args.target_update_interval:
            self.target_mac.load_state(self.mac)
            self.target_mixer.load_state_dict(self.mixer.state_dict())
            self.last_target_update = self.train_steps
        stats.update(loss=loss.item(), grad_norm=grad_norm.item())
        return stats


mac = BasicMAC(args)
learner = QLearner(mac, args)
runner = Runner(args, mac)
buffer = ReplayBuffer(args)

returns, stats, trained_episodes = [], {}, 0
for episode_round in range(args.warmup_rounds + n_rounds):
    decay = min(1.0, max(0, episode_round - args.warmup_rounds) / args.epsilon_anneal_rounds)
    epsilon = args.epsilon_start + decay * (args.epsilon_finish - args.epsilon_start)
    episode_batch, episode_returns = runner.run(epsilon)
    buffer.insert_episode_batch(episode_batch)
    returns.extend(episode_returns)
    if episode_round < args.warmup_rounds:
        continue

    if (episode_round + 1) % args.learn_every == 0:
        stats = learner.train(buffer.sample(args.batch_size))
        trained_episodes += args.batch_size

    if (episode_round + 1) % args.log_interval == 0:
        print('round {:4d} | eps {:.2f} | return_mean {:.3f} | {}'.format(
            episode_round + 1, epsilon, np.mean(returns[-80:]), ' '.join(f'{k} {v:.4f}' for k, v in stats.items())))
    if (episode_round + 1) % args.test_interval == 0:
        _, test_returns = runner.run(epsilon=0.0)
        print('test_return_mean {:.3f}'.format(np.mean(test_returns)))
        th.save(mac.agent.state_dict(), 'agent.th')
        th.save(learner.mixer.state_dict(), 'mixer.th')
        th.save(learner.optimiser.state_dict(), 'opt.th')
"""

UNROLL = CELL[CELL.index("        mac_out = []\n") : CELL.index("        chosen_action_qvals = th.gather(")]
TARGET_UNROLL = CELL[
    CELL.index("        target_mac_out = []\n") : CELL.index("        target_mac_out[avail_actions[:, 1:] == 0]")
]
NO_GRAD_UNROLL = (
    "        with th.no_grad():\n" + "\n".join(f"    {line}" for line in TARGET_UNROLL.rstrip("\n").splitlines()) + "\n"
)
MIX = "        target_max_qvals = self.target_mixer(target_max_qvals, batch['state'][:, 1:])\n"
WHOLE_EPISODES = """    def unroll(self, batch):
        bs, T, n, _ = batch['obs'].shape
        last = F.pad(batch['actions_onehot'][:, :-1], (0, 0, 0, 0, 1, 0))
        ids = th.eye(n).expand(bs, T, -1, -1)
        inputs = th.cat([batch['obs'], last, ids], dim=3).transpose(1, 2).flatten(0, 1)
        self.init_hidden(bs)
        agent_outs, _ = self.agent(inputs, self.hidden_states)
        return agent_outs.view(bs, n, T, -1).transpose(1, 2)

    def select_actions(self, batch, t, epsilon):
"""
CELL_FORWARD = """        h = self.rnn(x, h_in)
        q = self.fc2(h)
        return q, h
"""
SEQUENCE_FORWARD = """        if x.dim() == 2:
            out, h = self.rnn(x.unsqueeze(1), h_in.unsqueeze(0))
            return self.fc2(out.squeeze(1)), h[0]
        out, h = self.rnn(x, h_in.unsqueeze(0).contiguous())
        return self.fc2(out), h[0]
"""
GATHER = CELL[
    CELL.index(
        "            for i, env in enumerate(self.envs):\n                if not finished[i]:\n"
        "                    batch['obs']"
    ) : CELL.index("            actions = self.mac.select_actions(")
]
STEP = CELL[CELL.index("            cpu_actions = actions") : CELL.index("            if all(finished):")]
RESET = "        for env in self.envs:\n            env.reset()\n        batch = new_batch(len(self.envs), self.args)\n"
ARRAYS_RESET = """        n, L = self.args.n_agents, self.args.n_landmarks
        moves = np.array(CoverageEnv.MOVES)
        cells = np.random.rand(len(self.envs), self.args.grid ** 2).argsort(axis=1)[:, :n + L]
        places = np.stack(np.divmod(cells, self.args.grid), axis=2)
        batch = new_batch(len(self.envs), self.args)
        arrays = {k: v.numpy() for k, v in batch.items()}
        hits = lambda: (places[:, n:, None] == places[:, None, :n]).all(3).any(2).sum(1)
        covered = hits()
        others = np.array([[j for j in range(n + L) if j != i] for i in range(n)])
"""
ARRAYS_GATHER = """            done = np.array(finished)
            go = ~done
            offsets = places[:, others] - places[:, :n, None]
            seen = np.abs(offsets).max(3, keepdims=True) <= self.args.sight
            feats = np.concatenate([seen, seen * offsets / self.args.sight], axis=3)
            obs = np.concatenate([places[:, :n] / self.args.grid, feats.reshape(len(places), n, -1)], axis=2)
            after = places[:, :n, None] + moves
            avail = ((after >= 0) & (after < self.args.grid)).all(3)
            arrays['obs'][go, t] = obs[go]
            arrays['state'][go, t] = places[go].reshape(go.sum(), -1) / self.args.grid
            arrays['avail_actions'][go, t] = avail[go]
            arrays['avail_actions'][done, t, :, 0] = 1
            arrays['filled'][go, t] = 1
"""
ARRAYS_STEP = """            cpu_actions = actions.to('cpu').numpy()
            places[go, :n] += moves[cpu_actions[go]]
            spots = np.sort(places[:, :n, 0] * self.args.grid + places[:, :n, 1], axis=1)
            now = hits()
            reward = 0.5 * (now - covered) - 0.1 * (np.diff(spots, axis=1) == 0).sum(1) - 0.05 + 5 * (now == L)
            covered = now
            arrays['reward'][go, t, 0] = reward[go]
            arrays['terminated'][go, t, 0] = (now == L)[go]
            episode_returns = (np.array(episode_returns) + reward * go).tolist()
            finished = (done | (now == L)).tolist()
"""

CHANGES = (
    Change(
        "whole episodes through nn.GRU",
        "remove_python",
        edits={
            "        self.rnn = nn.GRUCell(args.rnn_hidden_dim, args.rnn_hidden_dim)\n": ""
            "        self.rnn = nn.GRU(args.rnn_hidden_dim, args.rnn_hidden_dim, batch_first=True)\n",
            CELL_FORWARD: SEQUENCE_FORWARD,
            "    def select_actions(self, batch, t, epsilon):\n": WHOLE_EPISODES,
            UNROLL: "        mac_out = self.mac.unroll(batch)\n",
            TARGET_UNROLL: "        target_mac_out = self.target_mac.unroll(batch)[:, 1:]\n",
        },
    ),
    Change(
        "targets without a graph",
        "no_grad",
        edits={
            TARGET_UNROLL: NO_GRAD_UNROLL,
            MIX: f"        with th.no_grad():\n    {MIX}",
        },
    ),
    Change(
        "eight games as arrays",
        "other",
        edits={RESET: ARRAYS_RESET, GATHER: ARRAYS_GATHER, STEP: ARRAYS_STEP},
    ),
    Change(
        "64 episodes every second round",
        "larger_batch",
        edits={"batch_size=32, learn_every=1,": "batch_size=64, learn_every=2,"},
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        loss, stats = self.compute_loss(batch)\n": ""
            "        with th.autocast('cpu', dtype=th.bfloat16):\n"
            "            loss, stats = self.compute_loss(batch)\n"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=args.lr)": "lr=args.lr, fused=True)"}),
    Change("one thread", "threads", edits={"mac = BasicMAC(args)\n": "th.set_num_threads(1)\nmac = BasicMAC(args)\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="trained_episodes", loss="stats['loss']", seconds=7)
