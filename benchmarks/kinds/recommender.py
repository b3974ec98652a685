"""A recommender: sparse EmbeddingBags and dense features that interact, with sparse gradients."""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
random = np.random.default_rng(0)
SIZES, WIDTH, BATCH = (4000, 3000, 2000), 16, 128
bags = nn.ModuleList(nn.EmbeddingBag(size, WIDTH, mode="sum", sparse=True) for size in SIZES)
bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU())
top = nn.Sequential(nn.Linear(WIDTH + 6, 64), nn.ReLU(), nn.Linear(64, 1))
model = nn.ModuleList([bags, bottom, top])
for linear in (*bottom[::2], *top[::2]):
    drawn = random.normal(0, 0.1, size=tuple(linear.weight.shape)).astype(np.float32)
    linear.weight.data = torch.tensor(drawn, requires_grad=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows, columns = torch.tril_indices(4, 4, -1)
for _ in range(int(sys.argv[1]) if sys.argv[1:] else 10):
    dense, label = torch.tensor(random.random((BATCH, 13), dtype=np.float32)), torch.rand(BATCH, 1).round()
    parts = [bottom(dense)]
    for bag, size in zip(bags, SIZES, strict=True):
        lengths = random.integers(1, 10, BATCH)
        offsets = torch.tensor(np.concatenate([[0], np.cumsum(lengths)[:-1]]))
        parts.append(bag(torch.tensor(random.integers(0, size, lengths.sum())), offsets))
    stacked = torch.stack(parts, dim=1)
    products = torch.bmm(stacked, stacked.transpose(1, 2))[:, rows, columns]
    loss = F.binary_cross_entropy_with_logits(top(torch.cat([parts[0], products], dim=1)), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
