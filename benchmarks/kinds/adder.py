"""A transformer that learns to add, fed by a DataLoader's worker."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Additions(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        a, b = index % 97, index * 31 % 97
        digits = torch.tensor([int(d) for d in f"{a:02d}{b:02d}{a + b:03d}"[:7]])
        return digits[:-1], digits[1:]


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 96)
        self.position = nn.Parameter(torch.zeros(6, 96))
        layer = nn.TransformerEncoderLayer(96, 3, 384, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(96, 10)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layers(self.embedding(x) + self.position, mask, is_causal=True))


if __name__ == "__main__":
    model = Adder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for x, y in DataLoader(Additions(), batch_size=64, num_workers=1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
