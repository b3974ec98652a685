"""Builds streams of mallocs and frees, and random ones."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from benchmarks.common.paths import DATA
from memfit.events import MallocStream

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data folder is absent; set MEMFIT_DATA")

KIB, MIB = 1 << 10, 1 << 20


def stream(*steps: int | str, initial: int = 0) -> MallocStream:
    """A number allocates that many bytes; "-k" frees the k-th storage allocated."""
    sizes: list[int] = []
    out = []
    for step in steps:
        if isinstance(step, str):
            out.append(~int(step[1:]))
        else:
            out.append(len(sizes))
            sizes.append(step)
    return MallocStream(tuple(sizes), tuple(out), initial)


def looped(*iteration: int | str, times: int, before: tuple[int, ...] = ()) -> MallocStream:
    """`before`, then `times` iterations; in one, "-k" frees its k-th storage and "<k" that of the iteration before."""
    steps: list[int | str] = list(before)
    count = len(before)
    mallocs = sum(isinstance(step, int) for step in iteration)
    for number in range(times):
        for step in iteration:
            if isinstance(step, int):
                steps.append(step)
            elif step[0] == "-":
                steps.append(f"-{count + int(step[1:])}")
            elif number:
                steps.append(f"-{count - mallocs + int(step[1:])}")
        count += mallocs
    return stream(*steps, initial=0)


# Sizes about every rule's border, and plain ones.
SIZES = st.one_of(
    st.sampled_from(
        [1, 15, 16, 256, 511, 512, 513, MIB - 1, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB, 300 * MIB]
    ),
    st.integers(1, 4 * MIB),
)


@st.composite
def streams(draw: st.DrawFn, *, max_steps: int = 60, sizes: st.SearchStrategy[int] = SIZES) -> MallocStream:
    """Random mallocs and frees; some storages are alive before and some are never freed."""
    storages = draw(st.lists(sizes, max_size=max_steps))
    initial = draw(st.integers(0, min(3, len(storages))))
    steps, alive = [], []
    for number in range(len(storages)):
        steps.append(number)
        alive.append(number)
        while number >= initial and alive and draw(st.integers(0, 9)) < 4:
            steps.append(~alive.pop(draw(st.integers(0, len(alive) - 1))))
    return MallocStream(tuple(storages), tuple(steps), initial)
