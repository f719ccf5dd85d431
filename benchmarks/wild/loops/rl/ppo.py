"""PPO with a Python list of environments, in the manner of CleanRL's single file."""

from benchmarks.wild.loop import Change, Loop, Namespace, scaled
from benchmarks.wild.loops.rl._cartpole import CartPole


def prepare(scale: float) -> Namespace:
    """Four environments and a budget of iterations."""
    return {"envs": [CartPole() for _ in range(4)], "num_iterations": scaled(45, scale)}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical

num_envs, num_steps, update_epochs, num_minibatches = 4, 128, 4, 4
gamma, gae_lambda, clip_coef, ent_coef, vf_coef, max_grad_norm = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5
batch_size = num_envs * num_steps
minibatch_size = batch_size // num_minibatches
device = torch.device('cpu')

def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
                                    layer_init(nn.Linear(64, 1), std=1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
                                   layer_init(nn.Linear(64, 2), std=0.01))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)

def step_envs(actions):
    results = []
    for env, a in zip(envs, actions):
        o, r, term, trunc, _ = env.step(a)
        if term or trunc:
            o, _ = env.reset()
        results.append((o, r, term or trunc))
    o, r, d = zip(*results)
    return np.stack(o), np.array(r, dtype=np.float32), np.array(d)

agent = Agent().to(device)
optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
obs = torch.zeros((num_steps, num_envs, 4))
actions = torch.zeros((num_steps, num_envs))
logprobs, rewards, dones, values = (torch.zeros((num_steps, num_envs)) for _ in range(4))
global_step = 0
next_obs = torch.Tensor(np.stack([env.reset(seed=1 + i)[0] for i, env in enumerate(envs)]))
next_done = torch.zeros(num_envs)

for iteration in range(1, num_iterations + 1):
    for step in range(num_steps):
        global_step += num_envs
        obs[step] = next_obs
        dones[step] = next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step] = action
        logprobs[step] = logprob
        next_obs, reward, done = step_envs(action.cpu().numpy())
        rewards[step] = torch.tensor(reward).to(device).view(-1)
        next_obs, next_done = torch.Tensor(next_obs).to(device), torch.Tensor(done).to(device)

    with torch.no_grad():
        next_value = agent.get_value(next_obs).reshape(1, -1)
        advantages = torch.zeros_like(rewards)
        lastgaelam = 0
        for t in reversed(range(num_steps)):
            nextnonterminal = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
            nextvalues = next_value if t == num_steps - 1 else values[t + 1]
            delta = rewards[t] + gamma * nextvalues * nextnonterminal - values[t]
            advantages[t] = lastgaelam = delta + gamma * gae_lambda * nextnonterminal * lastgaelam
        returns = advantages + values

    b_obs, b_actions, b_logprobs = obs.reshape(-1, 4), actions.reshape(-1), logprobs.reshape(-1)
    b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)
    b_inds = np.arange(batch_size)
    for epoch in range(update_epochs):
        np.random.shuffle(b_inds)
        for start in range(0, batch_size, minibatch_size):
            mb_inds = b_inds[start:start + minibatch_size]
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb_inds], b_actions.long()[mb_inds])
            ratio = (newlogprob - b_logprobs[mb_inds]).exp()
            adv = b_advantages[mb_inds]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            pg_loss = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)).mean()
            v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb_inds]) ** 2).mean()
            loss = pg_loss - ent_coef * entropy.mean() + v_loss * vf_coef
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), max_grad_norm)
            optimizer.step()
    print(f'global_step={global_step} loss={loss.item():.4f}')
"""

CHANGES = (
    Change(
        "sixteen environments, fewer steps each",
        "batch_whole",
        edits={
            "num_envs, num_steps, update_epochs, num_minibatches = 4, 128": "num_envs, num_steps, update_epochs, "
            "num_minibatches = 16, 32",
            "agent = Agent().to(device)\n": "import copy\nenvs = [copy.deepcopy(envs[0]) for _ in range(16)]\n"
            "agent = Agent().to(device)\n",
        },
    ),
    Change("one minibatch per epoch", "larger_batch", edits={"4, 128, 4, 4": "4, 128, 4, 1"}),
    Change("fused Adam", "fused_optimizer", edits={"eps=1e-5)": "eps=1e-5, fused=True)"}),
    Change("one thread", "threads", edits={"global_step = 0\n": "global_step = 0\ntorch.set_num_threads(1)\n"}),
    Change(
        "compile",
        "compile",
        edits={
            "agent = Agent().to(device)\n": "agent = Agent().to(device)\nagent.actor, agent.critic = torch.compile(agent.actor), torch.compile(agent.critic)\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="global_step", seconds=6)
