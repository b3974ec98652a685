"""A graph convolutional network on one graph, by sparse products."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
NODES, EDGES = 1500, 8000
edges = torch.randint(NODES, (2, EDGES))
edges = torch.cat([edges, edges.flip(0), torch.arange(NODES).repeat(2, 1)], dim=1)
degree = torch.zeros(NODES).scatter_add_(0, edges[0], torch.ones(edges.shape[1]))
weights = (degree[edges[0]] * degree[edges[1]]).rsqrt()
adjacency = torch.sparse_coo_tensor(edges, weights, (NODES, NODES)).coalesce()
features, labels = torch.rand(NODES, 300), torch.randint(7, (NODES,))
first, second = nn.Linear(300, 32, bias=False), nn.Linear(32, 7, bias=False)
groups = [{"params": first.parameters(), "weight_decay": 5e-4}, {"params": second.parameters()}]
optimizer = torch.optim.Adam(groups, lr=0.01)
for _ in range(int(sys.argv[1]) if sys.argv[1:] else 10):
    optimizer.zero_grad()
    h = F.relu(torch.sparse.mm(adjacency, first(F.dropout(features, 0.5))))
    out = torch.sparse.mm(adjacency, second(F.dropout(h, 0.5)))
    F.cross_entropy(out[:140], labels[:140]).backward()
    optimizer.step()
