"""A Decision Transformer on stored trajectories; every batch sums up returns-to-go in Python, as in the authors' code."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Trajectories of a hopper-like robot, up to 1000 steps long."""
    rng = np.random.default_rng(0)
    trajectories = []
    for _ in range(120):
        length = int(rng.integers(200, 1001))
        terminals = np.zeros(length, dtype=bool)
        terminals[-1] = True
        trajectories.append(
            {
                "observations": rng.normal(0, 1, (length, 11)).cumsum(0).astype(np.float32) / 10,
                "actions": np.tanh(rng.normal(0, 1, (length, 3))).astype(np.float32),
                "rewards": rng.gamma(2.0, 1.5, length).astype(np.float32),
                "terminals": terminals,
            }
        )
    return {"trajectories": trajectories, "num_steps": scaled(92, scale, 4)}


CELL = """
import random
import time

import numpy as np
import torch
import torch.nn as nn

device = 'cuda' if torch.cuda.is_available() else 'cpu'
K, batch_size, embed_dim, n_layer, n_head = 20, 32, 128, 3, 1
state_dim, act_dim, max_ep_len, scale = 11, 3, 1000, 1000.


def discount_cumsum(x, gamma):
    discount_cumsum = np.zeros_like(x)
    discount_cumsum[-1] = x[-1]
    for t in reversed(range(x.shape[0] - 1)):
        discount_cumsum[t] = x[t] + gamma * discount_cumsum[t + 1]
    return discount_cumsum


# save all path information into separate lists
states, traj_lens, returns = [], [], []
for path in trajectories:
    states.append(path['observations'])
    traj_lens.append(len(path['observations']))
    returns.append(path['rewards'].sum())
traj_lens, returns = np.array(traj_lens), np.array(returns)

# used for input normalization
states = np.concatenate(states, axis=0)
state_mean, state_std = np.mean(states, axis=0), np.std(states, axis=0) + 1e-6

# used to reweight sampling so we sample according to timesteps instead of trajectories
sorted_inds = np.argsort(returns)
p_sample = traj_lens[sorted_inds] / sum(traj_lens[sorted_inds])
num_trajectories = len(trajectories)


def get_batch(batch_size=256, max_len=K):
    batch_inds = np.random.choice(np.arange(num_trajectories), size=batch_size, replace=True, p=p_sample)

    s, a, r, d, rtg, timesteps, mask = [], [], [], [], [], [], []
    for i in range(batch_size):
        traj = trajectories[int(sorted_inds[batch_inds[i]])]
        si = random.randint(0, traj['rewards'].shape[0] - 1)

        # get sequences from dataset
        s.append(traj['observations'][si:si + max_len].reshape(1, -1, state_dim))
        a.append(traj['actions'][si:si + max_len].reshape(1, -1, act_dim))
        r.append(traj['rewards'][si:si + max_len].reshape(1, -1, 1))
        d.append(traj['terminals'][si:si + max_len].reshape(1, -1))
        timesteps.append(np.arange(si, si + s[-1].shape[1]).reshape(1, -1))
        timesteps[-1][timesteps[-1] >= max_ep_len] = max_ep_len - 1  # padding cutoff
        rtg.append(discount_cumsum(traj['rewards'][si:], gamma=1.)[:s[-1].shape[1] + 1].reshape(1, -1, 1))
        if rtg[-1].shape[1] <= s[-1].shape[1]:
            rtg[-1] = np.concatenate([rtg[-1], np.zeros((1, 1, 1))], axis=1)

        # padding and state + reward normalization
        tlen = s[-1].shape[1]
        s[-1] = np.concatenate([np.zeros((1, max_len - tlen, state_dim)), s[-1]], axis=1)
        s[-1] = (s[-1] - state_mean) / state_std
        a[-1] = np.concatenate([np.ones((1, max_len - tlen, act_dim)) * -10., a[-1]], axis=1)
        r[-1] = np.concatenate([np.zeros((1, max_len - tlen, 1)), r[-1]], axis=1)
        d[-1] = np.concatenate([np.ones((1, max_len - tlen)) * 2, d[-1]], axis=1)
        rtg[-1] = np.concatenate([np.zeros((1, max_len - tlen, 1)), rtg[-1]], axis=1) / scale
        timesteps[-1] = np.concatenate([np.zeros((1, max_len - tlen)), timesteps[-1]], axis=1)
        mask.append(np.concatenate([np.zeros((1, max_len - tlen)), np.ones((1, tlen))], axis=1))

    s = torch.from_numpy(np.concatenate(s, axis=0)).to(dtype=torch.float32, device=device)
    a = torch.from_numpy(np.concatenate(a, axis=0)).to(dtype=torch.float32, device=device)
    r = torch.from_numpy(np.concatenate(r, axis=0)).to(dtype=torch.float32, device=device)
    d = torch.from_numpy(np.concatenate(d, axis=0)).to(dtype=torch.long, device=device)
    rtg = torch.from_numpy(np.concatenate(rtg, axis=0)).to(dtype=torch.float32, device=device)
    timesteps = torch.from_numpy(np.concatenate(timesteps, axis=0)).to(dtype=torch.long, device=device)
    mask = torch.from_numpy(np.concatenate(mask, axis=0)).to(device=device)
    return s, a, r, d, rtg, timesteps, mask


class DecisionTransformer(nn.Module):
    def __init__(self, state_dim, act_dim, hidden_size, max_ep_len=4096):
        super().__init__()
        self.act_dim, self.hidden_size = act_dim, hidden_size
        layer = nn.TransformerEncoderLayer(hidden_size, n_head, 4 * hidden_size, dropout=0.1, batch_first=True, norm_first=True)
        self.transformer = nn.TransformerEncoder(layer, n_layer, enable_nested_tensor=False)
        self.embed_timestep = nn.Embedding(max_ep_len, hidden_size)
        self.embed_return = torch.nn.Linear(1, hidden_size)
        self.embed_state = torch.nn.Linear(state_dim, hidden_size)
        self.embed_action = torch.nn.Linear(act_dim, hidden_size)
        self.embed_ln = nn.LayerNorm(hidden_size)
        self.predict_action = nn.Sequential(nn.Linear(hidden_size, act_dim), nn.Tanh())

    def forward(self, states, actions, returns_to_go, timesteps, attention_mask):
        batch_size, seq_length = states.shape[0], states.shape[1]
        time_embeddings = self.embed_timestep(timesteps)
        state_embeddings = self.embed_state(states) + time_embeddings
        action_embeddings = self.embed_action(actions) + time_embeddings
        returns_embeddings = self.embed_return(returns_to_go) + time_embeddings

        # this makes the sequence look like (R_1, s_1, a_1, R_2, s_2, a_2, ...)
        stacked = torch.stack((returns_embeddings, state_embeddings, action_embeddings), dim=1)
        stacked = self.embed_ln(stacked.permute(0, 2, 1, 3).reshape(batch_size, 3 * seq_length, self.hidden_size))
        pad = torch.stack((attention_mask,) * 3, dim=1).permute(0, 2, 1).reshape(batch_size, 3 * seq_length) == 0
        causal = torch.ones(3 * seq_length, 3 * seq_length, dtype=torch.bool, device=stacked.device).triu(1)
        blocked = causal[None] | pad[:, None, :]
        blocked = blocked & ~torch.eye(3 * seq_length, dtype=torch.bool, device=stacked.device)
        x = self.transformer(stacked, mask=blocked.repeat_interleave(n_head, 0))
        x = x.reshape(batch_size, seq_length, 3, self.hidden_size).permute(0, 2, 1, 3)
        return self.predict_action(x[:, 1])


class SequenceTrainer:
    def __init__(self, model, optimizer, batch_size, get_batch, loss_fn, scheduler=None):
        self.model, self.optimizer, self.batch_size = model, optimizer, batch_size
        self.get_batch, self.loss_fn, self.scheduler = get_batch, loss_fn, scheduler
        self.diagnostics = dict()
        self.sequences = 0
        self.start_time = time.time()

    def train_iteration(self, num_steps, iter_num=0, print_logs=False):
        train_losses, logs = [], dict()
        train_start = time.time()
        self.model.train()
        for _ in range(num_steps):
            train_losses.append(self.train_step())
            if self.scheduler is not None:
                self.scheduler.step()
        logs['time/training'] = time.time() - train_start
        logs['training/train_loss_mean'] = np.mean(train_losses)
        logs['training/train_loss_std'] = np.std(train_losses)
        logs.update(self.diagnostics)
        if print_logs:
            print('=' * 80)
            print(f'Iteration {iter_num}')
            for k, v in logs.items():
                print(f'{k}: {v}')
        return logs

    def train_step(self):
        states, actions, rewards, dones, rtg, timesteps, attention_mask = self.get_batch(self.batch_size)
        action_target = torch.clone(actions)
        action_preds = self.model.forward(states, actions, rtg[:, :-1], timesteps, attention_mask=attention_mask)
        act_dim = action_preds.shape[2]
        action_preds = action_preds.reshape(-1, act_dim)[attention_mask.reshape(-1) > 0]
        action_target = action_target.reshape(-1, act_dim)[attention_mask.reshape(-1) > 0]
        loss = self.loss_fn(action_preds, action_target)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), .25)
        self.optimizer.step()
        with torch.no_grad():
            self.diagnostics['training/action_error'] = torch.mean((action_preds - action_target) ** 2).detach().cpu().item()
        self.sequences += len(states)
        return loss.detach().cpu().item()


model = DecisionTransformer(state_dim, act_dim, embed_dim, max_ep_len).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda steps: min((steps + 1) / 1000, 1))
trainer = SequenceTrainer(model, optimizer, batch_size, get_batch, lambda a_hat, a: torch.mean((a_hat - a) ** 2), scheduler)
for it in range(2):
    outputs = trainer.train_iteration(num_steps=num_steps // 2 * 32 // batch_size, iter_num=it + 1, print_logs=True)
"""

