"""Training with differential privacy: a gradient for each sample by vmap, clipped and noised; batches vary in size."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

torch.manual_seed(0)
generator = torch.Generator().manual_seed(5)
model = nn.Sequential(
    nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU(),
    nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images, labels = torch.rand(600, 1, 28, 28), torch.randint(10, (600,))


def loss_of(parameters, x, y):
    return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])


for _ in range(10):
    drawn = torch.rand(600, generator=generator) < 0.1
    x, y = images[drawn], labels[drawn]
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    gradients = vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
    for name, p in model.named_parameters():
        clipped = torch.einsum("n,n...->...", factor, gradients[name])
        p.grad = (clipped + torch.randn_like(clipped)) / 60
    optimizer.step()
    optimizer.zero_grad()
