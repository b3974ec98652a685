"""GPT-2-style byte-level language model over the standard library's own source text.

Small sizing: --layers 2 --width 64 --batch 8
Large sizing: --layers 12 --width 384 --batch 16
"""

import argparse
import os
from importlib import resources

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Only a config is used: nothing is to be looked up on the hub.
os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import GPT2Config, GPT2LMHeadModel


def load_text() -> Tensor:
    files = [file for package in ("json", "email", "asyncio") for file in resources.files(package).iterdir()]
    # The order in which a folder lists its files is not to be relied upon.
    sources = sorted((file for file in files if file.name.endswith(".py")), key=str)
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in sources)), dtype=torch.uint8)


def sample_windows(text: Tensor, batch: int, context: int) -> Tensor:
    starts = torch.randint(len(text) - context, (batch, 1), device=text.device)
    return text[starts + torch.arange(context + 1, device=text.device)].long()


def build_model(layers: int, width: int, context: int, attention: str) -> nn.Module:
    config = GPT2Config(
        vocab_size=256,
        n_positions=context,
        n_embd=width,
        n_layer=layers,
        n_head=max(1, width // 32),
        resid_pdrop=0.1,
        embd_pdrop=0.1,
        attn_pdrop=0.1,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation=attention,
    )
    return GPT2LMHeadModel(config).train()


def accumulate_gradients(model: nn.Module, text: Tensor, batch: int, context: int, micro_steps: int) -> Tensor:
    total = torch.zeros((), device=text.device)
    for _ in range(micro_steps):
        windows = sample_windows(text, batch, context)
        logits = model(input_ids=windows[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()) / micro_steps
        loss.backward()
        total += loss.detach()
    return total


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="where the model trains: cpu or cuda")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help="embedding width, a multiple of 32")
    parser.add_argument("--context", type=int, default=128, help="bytes in a window of text")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--checkpoint", action="store_true", help="torch.utils.checkpoint around each layer")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=4, help="steps of linear warmup")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)

    text = load_text().to(args.device)
    model = build_model(args.layers, args.width, args.context, args.attention).to(args.device)
    if args.checkpoint:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1, foreach=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=args.warmup)

    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        loss = accumulate_gradients(model, text, args.batch, args.context, args.accumulate)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        scheduler.step()
        print(f"step {step} loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
