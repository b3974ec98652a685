"""A variational autoencoder of images."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
images = torch.rand(512, 784)
encoder = nn.Sequential(nn.Linear(784, 400), nn.ReLU())
mean, log_variance = nn.Linear(400, 20), nn.Linear(400, 20)
decoder = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784), nn.Sigmoid())
model = nn.ModuleList([encoder, mean, log_variance, decoder])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
total = 0.0
for _ in range(2):
    for x in images.split(128):
        optimizer.zero_grad()
        h = encoder(x)
        mu, logvar = mean(h), log_variance(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = F.binary_cross_entropy(decoder(z), x, reduction="sum") + divergence
        loss.backward()
        total += loss.item()
        optimizer.step()
