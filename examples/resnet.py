"""ResNet-18 telling which of scikit-learn's sample images a patch was cut from, with an EMA of the weights.

Reading the sample images takes Pillow.

Small sizing: --width 8 --batch 32
Large sizing: --batch 2048
"""

import argparse
import copy

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_sample_images
from torch import Tensor, nn


class BasicBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class ResNet(nn.Module):
    def __init__(self, width: int, blocks_per_stage: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        ]
        in_channels = width
        for stage in range(4):
            channels = width * 2**stage
            for block in range(blocks_per_stage):
                layers.append(BasicBlock(in_channels, channels, stride=2 if stage and not block else 1))
                in_channels = channels
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_channels, classes)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def load_images() -> Tensor:
    return torch.from_numpy(np.stack(load_sample_images().images)).permute(0, 3, 1, 2)


def sample_patches(images: Tensor, batch: int, size: int) -> tuple[Tensor, Tensor]:
    count, _, height, width = images.shape
    labels = torch.randint(count, (batch,))
    tops = torch.randint(height - size + 1, (batch,)).tolist()
    lefts = torch.randint(width - size + 1, (batch,)).tolist()
    patches = [
        images[label, :, top : top + size, left : left + size] for label, top, left in zip(labels.tolist(), tops, lefts)
    ]
    return torch.stack(patches).float() / 255 - 0.5, labels.to(images.device)


@torch.no_grad()
def update_ema(ema: nn.Module, model: nn.Module, decay: float) -> None:
    for average, parameter in zip(ema.parameters(), model.parameters()):
        average.lerp_(parameter, 1 - decay)
    for average, buffer in zip(ema.buffers(), model.buffers()):
        average.copy_(buffer)


@torch.no_grad()
def accuracy(model: nn.Module, patches: Tensor, labels: Tensor) -> float:
    model.eval()
    correct = (model(patches).argmax(dim=1) == labels).float().mean().item()
    model.train()
    return correct


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="where the model trains: cpu or cuda")
    parser.add_argument("--width", type=int, default=32, help="channels of the first stage (64 in ResNet-18)")
    parser.add_argument("--blocks", type=int, default=2, help="blocks per stage (2 in ResNet-18)")
    parser.add_argument("--patch", type=int, default=64, help="side of a patch in pixels")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--ema-decay", type=float, default=0.9)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)

    images = load_images().to(args.device)
    model = ResNet(args.width, args.blocks, classes=len(images)).to(args.device)
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for step in range(1, args.steps + 1):
        patches, labels = sample_patches(images, args.batch, args.patch)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(patches), labels)
        loss.backward()
        optimizer.step()
        update_ema(ema, model, args.ema_decay)
        print(f"step {step} loss {loss.item()!r}", flush=True)

    patches, labels = sample_patches(images, args.batch, args.patch)
    print(f"accuracy {accuracy(model, patches, labels)!r} ema {accuracy(ema, patches, labels)!r}", flush=True)


if __name__ == "__main__":
    main()
