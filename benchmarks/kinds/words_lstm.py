"""A language model: a two-layer LSTM with truncated backpropagation and its own gradient descent, no torch.optim."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
VOCABULARY, WIDTH, BATCH, LENGTH = 1000, 128, 20, 35
text = torch.randint(VOCABULARY, (BATCH, LENGTH * 40 + 1)).t().contiguous()
embedding, drop = nn.Embedding(VOCABULARY, WIDTH), nn.Dropout(0.2)
lstm, decoder = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2), nn.Linear(WIDTH, VOCABULARY)
model = nn.ModuleList([embedding, lstm, decoder])
state = tuple(torch.zeros(2, BATCH, WIDTH) for _ in range(2))
for start in range(0, len(text) - 1, LENGTH):
    x, y = text[start : start + LENGTH], text[start + 1 : start + 1 + LENGTH]
    model.zero_grad()
    state = tuple(part.detach() for part in state)
    output, state = lstm(drop(embedding(x)), state)
    loss = F.nll_loss(F.log_softmax(decoder(drop(output)).view(-1, VOCABULARY), dim=1), y.reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.5)
