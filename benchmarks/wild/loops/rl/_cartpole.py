"""CartPole in plain Python, with the interface of gymnasium."""

import math
import random

import numpy as np


class CartPole:
    """A pole on a cart: observation of four numbers, two actions, at most 500 steps per episode."""

    def __init__(self) -> None:
        self.state = [0.0, 0.0, 0.0, 0.0]
        self.step_count = 0

    def reset(self, seed: int | None = None) -> tuple[np.ndarray, dict[str, object]]:
        """Start an episode."""
        if seed is not None:
            random.seed(seed)
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.step_count = 0
        return np.array(self.state, dtype=np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        """Push the cart to one side."""
        x, x_dot, theta, theta_dot = self.state
        force = 10.0 if action == 1 else -10.0
        cos, sin = math.cos(theta), math.sin(theta)
        temp = (force + 0.05 * theta_dot**2 * sin) / 1.1
        theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        x_acc = temp - 0.05 * theta_acc * cos / 1.1
        tau = 0.02
        self.state = [x + tau * x_dot, x_dot + tau * x_acc, theta + tau * theta_dot, theta_dot + tau * theta_acc]
        self.step_count += 1
        terminated = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * 2 * math.pi / 360
        return np.array(self.state, dtype=np.float32), 1.0, terminated, self.step_count >= 500, {}
