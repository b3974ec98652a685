"""Low-rank adapters on a frozen transformer, with sequences of varying lengths."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)


class Adapted(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.t() @ self.up.t()


class Layer(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.qkv, self.out = Adapted(nn.Linear(width, 3 * width)), Adapted(nn.Linear(width, width))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


embedding = nn.Embedding(2000, 128).requires_grad_(False)
model, head = nn.Sequential(*(Layer() for _ in range(4))), nn.Linear(128, 2)
trained = [p for p in [*model.parameters(), *head.parameters()] if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-3)
for _ in range(12):
    length = int(torch.randint(20, 65, (), generator=generator))
    x, y = torch.randint(2000, (16, length)), torch.randint(2, (16,))
    loss = F.cross_entropy(head(model(embedding(x)).mean(dim=1)), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
