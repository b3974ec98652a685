"""An exact Gaussian process: its marginal likelihood by a Cholesky factor."""

import math
import sys

import torch

torch.manual_seed(0)
x = torch.linspace(0, 1, 400, dtype=torch.double)[:, None]
y = torch.sin(2 * math.pi * x).squeeze(1) + 0.1 * torch.randn(400, dtype=torch.double)
raw = torch.nn.Parameter(torch.zeros(3, dtype=torch.double))
mean = torch.nn.Parameter(torch.zeros((), dtype=torch.double))
optimizer = torch.optim.Adam([raw, mean], lr=0.1)
for _ in range(int(sys.argv[1]) if sys.argv[1:] else 8):
    optimizer.zero_grad()
    scale, length, noise = torch.nn.functional.softplus(raw)
    kernel = scale * torch.exp(-0.5 * torch.cdist(x, x).square() / length**2)
    factor = torch.linalg.cholesky(kernel + (noise + 1e-4) * torch.eye(400, dtype=torch.double))
    solved = torch.cholesky_solve((y - mean)[:, None], factor).squeeze(1)
    loss = 0.5 * (y - mean) @ solved + factor.diagonal().log().sum() + 200 * math.log(2 * math.pi)
    loss.backward()
    optimizer.step()
