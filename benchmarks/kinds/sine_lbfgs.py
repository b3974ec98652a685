"""Sine waves predicted by two LSTM cells in doubles, by L-BFGS with closures, from an array and back to one."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
phases = np.random.RandomState(2).randint(-80, 80, (40, 1))
waves = torch.from_numpy(np.sin((np.arange(60) + phases) / 20.0).astype("float64"))
x, y = waves[3:, :-1], waves[3:, 1:]
first, second, linear = nn.LSTMCell(1, 51), nn.LSTMCell(51, 51), nn.Linear(51, 1)
model = nn.ModuleList([first, second, linear]).double()


def predict(series, future=0):
    states = [torch.zeros(len(series), 51, dtype=torch.double) for _ in range(4)]
    outputs = []
    for value in series.split(1, dim=1):
        states[:2] = first(value, states[:2])
        states[2:] = second(states[0], states[2:])
        outputs.append(linear(states[2]))
    for _ in range(future):
        states[:2] = first(outputs[-1], states[:2])
        states[2:] = second(states[0], states[2:])
        outputs.append(linear(states[2]))
    return torch.cat(outputs, dim=1)


optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=4)
for _ in range(4):

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(predict(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        drawn = predict(waves[:3, :-1], future=20).numpy().copy()
