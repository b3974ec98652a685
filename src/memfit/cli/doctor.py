"""`memfit doctor`: whether this machine has what memfit needs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `doctor` subcommand."""
    from memfit.cli.run import add_device, add_tier

    parser = subparsers.add_parser("doctor", help="check versions, compiler, engine and disk")
    add_tier(parser)
    add_device(parser)
    parser.add_argument("--clear-plans", action="store_true", help="only remove the plans kept for later runs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; returns 0 if memfit can run here, otherwise 1."""
    from memfit.cli.next_step import print_next
    from memfit.reporting.doctor import DoctorReport, FindingInfo, to_text
    from memfit.reporting.show import show
    from memfit.running.engine.devices import parse_device
    from memfit.running.engine.tiers import tier_for
    from memfit.running.machine.doctor import clear_plans, examine

    if args.clear_plans:
        print(clear_plans())
        return 0
    device = parse_device(args.device)
    findings = examine(tier_for(args.tier, device), device)
    infos = tuple(FindingInfo(f.name, f.ok, f.text, f.values) for f in findings)
    report = DoctorReport(all(info.ok for info in infos), infos)
    show(report, to_text, as_json=args.json)
    if not args.json:
        print_next("memfit run --budget 60% SCRIPT")
    return 0 if report.ok else 1
