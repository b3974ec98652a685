"""A small GPT with gradient accumulation, checkpoints to a file, clipping and a learning rate's schedule."""

import math
import os
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
WIDTH, BLOCK, VOCABULARY = 128, 64, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (
            part.view(*x.shape[:2], 4, -1).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(y)
        return x + self.mlp(self.norms[1](x))


tokens, positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
blocks = nn.Sequential(*(Block() for _ in range(3)), nn.LayerNorm(WIDTH))
head = nn.Linear(WIDTH, VOCABULARY, bias=False)
head.weight = tokens.weight
model = nn.ModuleList([tokens, positions, blocks, head])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randint(VOCABULARY, (50_000,))
for step in range(int(sys.argv[1]) if sys.argv[1:] else 8):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * (1 + math.cos(math.pi * step / 8)) / 2
    for _ in range(2):
        at = torch.randint(len(data) - BLOCK - 1, (8,)).tolist()
        x = torch.stack([data[i : i + BLOCK] for i in at])
        y = torch.stack([data[i + 1 : i + BLOCK + 1] for i in at])
        logits = head(blocks(tokens(x) + positions(torch.arange(BLOCK))))
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), y.view(-1)) / 2
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 3 == 2:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ckpt.pt")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
