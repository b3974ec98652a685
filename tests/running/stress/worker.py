"""Compares a share of all groups, a few at a time in a forked child: `python -m running.stress.worker ...`.

A child that crashes or hangs names what it was at. What does so plainly is left out and counted; what does so
under stress is a fault.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import pickle
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from memfit.running import engine
from running.stress import modules, nested, operators, optimizers, quantized, schemas
from running.stress.compare import MADE, PLAIN, Comparison, Left, Place, Report
from running.stress.samples import Group

CHUNK = 12  # groups a child
LONGEST_S = 400  # a chunk
SLOW_S = 20  # a chunk that is named


def all_groups() -> list[Group]:
    """Return every group there is."""
    return [group for kind in (operators, modules, optimizers, nested, quantized, schemas) for group in kind.groups()]


def compare(groups: list[Group], most: int) -> Report:
    """Compare `groups`, a chunk at a time."""
    report = Report()
    for start in range(0, len(groups), CHUNK):
        began = time.monotonic()
        report.add(compare_chunk(groups[start : start + CHUNK], most))
        if (took := time.monotonic() - began) > SLOW_S:
            print(f"{took:.0f} s from {groups[start].name} on", file=sys.stderr)
    return report


def compare_chunk(groups: list[Group], most: int) -> Report:
    """Compare `groups` in a child, and again in another without what crashed."""
    crashes, left = Report(), set()
    while True:
        found = in_child(groups, most, frozenset(left))
        if isinstance(found, Report):
            found.add(crashes)
            return found
        how, group, index, part = found
        if how == PLAIN:
            crashes.crashed += 1
        else:
            crashes.faults.append(f"{how}: {group} #{index}: {part}: crashed or hung")
        if part == MADE:
            groups = [other for other in groups if other.name != group]
        left.add((group, index, part))


def in_child(groups: list[Group], most: int, left: Left) -> Report | Place:
    """Return a forked child's report, or what it was at when it crashed or hung."""
    place = mmap.mmap(-1, 4096)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        run_child(groups, most, left, place, writes)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        data = b"".join(until_it_ends(child, pipe.fileno()))
    os.waitpid(child, 0)
    found = pickle.loads(data) if data else read_place(place)
    if isinstance(found, str):
        raise RuntimeError(f"at {read_place(place)}: {found}")
    return found


def run_child(groups: list[Group], most: int, left: Left, place: mmap.mmap, writes: int) -> None:
    """Compare, write the report to the pipe, or what went wrong with the comparing itself, and end."""
    try:
        found: Report | str = Comparison(most, left, lambda at: write_place(place, at)).of(groups)
    except BaseException:
        found = traceback.format_exc()
    try:
        with os.fdopen(writes, "wb") as pipe:
            pickle.dump(found, pipe)
    finally:
        os._exit(0)


def until_it_ends(child: int, pipe: int) -> Iterator[bytes]:
    """Yield what comes through the pipe; a child that takes too long is ended."""
    while True:
        if not select.select([pipe], [], [], LONGEST_S)[0]:
            os.kill(child, signal.SIGKILL)
        if not (data := os.read(pipe, 1 << 16)):
            return
        yield data


def write_place(place: mmap.mmap, at: Place) -> None:
    """Say what is about to be run, in memory that outlives a crash."""
    data = json.dumps(at).encode()
    place[: len(data) + 1] = data + b"\0"


def read_place(place: mmap.mmap) -> Place:
    """Return what was about to be run."""
    how, group, index, part = json.loads(place[: place.find(b"\0")])
    return how, group, index, part


def main() -> None:
    """Compare every n-th group from the k-th on, or those named, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--most", type=int, default=8, help="samples of a group")
    parser.add_argument("--named", default="", help="what a group's name contains")
    parser.add_argument("--report", type=Path)
    run(parser.parse_args())


def run(options: argparse.Namespace) -> None:
    """Compare what the options name."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    engine.load()
    gc.collect()
    gc.freeze()  # a session looks at every object the collector tracks
    groups = [group for group in all_groups() if options.named in group.name]
    report = compare(groups[options.first :: options.every], options.most)
    if options.report:
        options.report.write_text(json.dumps(vars(report)))
    print("\n".join([*report.faults, str(report.counts())]))


if __name__ == "__main__":
    main()
