"""PPO in the manner of a well-known minimal repository: a buffer of lists, an old policy, one step of a NumPy lander at a time."""

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """How many time steps to train for: whole updates of 1000."""
    return {"max_training_timesteps": scaled(10_000, scale, 1000)}


CELL = """
import math
import random
import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical

class LanderEnv:
    \"\"\"A craft with a main engine and two side engines that has to land between two flags.\"\"\"
    def __init__(self, dt=0.05, max_steps=200):
        self.dt, self.max_steps = dt, max_steps
        self.gravity = np.array([0.0, -1.6])
        self.state_dim, self.action_dim = 8, 4

    def reset(self):
        self.pos = np.array([np.random.uniform(-0.5, 0.5), 1.4])
        self.vel = np.random.uniform(-0.3, 0.3, size=2)
        self.angle, self.omega = np.random.uniform(-0.1, 0.1), 0.0
        self.steps = 0
        self.prev_shaping = self._shaping()
        return self._obs()

    def _obs(self):
        left = float(self.pos[1] <= 0 and self.angle > -0.2)
        right = float(self.pos[1] <= 0 and self.angle < 0.2)
        return np.concatenate([self.pos, self.vel, [self.angle, self.omega, left, right]]).astype(np.float32)

    def _shaping(self):
        return -100 * np.linalg.norm(self.pos) - 100 * np.linalg.norm(self.vel) - 100 * abs(self.angle)

    def step(self, action):
        acc = self.gravity.copy()
        torque, fuel = 0.0, 0.0
        if action == 2:      # main engine
            acc = acc + 4.0 * np.array([-np.sin(self.angle), np.cos(self.angle)])
            fuel = 0.3
        elif action == 1:    # left engine
            torque, fuel = 1.5, 0.03
        elif action == 3:    # right engine
            torque, fuel = -1.5, 0.03
        self.vel = self.vel + acc * self.dt
        self.pos = self.pos + self.vel * self.dt
        self.omega = float(np.clip(self.omega + torque * self.dt, -3, 3))
        self.angle += self.omega * self.dt
        self.steps += 1

        shaping = self._shaping()
        reward = shaping - self.prev_shaping - fuel
        self.prev_shaping = shaping
        done = False
        if abs(self.pos[0]) > 1.5 or self.pos[1] > 2.5:
            reward, done = -100.0, True
        elif self.pos[1] <= 0:
            soft = np.linalg.norm(self.vel) < 0.5 and abs(self.angle) < 0.2 and abs(self.pos[0]) < 0.3
            reward, done = (100.0 if soft else -100.0), True
        elif self.steps >= self.max_steps:
            done = True
        return self._obs(), float(reward), done, {}

class RolloutBuffer:
    def __init__(self):
        self.actions = []
        self.states = []
        self.logprobs = []
        self.rewards = []
        self.state_values = []
        self.is_terminals = []

    def clear(self):
        del self.actions[:]
        del self.states[:]
        del self.logprobs[:]
        del self.rewards[:]
        del self.state_values[:]
        del self.is_terminals[:]

class ActorCritic(nn.Module):
    def __init__(self, state_dim, action_dim):
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(state_dim, 64), nn.Tanh(),
            nn.Linear(64, 64), nn.Tanh(),
            nn.Linear(64, action_dim), nn.Softmax(dim=-1))
        self.critic = nn.Sequential(
            nn.Linear(state_dim, 64), nn.Tanh(),
            nn.Linear(64, 64), nn.Tanh(),
            nn.Linear(64, 1))

    def forward(self):
        raise NotImplementedError

    def act(self, state):
        action_probs = self.actor(state)
        dist = Categorical(action_probs)
        action = dist.sample()
        action_logprob = dist.log_prob(action)
        state_val = self.critic(state)
        return action.detach(), action_logprob.detach(), state_val.detach()

    def evaluate(self, state, action):
        action_probs = self.actor(state)
        dist = Categorical(action_probs)
        action_logprobs = dist.log_prob(action)
        dist_entropy = dist.entropy()
        state_values = self.critic(state)
        return action_logprobs, state_values, dist_entropy

class PPO:
    def __init__(self, state_dim, action_dim, lr_actor, lr_critic, gamma, K_epochs, eps_clip):
        self.gamma = gamma
        self.eps_clip = eps_clip
        self.K_epochs = K_epochs
        self.buffer = RolloutBuffer()
        self.policy = ActorCritic(state_dim, action_dim).to(device)
        self.optimizer = torch.optim.Adam([
            {'params': self.policy.actor.parameters(), 'lr': lr_actor},
            {'params': self.policy.critic.parameters(), 'lr': lr_critic}
        ])
        self.policy_old = ActorCritic(state_dim, action_dim).to(device)
        self.policy_old.load_state_dict(self.policy.state_dict())
        self.MseLoss = nn.MSELoss()
        self.steps_used, self.last_loss = 0, 0.0

    def select_action(self, state):
        with torch.no_grad():
            state = torch.FloatTensor(state).to(device)
            action, action_logprob, state_val = self.policy_old.act(state)
        self.buffer.states.append(state)
        self.buffer.actions.append(action)
        self.buffer.logprobs.append(action_logprob)
        self.buffer.state_values.append(state_val)
        return action.item()

    def update(self):
        # Monte Carlo estimate of returns
        rewards = []
        discounted_reward = 0
        for reward, is_terminal in zip(reversed(self.buffer.rewards), reversed(self.buffer.is_terminals)):
            if is_terminal:
                discounted_reward = 0
            discounted_reward = reward + (self.gamma * discounted_reward)
            rewards.insert(0, discounted_reward)

        # Normalizing the rewards
        rewards = torch.tensor(rewards, dtype=torch.float32).to(device)
        rewards = (rewards - rewards.mean()) / (rewards.std() + 1e-7)

        # convert list to tensor
        old_states = torch.squeeze(torch.stack(self.buffer.states, dim=0)).detach().to(device)
        old_actions = torch.squeeze(torch.stack(self.buffer.actions, dim=0)).detach().to(device)
        old_logprobs = torch.squeeze(torch.stack(self.buffer.logprobs, dim=0)).detach().to(device)
        old_state_values = torch.squeeze(torch.stack(self.buffer.state_values, dim=0)).detach().to(device)
        advantages = rewards.detach() - old_state_values.detach()

        # Optimize policy for K epochs
        for _ in range(self.K_epochs):
            logprobs, state_values, dist_entropy = self.policy.evaluate(old_states, old_actions)
            state_values = torch.squeeze(state_values)
            # Finding the ratio (pi_theta / pi_theta__old)
            ratios = torch.exp(logprobs - old_logprobs.detach())
            # Finding Surrogate Loss
            surr1 = ratios * advantages
            surr2 = torch.clamp(ratios, 1 - self.eps_clip, 1 + self.eps_clip) * advantages
            # final loss of clipped objective PPO
            loss = -torch.min(surr1, surr2) + 0.5 * self.MseLoss(state_values, rewards) - 0.01 * dist_entropy
            # take gradient step
            self.optimizer.zero_grad()
            loss.mean().backward()
            self.optimizer.step()

        self.last_loss = loss.mean().item()
        self.steps_used += len(rewards)
        self.policy_old.load_state_dict(self.policy.state_dict())
        self.buffer.clear()

    def save(self, checkpoint_path):
        torch.save(self.policy_old.state_dict(), checkpoint_path)

device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
max_ep_len = 200
update_timestep = max_ep_len * 5
print_freq = max_ep_len * 10
save_model_freq = 5000

env = LanderEnv(max_steps=max_ep_len)
ppo_agent = PPO(env.state_dim, env.action_dim, lr_actor=0.0003, lr_critic=0.001, gamma=0.99, K_epochs=80, eps_clip=0.2)

print_running_reward, print_running_episodes = 0, 0
time_step, i_episode = 0, 0
while time_step < max_training_timesteps:
    state = env.reset()
    current_ep_reward = 0
    for t in range(1, max_ep_len + 1):
        action = ppo_agent.select_action(state)
        state, reward, done, _ = env.step(action)
        ppo_agent.buffer.rewards.append(reward)
        ppo_agent.buffer.is_terminals.append(done)
        time_step += 1
        current_ep_reward += reward
        if time_step % update_timestep == 0:
            ppo_agent.update()
        if time_step % print_freq == 0:
            print_avg_reward = round(print_running_reward / max(1, print_running_episodes), 2)
            print('Episode : {} \\t\\t Timestep : {} \\t\\t Average Reward : {}'.format(i_episode, time_step, print_avg_reward))
            print_running_reward, print_running_episodes = 0, 0
        if time_step % save_model_freq == 0:
            ppo_agent.save('PPO_lander.pth')
        if done:
            break
    print_running_reward += current_ep_reward
    print_running_episodes += 1
    i_episode += 1
"""

