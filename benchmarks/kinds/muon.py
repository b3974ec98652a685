"""Muon for the matrices of a transformer, AdamW for the rest."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
embedding = nn.Embedding(500, 96)
layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(96, 4, 384, 0.0, batch_first=True), 3)
head = nn.Linear(96, 500)
matrices = [p for p in layers.parameters() if p.ndim == 2]
others = [*embedding.parameters(), *head.parameters(), *(p for p in layers.parameters() if p.ndim != 2)]
optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=1e-3)]
for _ in range(int(sys.argv[1]) if sys.argv[1:] else 8):
    x = torch.randint(500, (8, 33))
    mask = nn.Transformer.generate_square_subsequent_mask(32)
    logits = head(layers(embedding(x[:, :-1]), mask, is_causal=True))
    F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
