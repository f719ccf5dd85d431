"""DQN with a replay buffer of tuples of tensors and a soft target update over state_dict, as in the DQN tutorial."""

from benchmarks.wild.loop import Change, Loop, Namespace, scaled
from benchmarks.wild.loops.rl._cartpole import CartPole


def prepare(scale: float) -> Namespace:
    """An environment and a budget of steps."""
    return {"env": CartPole(), "max_steps": scaled(1600, scale) + 128}


CELL = """
import math, random
from collections import namedtuple, deque
from itertools import count
import torch
import torch.nn as nn
import torch.optim as optim
import torch.nn.functional as F

Transition = namedtuple('Transition', ('state', 'action', 'next_state', 'reward'))
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

class ReplayMemory(object):
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)

class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super(DQN, self).__init__()
        self.layer1 = nn.Linear(n_observations, 128)
        self.layer2 = nn.Linear(128, 128)
        self.layer3 = nn.Linear(128, n_actions)

    def forward(self, x):
        x = F.relu(self.layer1(x))
        x = F.relu(self.layer2(x))
        return self.layer3(x)

BATCH_SIZE, GAMMA, EPS_START, EPS_END, EPS_DECAY, TAU, LR = 128, 0.99, 0.9, 0.01, 2500, 0.005, 3e-4
policy_net, target_net = DQN(4, 2).to(device), DQN(4, 2).to(device)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=LR, amsgrad=True)
memory = ReplayMemory(10000)
steps_done = 0

def select_action(state):
    global steps_done
    eps_threshold = EPS_END + (EPS_START - EPS_END) * math.exp(-1. * steps_done / EPS_DECAY)
    steps_done += 1
    if random.random() > eps_threshold:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]], device=device, dtype=torch.long)

def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    transitions = memory.sample(BATCH_SIZE)
    batch = Transition(*zip(*transitions))
    non_final_mask = torch.tensor(tuple(map(lambda s: s is not None, batch.next_state)), device=device, dtype=torch.bool)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_batch = torch.cat(batch.state)
    action_batch = torch.cat(batch.action)
    reward_batch = torch.cat(batch.reward)
    state_action_values = policy_net(state_batch).gather(1, action_batch)
    next_state_values = torch.zeros(BATCH_SIZE, device=device)
    with torch.no_grad():
        next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
    expected_state_action_values = (next_state_values * GAMMA) + reward_batch
    criterion = nn.SmoothL1Loss()
    loss = criterion(state_action_values, expected_state_action_values.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    return loss

while steps_done < max_steps:
    state, info = env.reset()
    state = torch.tensor(state, dtype=torch.float32, device=device).unsqueeze(0)
    for t in count():
        action = select_action(state)
        observation, reward, terminated, truncated, _ = env.step(action.item())
        reward = torch.tensor([reward], device=device)
        if terminated:
            next_state = None
        else:
            next_state = torch.tensor(observation, dtype=torch.float32, device=device).unsqueeze(0)
        memory.push(state, action, next_state, reward)
        state = next_state
        loss = optimize_model()
        target_net_state_dict = target_net.state_dict()
        policy_net_state_dict = policy_net.state_dict()
        for key in policy_net_state_dict:
            target_net_state_dict[key] = policy_net_state_dict[key] * TAU + target_net_state_dict[key] * (1 - TAU)
        target_net.load_state_dict(target_net_state_dict)
        if terminated or truncated or steps_done >= max_steps:
            break
"""

RING = """class ReplayMemory(object):
    def __init__(self, capacity):
        self.states, self.next_states = torch.zeros(capacity, 4), torch.zeros(capacity, 4)
        self.actions, self.rewards = torch.zeros(capacity, 1, dtype=torch.long), torch.zeros(capacity)
        self.alive = torch.zeros(capacity, dtype=torch.bool)
        self.capacity, self.count = capacity, 0

    def push(self, state, action, next_state, reward):
        i = self.count % self.capacity
        self.states[i], self.actions[i], self.rewards[i] = state[0], action[0], reward[0]
        self.alive[i] = next_state is not None
        if next_state is not None:
            self.next_states[i] = next_state[0]
        self.count += 1

    def sample(self, batch_size):
        i = torch.randint(len(self), (batch_size,))
        return self.states[i], self.actions[i], self.next_states[i], self.rewards[i], self.alive[i]

    def __len__(self):
        return min(self.count, self.capacity)
"""
TUPLES = CELL[CELL.index("class ReplayMemory") : CELL.index("\nclass DQN")]
COLLECT = CELL[CELL.index("    transitions = memory") : CELL.index("    state_action_values = policy_net")]

CHANGES = (
    Change(
        "replay buffer of tensors",
        "batch_whole",
        edits={
            TUPLES: RING,
            COLLECT: "    state_batch, action_batch, next_batch, reward_batch, non_final_mask = memory.sample(BATCH_SIZE)\n"
            "    non_final_next_states = next_batch[non_final_mask]\n",
        },
    ),
    Change(
        "target update with foreach",
        "foreach_optimizer",
        edits={
            """        target_net_state_dict = target_net.state_dict()
        policy_net_state_dict = policy_net.state_dict()
        for key in policy_net_state_dict:
            target_net_state_dict[key] = policy_net_state_dict[key] * TAU + target_net_state_dict[key] * (1 - TAU)
        target_net.load_state_dict(target_net_state_dict)
""": """        with torch.no_grad():
            torch._foreach_lerp_(list(target_net.parameters()), list(policy_net.parameters()), TAU)
"""
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"amsgrad=True)": "amsgrad=True, fused=True)"}),
    Change("one thread", "threads", edits={"steps_done = 0\n": "steps_done = 0\ntorch.set_num_threads(1)\n"}),
    Change("collector off", "gc", edits={"steps_done = 0\n": "steps_done = 0\nimport gc\ngc.disable()\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="steps_done", seconds=5)
