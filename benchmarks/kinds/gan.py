"""A GAN with two optimizers in turn."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
generator = nn.Sequential(
    nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 256), nn.BatchNorm1d(256), nn.LeakyReLU(0.2),
    nn.Linear(256, 784), nn.Tanh(),
)  # fmt: skip
critic = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
real, fake = torch.ones(128, 1), torch.zeros(128, 1)
for _ in range(int(sys.argv[1]) if sys.argv[1:] else 8):
    x, z = torch.rand(128, 784), torch.randn(128, 64)
    of_generator.zero_grad()
    F.binary_cross_entropy_with_logits(critic(generator(z)), real).backward()
    of_generator.step()
    of_critic.zero_grad()
    loss = F.binary_cross_entropy_with_logits(critic(x), real)
    loss = loss + F.binary_cross_entropy_with_logits(critic(generator(z).detach()), fake)
    loss.backward()
    of_critic.step()
