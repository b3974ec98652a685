"""LSTM byte-level language model over the standard library's own source text, by truncated BPTT.

Small sizing: --width 64 --batch 16
Large sizing: --width 512 --batch 320
"""

import argparse
from collections.abc import Iterator
from importlib import resources

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class LanguageModel(nn.Module):
    def __init__(self, width: int, layers: int, vocabulary: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(0.2)
        self.lstm = nn.LSTM(width, width, num_layers=layers, dropout=0.2 if layers > 1 else 0.0)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
        hidden, state = self.lstm(self.dropout(self.embedding(tokens)), state)
        return self.head(self.dropout(hidden)), state


def load_text() -> Tensor:
    files = [file for package in ("json", "email", "asyncio") for file in resources.files(package).iterdir()]
    # The order in which a folder lists its files is not to be relied upon.
    sources = sorted((file for file in files if file.name.endswith(".py")), key=str)
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in sources)), dtype=torch.uint8)


def chunks(text: Tensor, batch: int, context: int) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Endless (inputs, targets, whether the text starts over), each chunk going on where the last ended."""
    length = len(text) // batch
    columns = text[: length * batch].view(batch, length).t()
    while True:
        for start in range(0, length - context, context):
            window = columns[start : start + context + 1].long()
            yield window[:-1], window[1:], start == 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="where the model trains: cpu or cuda")
    parser.add_argument("--width", type=int, default=256, help="width of the embedding and of the LSTM")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--context", type=int, default=64, help="bytes per step of truncated BPTT")
    parser.add_argument("--lr", type=float, default=2e-3)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)

    model = LanguageModel(args.width, args.layers).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    stream = chunks(load_text().to(args.device), args.batch, args.context)

    state: State | None = None
    for step in range(1, args.steps + 1):
        inputs, targets, starts_over = next(stream)
        if starts_over:
            state = None
        optimizer.zero_grad()
        logits, (hidden, cell) = model(inputs, state)
        # The next step takes the state's values up, and does not reach back through it.
        state = hidden.detach(), cell.detach()
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        print(f"step {step} loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
