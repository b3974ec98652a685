"""A bidirectional LSTM over packed sequences of varying lengths, cut to the same number of words a batch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

torch.manual_seed(0)
generator = torch.Generator().manual_seed(4)
embedding, lstm = nn.Embedding(800, 64), nn.LSTM(64, 96, 2, batch_first=True, bidirectional=True)
head = nn.Linear(192, 5)
model = nn.ModuleList([embedding, lstm, head])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(10):
    lengths = torch.randint(5, 40, (16,), generator=generator)
    words = pad_sequence([torch.randint(800, (int(n),)) for n in lengths], batch_first=True)
    packed = pack_padded_sequence(embedding(words), lengths, batch_first=True, enforce_sorted=False)
    out, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    loss = F.cross_entropy(head(out.mean(dim=1)), torch.randint(5, (16,)))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
