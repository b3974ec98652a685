"""Which addresses are taken and which are free, against a list of spans that is searched from end to end."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.running.engine import compiler

UNIT = 64
MOST = 40 * UNIT
Span = tuple[int, int]  # from, to


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    source = Path(__file__).with_name("ranges_module.cpp")
    native = Path(__file__).parents[3] / "native"
    built = tmp_path_factory.mktemp("ranges") / "ranges.so"
    subprocess.run([*compiler(), "-std=c++20", "-O1", "-D_GLIBCXX_ASSERTIONS", "-shared", "-fPIC", f"-I{native}",
                    str(source), "-o", str(built)], check=True)  # fmt: skip
    loaded = ctypes.CDLL(str(built))
    for name in ("make", "take", "take_at", "keep_last", "offset", "free", "largest", "used", "footprint", "list"):
        getattr(loaded, f"ranges_{name}").restype = ctypes.c_void_p
    return loaded


class Ranges:
    """The engine's, beside a model of it: the spans that are taken, by the engine's names for them."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._ranges = self._call("make", MOST, UNIT, of=None)
        self.limit, self.taken, self.footprint = MOST, dict[int, Span](), 0

    def _call(self, name: str, *args: int, of: int | None = 0) -> int:
        first = [] if of is None else [ctypes.c_void_p(of or self._ranges)]
        found = getattr(self._library, f"ranges_{name}")(*first, *(ctypes.c_void_p(arg) for arg in args))
        return int(found or 0)

    def close(self) -> None:
        self._call("delete")

    def holes(self) -> list[Span]:
        """Return the model's free spans below the limit, in order."""
        ends = [0, *(end for _, end in sorted(self.taken.values()))]
        begins = [*(begin for begin, _ in sorted(self.taken.values())), MOST]
        cut = ((max(end, 0), min(begin, self.limit)) for end, begin in zip(ends, begins, strict=True))
        return [(begin, end) for begin, end in cut if begin < end]

    def take(self, size: int, *, high: bool) -> None:
        fitting = [(end - begin, begin, end) for begin, end in self.holes() if end - begin >= size]
        region = self._call("take", size, int(high))
        if not fitting:
            assert region == 0
            return
        _, begin, end = min(fitting)
        self._note(region, end - size if high else begin, size)

    def take_at(self, which: int, offset: int, size: int) -> None:
        """Take a part of one of the holes."""
        holes = self.holes()
        if not holes:
            return
        begin, end = holes[which % len(holes)]
        begin += offset * UNIT % (end - begin)
        size = min(size, end - begin)
        self._note(self._call("take_at", begin, size), begin, size)

    def _note(self, region: int, begin: int, size: int) -> None:
        assert self._call("offset", of=region) == begin
        assert region not in self.taken
        self.taken[region] = (begin, begin + size)
        self.footprint = max(self.footprint, begin + size)

    def give_back(self, which: int) -> None:
        if self.taken:
            region = sorted(self.taken, key=self.taken.get)[which % len(self.taken)]
            del self.taken[region]
            self._call("give_back", region)

    def refuses(self, region: int) -> bool:
        return bool(self._call("refuses", region) & 1)

    def keep_last(self, which: int, size: int) -> None:
        if self.taken:
            region = sorted(self.taken, key=self.taken.get)[which % len(self.taken)]
            begin, end = self.taken.pop(region)
            kept = self._call("keep_last", region, size)
            self.taken[kept] = (max(begin, end - size), end)

    def limit_to(self, limit: int) -> None:
        self._call("shrink" if limit < self.limit else "grow", limit)
        self.limit = limit

    def check(self) -> None:
        sizes = [end - begin for begin, end in self.holes()]
        assert self._call("free") == sum(sizes)
        assert self._call("largest") == max(sizes, default=0)
        assert self._call("used") == sum(end - begin for begin, end in self.taken.values())
        assert self._call("footprint") == self.footprint
        rows = (ctypes.c_size_t * (3 * (2 * len(self.taken) + 4)))()
        count = self._call("list", ctypes.addressof(rows))
        regions = [tuple(rows[3 * row : 3 * row + 3]) for row in range(count)]
        assert all(a[0] + a[1] == b[0] for a, b in zip(regions, regions[1:], strict=False)), "they follow one another"
        assert regions[0][0] == 0 and sum(size for _, size, _ in regions) == MOST
        assert sorted(self.taken.values()) == [(at, at + size) for at, size, is_taken in regions if is_taken]
        free = [(at, at + size) for at, size, is_taken in regions if not is_taken and at < self.limit]
        assert free == self.holes(), "neighbours that are free are one, and none crosses the limit"


UNITS = st.integers(1, 12).map(lambda count: count * UNIT)
ACTS = st.one_of(
    st.builds(lambda size, high: lambda r: r.take(size, high=high), UNITS, st.booleans()),
    st.builds(lambda *args: lambda r: r.take_at(*args), st.integers(0, 9), st.integers(0, 39), UNITS),
    st.builds(lambda which: lambda r: r.give_back(which), st.integers(0, 39)),
    st.builds(lambda which, size: lambda r: r.keep_last(which, size), st.integers(0, 39), UNITS),
    st.builds(lambda limit: lambda r: r.limit_to(limit * UNIT), st.integers(0, 40)),
)


@pytest.mark.long
@given(acts=st.lists(ACTS, max_size=60))
def test_it_does_what_a_list_of_spans_does(library: Any, acts: list[Callable[[Ranges], None]]):
    ranges = Ranges(library)
    for act in acts:
        act(ranges)
        ranges.check()
    ranges.close()


def test_what_was_taken_elsewhere_is_not_given_back_here(library: Any):
    """As a plan's storage, if it were given back to the arena's ranges: both would give out its bytes."""
    ranges, others = Ranges(library), Ranges(library)
    ranges.take(2 * UNIT, high=False)
    others.take(2 * UNIT, high=False)
    (foreign,) = others.taken
    assert ranges.refuses(foreign)
    ranges.check()
    others.check()
    (own,) = ranges.taken
    assert not ranges.refuses(own)
    ranges.close()
    others.close()
