"""A chain of tiny layers: thirteen ops for each, and next to no bytes, so that records are all there is to see."""

import sys

import torch

layers, steps = map(int, sys.argv[1:])
torch.manual_seed(0)
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(steps):
    h = torch.randn(4, 8)
    for _ in range(layers):
        h = torch.tanh(layer(h))
    h.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
