"""A small U-Net for diffusion, with EMA, gradient accumulation and checkpoints."""

import copy
import os
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class UNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.begin, self.down = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.middle = nn.Sequential(
            nn.GroupNorm(4, 2 * width), nn.SiLU(), nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        )
        self.up, self.end = nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x, t):
        angles = t[:, None] * torch.exp(-torch.arange(8) / 2)
        h = self.begin(x) + self.time(torch.cat([angles.sin(), angles.cos()], dim=1))[:, :, None, None]
        d = self.down(F.silu(h))
        return self.end(torch.cat([h, self.up(d + self.middle(d))], dim=1))


model = UNet()
ema = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0)
for step in range(int(sys.argv[1]) if sys.argv[1:] else 8):
    for _ in range(2):
        x, t, noise = torch.rand(8, 3, 32, 32) * 2 - 1, torch.randint(1000, (8,)), torch.randn(8, 3, 32, 32)
        a = alphas[t][:, None, None, None]
        loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise) / 2
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for average, parameter in zip(ema.parameters(), model.parameters(), strict=True):
            average.lerp_(parameter, 0.01)
    if step == 4:
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": model.state_dict(), "ema": ema.state_dict()}, os.path.join(folder, "model.pt"))
