"""Byte-level decoder that continues passages of the standard library's own source text, token by token.

Its weights are random, and its cache of keys and values has one size for all tokens.

Small sizing: --layers 6 --width 256
Large sizing: --layers 24 --width 1280
"""

import argparse
from collections.abc import Iterator
from importlib import resources

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256


class Block(nn.Module):
    """A layer with its cache, of which tokens not yet seen are masked."""

    def __init__(self, width: int, heads: int, batch: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, heads, context, width // heads), persistent=False)

    def forward(self, hidden: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        projected = self.attention_in(self.before_attention(hidden))
        query, key, value = projected.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, positions, key)
        self.values.index_copy_(2, positions, value)
        attended = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)
        hidden = hidden + self.attention_out(attended.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.mlp(self.before_mlp(hidden))


class Decoder(nn.Module):
    """Tied weights: the head is the embedding's."""

    def __init__(self, layers: int, width: int, batch: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64), batch, context) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.context = context

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Returns the logits of the token after the last."""
        mask = torch.arange(self.context, device=tokens.device) <= positions[:, None]
        hidden = self.embedding(tokens) + self.places(positions)
        for block in self.blocks:
            hidden = block(hidden, positions, mask)
        return self.head(self.norm(hidden[:, -1]))


def load_text() -> Tensor:
    files = [file for package in ("json", "email", "asyncio") for file in resources.files(package).iterdir()]
    # The order in which a folder lists its files is not to be relied upon.
    sources = sorted((file for file in files if file.name.endswith(".py")), key=str)
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in sources)), dtype=torch.uint8)


def continuations(model: Decoder, text: Tensor, batch: int, prompt: int, temperature: float) -> Iterator[Tensor]:
    """Endless logits, one for each forward pass: the first of each context reads its prompt, the others one token."""
    device = text.device
    while True:
        starts = torch.randint(len(text) - prompt, (batch, 1), device=device)
        tokens = text[starts + torch.arange(prompt, device=device)].long()
        positions = torch.arange(prompt, device=device)
        while positions[-1] < model.context:
            logits = model(tokens, positions)
            yield logits
            tokens = torch.multinomial((logits / temperature).softmax(-1), 1)
            positions = positions[-1:] + 1


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=64, help="forward passes")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="where the model runs: cpu or cuda")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512, help="embedding width, a multiple of 64")
    parser.add_argument("--context", type=int, default=128, help="tokens that the cache has room for")
    parser.add_argument("--prompt", type=int, default=16, help="tokens that are given")
    parser.add_argument("--temperature", type=float, default=1.0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)

    text = load_text().to(args.device)
    model = Decoder(args.layers, args.width, args.batch, args.context).to(args.device).eval()
    with torch.inference_mode():
        passes = continuations(model, text, args.batch, args.prompt, args.temperature)
        for step, logits in zip(range(1, args.steps + 1), passes, strict=False):
            print(f"step {step} logit {logits.max().item()!r}", flush=True)


if __name__ == "__main__":
    main()
