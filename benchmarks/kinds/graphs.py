"""Batches of graphs, of another shape each time, with messages gathered, scattered and the best nodes kept."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
generator = torch.Generator().manual_seed(3)
embed, head = nn.Linear(16, 96), nn.Linear(192, 2)
layers = nn.ModuleList(nn.Linear(192, 96) for _ in range(3))
score = nn.Linear(96, 1)
model = nn.ModuleList([embed, layers, score, head])
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)


def batch():
    sizes = torch.randint(20, 60, (16,), generator=generator)
    graph = torch.repeat_interleave(torch.arange(16), sizes)
    nodes = len(graph)
    edges = torch.randint(nodes, (2, 4 * nodes), generator=generator)
    return torch.rand(nodes, 16), edges, graph, torch.randint(2, (16,))


for _ in range(int(sys.argv[1]) if sys.argv[1:] else 12):
    x, (source, target), graph, y = batch()
    h = embed(x)
    for layer in layers:
        gathered = torch.zeros_like(h).index_add_(0, target, h[source])
        h = F.relu(layer(torch.cat([h, gathered], dim=1)))
    weight = torch.tanh(score(h))
    kept = weight.squeeze(1).topk(len(h) // 2).indices
    h, graph = (h * weight)[kept], graph[kept]
    mean = torch.zeros(16, 96).index_add_(0, graph, h) / (torch.bincount(graph, minlength=16).clamp(min=1)[:, None])
    most = torch.full((16, 96), -1e9).scatter_reduce(0, graph[:, None].expand_as(h), h, "amax")
    optimizer.zero_grad()
    F.cross_entropy(head(torch.cat([mean, most], dim=1)), y).backward()
    optimizer.step()
