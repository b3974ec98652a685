"""A neural ODE: Runge-Kutta steps through a small network, differentiated through."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
field = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))
optimizer = torch.optim.RMSprop(field.parameters(), lr=1e-3)
matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
times = torch.linspace(0.0, 25.0, 200)


def integrate(function, state, times):
    states = [state]
    for begin, end in zip(times[:-1], times[1:], strict=True):
        h = end - begin
        k1 = function(state)
        k2 = function(state + h * k1 / 3)
        k3 = function(state + h * (k2 - k1 / 3))
        k4 = function(state + h * (k1 - k2 + k3))
        state = state + (k1 + 3 * (k2 + k3) + k4) * h / 8
        states.append(state)
    return torch.stack(states)


with torch.no_grad():
    truth = integrate(lambda y: y**3 @ matrix, torch.tensor([[2.0, 0.0]]), times)
for _ in range(int(sys.argv[1]) if sys.argv[1:] else 8):
    at = torch.randint(190, (150,))
    target = torch.stack([truth[at + i] for i in range(10)])
    optimizer.zero_grad()
    predicted = integrate(lambda y: field(y**3), truth[at], times[:10])
    (predicted - target).abs().mean().backward()
    optimizer.step()