LATER = CELL[
    CELL.index("            action, action_logprob, state_val = ") : CELL.index("        return action.item()")
]
STACKED = CELL[
    CELL.index("        old_logprobs = torch.squeeze(") : CELL.index("        advantages = rewards.detach()")
]

CHANGES = (
    Change(
        "only the actor runs per time step, values and log-probabilities at the update",
        "remove_python",
        edits={
            LATER: "            probs = self.policy_old.actor(state)\n"
            "            action = torch.multinomial(probs, 1).squeeze(-1)\n"
            "        self.buffer.states.append(state)\n"
            "        self.buffer.actions.append(action)\n",
            STACKED: "        with torch.no_grad():\n"
            "            old_logprobs, old_state_values, _ = self.policy_old.evaluate(old_states, old_actions)\n"
            "            old_state_values = torch.squeeze(old_state_values)\n",
        },
    ),
    Change(
        "one thread",
        "threads",
        edits={"device = torch.device(": "torch.set_num_threads(1)\ndevice = torch.device("},
    ),
    Change(
        "distributions without validation",
        "other",
        edits={
            "device = torch.device(": "torch.distributions.Distribution.set_default_validate_args(False)\ndevice = torch.device("
        },
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={"'lr': lr_critic}\n        ])": "'lr': lr_critic}\n        ], fused=True)"},
    ),
    Change("no garbage collection", "gc", edits={"import math\n": "import gc\nimport math\ngc.disable()\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="ppo_agent.steps_used", loss="ppo_agent.last_loss", seconds=8)
