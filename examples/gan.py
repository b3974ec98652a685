"""DCGAN on scikit-learn's digits, upsampled to 32x32: a generator and a discriminator, an Adam for each.

Small sizing: --width 16 --batch 64
Large sizing: --batch 2560
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn


def build_generator(noise: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = noise
    # The noise, a 1x1 image, becomes 4x4, 8x8 and 16x16.
    for out_channels, stride, padding in ((4 * width, 1, 0), (2 * width, 2, 1), (width, 2, 1)):
        layers += [
            nn.ConvTranspose2d(channels, out_channels, 4, stride, padding, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        ]
        channels = out_channels
    return nn.Sequential(*layers, nn.ConvTranspose2d(channels, 1, 4, 2, 1, bias=False), nn.Tanh())


def build_discriminator(width: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(1, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    for channels in (width, 2 * width):
        layers += [
            nn.Conv2d(channels, 2 * channels, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * channels),
            nn.LeakyReLU(0.2, inplace=True),
        ]
    return nn.Sequential(*layers, nn.Conv2d(4 * width, 1, 4, bias=False), nn.Flatten(0))


def init_weights(module: nn.Module) -> None:
    """The initialization of the DCGAN paper."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)


def load_images() -> Tensor:
    return torch.from_numpy(load_digits().images).float().unsqueeze(1) / 8 - 1


def sample_images(images: Tensor, batch: int) -> Tensor:
    chosen = images[torch.randint(len(images), (batch,))]
    return F.interpolate(chosen, size=(32, 32), mode="bilinear", align_corners=False)


def adversarial_loss(logits: Tensor, real: bool) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="where the model trains: cpu or cuda")
    parser.add_argument("--width", type=int, default=64, help="channels next to the image")
    parser.add_argument("--noise", type=int, default=100, help="length of the generator's input")
    parser.add_argument("--lr", type=float, default=2e-4)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)

    images = load_images().to(args.device)
    generator = build_generator(args.noise, args.width).apply(init_weights).to(args.device)
    discriminator = build_discriminator(args.width).apply(init_weights).to(args.device)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=args.lr, betas=(0.5, 0.999))

    for step in range(1, args.steps + 1):
        real = sample_images(images, args.batch)
        fake = generator(torch.randn(args.batch, args.noise, 1, 1, device=args.device))

        discriminator_optimizer.zero_grad()
        # Detached: this step teaches the discriminator alone.
        loss_d = adversarial_loss(discriminator(real), True) + adversarial_loss(discriminator(fake.detach()), False)
        loss_d.backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        loss_g = adversarial_loss(discriminator(fake), True)
        loss_g.backward()
        generator_optimizer.step()
        print(f"step {step} loss_d {loss_d.item()!r} loss_g {loss_g.item()!r}", flush=True)


if __name__ == "__main__":
    main()