_SUM = "discount_cumsum(traj['rewards'][si:], gamma=1.)"

CHANGES = (
    Change(
        "returns-to-go once per trajectory",
        "cache_items",
        edits={
            "traj_lens, returns = np.array(traj_lens)": "for path in trajectories:\n"
            "    path['rtg'] = discount_cumsum(path['rewards'], gamma=1.)\ntraj_lens, returns = np.array(traj_lens)",
            _SUM: "traj['rtg'][si:]",
        },
    ),
    Change(
        "np.cumsum for returns-to-go",
        "vectorize_items",
        edits={_SUM: "np.cumsum(traj['rewards'][si:][::-1])[::-1]"},
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        action_preds = self.model.forward(states, actions, rtg[:, :-1], timesteps, attention_mask=attention_mask)\n": ""
            "        with torch.autocast(device, dtype=torch.bfloat16):\n"
            "            action_preds = self.model.forward(states, actions, rtg[:, :-1], timesteps, attention_mask=attention_mask)\n"
            "        action_preds = action_preds.float()\n"
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=1e-4)": "weight_decay=1e-4, fused=True)"}),
    Change(
        "foreach clipping",
        "clip_grad",
        edits={
            "clip_grad_norm_(self.model.parameters(), .25)": "clip_grad_norm_(self.model.parameters(), .25, foreach=True)"
        },
    ),
    Change(
        "batches of 64",
        "larger_batch",
        edits={
            "K, batch_size, embed_dim, n_layer, n_head = 20, 32": "K, batch_size, embed_dim, n_layer, n_head = 20, 64"
        },
    ),
)

LOOP = Loop(
    __doc__, prepare, CELL, CHANGES, samples="trainer.sequences", loss="outputs['training/train_loss_mean']", seconds=11
)
