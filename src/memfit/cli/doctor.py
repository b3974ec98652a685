"""`memfit doctor`: whether this machine has what memfit needs."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `doctor` subcommand."""
    from memfit.cli.run import add_device, add_tier

    parser = subparsers.add_parser("doctor", help="check versions, compiler, engine and disk")
    add_tier(parser)
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was found; returns 0 if memfit can run here, else 1."""
    from memfit.cli.next_step import print_next
    from memfit.running.engine.devices import parse_device
    from memfit.running.engine.tiers import tier_for
    from memfit.running.machine.doctor import examine

    device = parse_device(args.device)
    findings = examine(tier_for(args.tier, device), device)
    if args.json:
        print(json.dumps({"ok": all(f.ok for f in findings), "findings": [f.as_dict() for f in findings]}))
    else:
        width = max(len(f.name) for f in findings)
        for finding in findings:
            print(f"{'ok ' if finding.ok else 'BAD'} {finding.name:{width}}  {finding.text}")
        print_next("memfit run --budget 60% SCRIPT")
    return 0 if all(f.ok for f in findings) else 1
