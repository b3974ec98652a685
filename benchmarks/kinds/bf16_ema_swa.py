"""A ResNet in bfloat16 autocast, channels last, with averages of the weights (EMA and SWA)."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x):
        y = F.relu(self.norms[0](self.convolutions[0](x)))
        return F.relu(x + self.norms[1](self.convolutions[1](y)))


model = nn.Sequential(
    nn.Conv2d(3, 32, 3, stride=2, padding=1), Residual(32), Residual(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(32, 10),
).to(memory_format=torch.channels_last)  # fmt: skip
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
swa = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
for step in range(int(sys.argv[1]) if sys.argv[1:] else 8):
    x = torch.randn(16, 3, 32, 32).to(memory_format=torch.channels_last)
    y = torch.randint(10, (16,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x).float(), y, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update_parameters(model)
    if step >= 4:
        swa.update_parameters(model)
