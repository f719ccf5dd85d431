"""A physics-informed network for Burgers' equation with second derivatives by autograd.grad, as in PINN repositories."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Collocation and boundary points."""
    points = np.random.uniform([-1, 0], [1, 1], (600, 2)).astype(np.float32)
    return {"X_f": points, "X_u": points[:100], "u": -np.sin(np.pi * points[:100, :1]), "nIter": scaled(1000, scale)}


CELL = """
import numpy as np
import torch

class DNN(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        parts = []
        for i in range(len(layers) - 2):
            parts += [torch.nn.Linear(layers[i], layers[i + 1]), torch.nn.Tanh()]
        self.layers = torch.nn.Sequential(*parts, torch.nn.Linear(layers[-2], layers[-1]))

    def forward(self, x):
        return self.layers(x)

class PhysicsInformedNN():
    def __init__(self, X_u, u, X_f, nu):
        self.x_u, self.t_u = torch.tensor(X_u[:, 0:1]), torch.tensor(X_u[:, 1:2])
        self.x_f = torch.tensor(X_f[:, 0:1], requires_grad=True)
        self.t_f = torch.tensor(X_f[:, 1:2], requires_grad=True)
        self.u, self.nu = torch.tensor(u).float(), nu
        self.dnn = DNN([2, 20, 20, 20, 20, 20, 20, 1])
        self.optimizer = torch.optim.Adam(self.dnn.parameters(), lr=1e-3)
        self.iter = 0

    def net_u(self, x, t):
        return self.dnn(torch.cat([x, t], dim=1))

    def net_f(self, x, t):
        u = self.net_u(x, t)
        u_t = torch.autograd.grad(u, t, grad_outputs=torch.ones_like(u), retain_graph=True, create_graph=True)[0]
        u_x = torch.autograd.grad(u, x, grad_outputs=torch.ones_like(u), retain_graph=True, create_graph=True)[0]
        u_xx = torch.autograd.grad(u_x, x, grad_outputs=torch.ones_like(u_x), retain_graph=True, create_graph=True)[0]
        return u_t + u * u_x - self.nu * u_xx

    def loss_func(self):
        self.optimizer.zero_grad()
        u_pred = self.net_u(self.x_u, self.t_u)
        f_pred = self.net_f(self.x_f, self.t_f)
        loss_u = torch.mean((self.u - u_pred) ** 2)
        loss_f = torch.mean(f_pred ** 2)
        loss = loss_u + loss_f
        loss.backward()
        self.iter += 1
        if self.iter % 100 == 0:
            print('Iter %d, Loss: %.5e, Loss_u: %.5e, Loss_f: %.5e' % (self.iter, loss.item(), loss_u.item(), loss_f.item()))
        return loss

    def train(self, nIter):
        self.dnn.train()
        for epoch in range(nIter):
            loss = self.loss_func()
            self.optimizer.step()
        return loss

model = PhysicsInformedNN(X_u, u, X_f, 0.01 / np.pi)
loss = model.train(nIter)
"""

CHANGES = (
    Change("one thread", "threads", edits={"model = Phys": "torch.set_num_threads(1)\nmodel = Phys"}),
    Change(
        "both first derivatives in one call",
        "remove_python",
        edits={
            "        u_t = torch.autograd.grad(u, t, grad_outputs=torch.ones_like(u), retain_graph=True, create_graph=True)[0]\n"
            "        u_x = torch.autograd.grad(u, x, grad_outputs=torch.ones_like(u), retain_graph=True, create_graph=True)[0]\n": ""
            "        u_t, u_x = torch.autograd.grad(u, (t, x), grad_outputs=torch.ones_like(u), create_graph=True)\n"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change("log rarely", "fewer_logs", edits={"self.iter % 100 == 0": "self.iter % 1000 == 0"}),
    Change("collector off", "gc", edits={"model = Phys": "import gc\ngc.disable()\nmodel = Phys"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="model.iter * len(X_f)", seconds=5)
