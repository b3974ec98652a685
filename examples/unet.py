"""U-Net denoising patches of scikit-learn's sample images, in bfloat16 autocast.

Reading the sample images takes Pillow.

Small sizing: --width 8 --batch 8
Large sizing: --batch 256
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_sample_images
from torch import Tensor, nn


def double_conv(in_channels: int, channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, kernel_size=3, padding=1, bias=False),
        nn.GroupNorm(4, channels),
        nn.SiLU(),
        nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False),
        nn.GroupNorm(4, channels),
        nn.SiLU(),
    )


class UNet(nn.Module):
    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.down = nn.ModuleList(double_conv(a, b) for a, b in zip([3, *widths[:-2]], widths[:-1]))
        self.bottom = double_conv(widths[-2], widths[-1])
        self.rise = nn.ModuleList(
            nn.ConvTranspose2d(2 * channels, channels, kernel_size=2, stride=2) for channels in widths[:-1]
        )
        self.up = nn.ModuleList(double_conv(2 * channels, channels) for channels in widths[:-1])
        self.head = nn.Conv2d(width, 3, kernel_size=1)

    def forward(self, noisy: Tensor) -> Tensor:
        skips, x = [], noisy
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for rise, block in zip(reversed(self.rise), reversed(self.up)):
            x = block(torch.cat([skips.pop(), rise(x)], dim=1))
        return noisy - self.head(x)


def load_images() -> Tensor:
    return torch.from_numpy(np.stack(load_sample_images().images)).permute(0, 3, 1, 2)


def sample_patches(images: Tensor, batch: int, size: int) -> Tensor:
    count, _, height, width = images.shape
    indices = torch.randint(count, (batch,)).tolist()
    tops = torch.randint(height - size + 1, (batch,)).tolist()
    lefts = torch.randint(width - size + 1, (batch,)).tolist()
    patches = [images[index, :, top : top + size, left : left + size] for index, top, left in zip(indices, tops, lefts)]
    return torch.stack(patches).float() / 255 - 0.5


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="where the model trains: cpu or cuda")
    parser.add_argument("--width", type=int, default=32, help="channels of the first level, a multiple of 4")
    parser.add_argument("--levels", type=int, default=3, help="times that the patch is halved")
    parser.add_argument("--patch", type=int, default=64, help="side of a patch, a multiple of 2 ** levels")
    parser.add_argument("--noise", type=float, default=0.1, help="standard deviation of the noise")
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)

    images = load_images().to(args.device)
    model = UNet(args.width, args.levels).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False)

    for step in range(1, args.steps + 1):
        clean = sample_patches(images, args.batch, args.patch)
        noisy = clean + args.noise * torch.randn_like(clean)
        optimizer.zero_grad()
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            loss = F.mse_loss(model(noisy), clean)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
