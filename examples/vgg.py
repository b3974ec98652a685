"""VGG with batch norm and dropout on scikit-learn's digits, upsampled to 32x32.

Small sizing: --width 8 --batch 64
Large sizing: --depth 16 --batch 1280
"""

import argparse
from itertools import islice

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split


class VGG(nn.Module):
    def __init__(self, depth: int, width: int, classes: int = 10) -> None:
        super().__init__()
        convs_per_stage = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3)}[depth]
        layers: list[nn.Module] = []
        channels = 1
        for stage, convs in enumerate(convs_per_stage):
            out_channels = width * min(2**stage, 8)
            for _ in range(convs):
                layers += [
                    nn.Conv2d(channels, out_channels, kernel_size=3, padding=1, bias=False),
                    nn.BatchNorm2d(out_channels),
                    nn.ReLU(inplace=True),
                ]
                channels = out_channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(channels, channels),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(channels, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        images = F.interpolate(images, size=(32, 32), mode="bilinear", align_corners=False)
        return self.classifier(self.features(images))


def load_data() -> tuple[Dataset, Dataset]:
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target).long()
    train, test = random_split(TensorDataset(images, labels), [0.8, 0.2])
    return train, test


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss


@torch.inference_mode()
def evaluate(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    correct = total = 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        correct += (model(images).argmax(dim=1) == labels).sum().item()
        total += len(labels)
    model.train()
    return correct / total


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="where the model trains: cpu or cuda")
    parser.add_argument("--depth", type=int, choices=(11, 16), default=11)
    parser.add_argument("--width", type=int, default=32, help="channels of the first stage (64 in the paper)")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=0, help="data loader processes")
    parser.add_argument("--eval-every", type=int, default=1, help="epochs between evaluations, 0 for none")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)

    train, test = load_data()
    # The last batch of an epoch is kept, and is smaller than the others.
    train_loader = DataLoader(train, args.batch, shuffle=True, num_workers=args.workers, drop_last=False)
    test_loader = DataLoader(test, args.batch, num_workers=args.workers)

    model = VGG(args.depth, args.width).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)

    step = epoch = 0
    while step < args.steps:
        for images, labels in islice(train_loader, args.steps - step):
            step += 1
            loss = train_step(model, optimizer, images.to(args.device), labels.to(args.device))
            scheduler.step()
            print(f"step {step} loss {loss.item()!r}", flush=True)
        epoch += 1
        if args.eval_every and epoch % args.eval_every == 0:
            print(f"epoch {epoch} accuracy {evaluate(model, test_loader, args.device)!r}", flush=True)


if __name__ == "__main__":
    main()
