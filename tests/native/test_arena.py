"""The arena keeps its books, and every storage its bytes, whatever comes, goes, stays, and becomes of the limit."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from memfit.running import engine

NATIVE = Path(__file__).parents[2] / "native"
LINE = 64  # bytes: every offset is a multiple of it
MOST = 96 * LINE
FEW = st.integers(1, 6).map(LINE.__mul__)
MANY = st.integers(6, 40).map(LINE.__mul__)
SOME = st.integers(0, 20 * LINE)
NUMBERS = st.integers(0, 1 << 20)


def build(folder: Path) -> ctypes.CDLL:
    """Return the functions of arena_probe.cc."""
    library = folder / "probe.so"
    command = [*(engine.compiler() or ["c++"]), "-O1", "-std=c++20", "-shared", "-fPIC"]
    command += [f"-I{NATIVE}", str(Path(__file__).with_name("arena_probe.cc")), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    functions = ctypes.CDLL(str(library))
    functions.make.restype = ctypes.c_void_p
    functions.failure.restype = ctypes.c_char_p
    for name in ("where", "limit", "shelf_end"):
        getattr(functions, name).restype = ctypes.c_long
    return functions


class Arena(RuleBasedStateMachine):
    """An arena and those who use it, as the engine does; its plan has slots of one size."""

    functions: ClassVar[ctypes.CDLL]

    def __init__(self) -> None:
        super().__init__()
        self.probe = ctypes.c_void_p(self.functions.make(ctypes.c_size_t(MOST)))
        self.made = 0
        self.storages: list[int] = []
        self.stays: dict[int, int] = {}
        """Where each lies whose address somebody has."""
        self.slot = 0
        """The size of the plan's; 0 without one."""

    def teardown(self) -> None:
        self.functions.destroy(self.probe)

    def does(self, name: str, *arguments: int) -> bool:
        done = getattr(self.functions, name)(self.probe, *map(ctypes.c_size_t, arguments))
        assert done >= 0, f"{name}: {self.functions.failure().decode()}"
        return bool(done)

    def chosen(self, number: int) -> int:
        return self.storages[number % len(self.storages)]

    def comes(self, name: str, *arguments: int) -> bool:
        self.made += 1
        comes = self.does(name, self.made, *arguments)
        if comes:
            self.storages.append(self.made)
        return comes

    @initialize(less=SOME)
    def begins(self, less: int) -> None:
        self.does("set_limit", MOST - less)

    @rule(size=FEW, stay=st.lists(st.booleans(), min_size=1, max_size=5))
    def small_ones_come(self, size: int, stay: list[bool]) -> None:
        for stays in stay:
            if self.comes("make_storage", size, True, False) and stays:
                self.one_must_stay(-1)

    @rule(size=MANY, high=st.booleans())
    def a_large_one_comes(self, size: int, high: bool) -> None:
        self.comes("make_storage", size, False, high)

    @rule(size=FEW)
    def one_lies_beyond_the_limit(self, size: int) -> None:
        self.comes("make_beyond", size)

    @precondition(lambda self: self.storages)
    @rule(number=NUMBERS)
    def one_goes(self, number: int) -> None:
        gone = self.storages.pop(number % len(self.storages))
        self.stays.pop(gone, None)
        self.does("free_storage", gone)

    @precondition(lambda self: self.storages)
    @rule(number=NUMBERS)
    def one_must_stay(self, number: int) -> None:
        chosen = self.chosen(number)
        if self.does("pin", chosen):
            self.stays[chosen] = self.functions.where(self.probe, chosen)

    @precondition(lambda self: self.stays)
    @rule(number=NUMBERS)
    def one_may_move_again(self, number: int) -> None:
        chosen = sorted(self.stays)[number % len(self.stays)]
        del self.stays[chosen]
        self.does("unpin", chosen)

    @precondition(lambda self: self.storages)
    @rule(number=NUMBERS)
    def one_comes_down(self, number: int) -> None:
        self.does("slide", self.chosen(number))

    @precondition(lambda self: self.storages)
    @rule(number=NUMBERS)
    def one_goes_up(self, number: int) -> None:
        self.does("slide_up", self.chosen(number))

    @rule(less=SOME, of=st.sampled_from(["limit", "shelf_end"]))
    def the_limit_falls(self, less: int, of: str) -> None:
        self.does("set_limit", max(getattr(self.functions, of)(self.probe) - less, 0))
        self.slot = 0

    @rule(more=MANY)
    def the_limit_gives_way(self, more: int) -> None:
        self.does("give_way", more)

    @precondition(lambda self: self.functions.has_given_way(self.probe))
    @rule()
    def the_limit_is_back(self) -> None:
        self.does("return_to_limit")

    @rule(slack=st.sampled_from([0, LINE, 8 * LINE]))
    def the_shelf_gives_back(self, slack: int) -> None:
        self.does("trim_shelf", slack)

    @rule()
    def the_shelf_begins_anew(self) -> None:
        self.does("dissolve_shelf")

    @precondition(lambda self: not self.slot)
    @rule(
        slots=st.integers(1, 4),
        size=FEW,
        gap=st.sampled_from([0, 8 * LINE]),
        above=st.integers(0, 20).map(LINE.__mul__),
    )
    def a_plan_comes(self, slots: int, size: int, gap: int, above: int) -> None:
        if self.does("set_plan", slots, size, gap, above):
            self.slot = size

    @precondition(lambda self: self.slot)
    @rule()
    def the_plan_has_a_slot_taken(self) -> None:
        self.comes("take_planned", self.slot)

    @precondition(lambda self: self.slot)
    @rule()
    def an_iteration_ends(self) -> None:
        self.does("end_iteration")

    @precondition(lambda self: self.slot)
    @rule()
    def the_plan_goes(self) -> None:
        self.does("drop_plan")
        self.slot = 0

    @invariant()
    def all_is_in_order(self) -> None:
        self.does("check")
        assert {one: self.functions.where(self.probe, one) for one in self.stays} == self.stays


@pytest.fixture(scope="module", autouse=True)
def probe(tmp_path_factory: pytest.TempPathFactory) -> None:
    Arena.functions = build(tmp_path_factory.mktemp("probe"))


@pytest.mark.parametrize(("lines", "comes"), [(17, True), (20, True), (21, False)])
def test_a_storage_beyond_the_limit_has_the_bytes_of_whole_pages_in_holes_below_it(lines: int, comes: bool) -> None:
    """Five storages of 13 lines fill the arena, and two of them go: whole pages of 8 and 12 lines are free."""
    arena = Arena()
    arena.begins(MOST - 5 * 13 * LINE)
    for _ in range(5):
        arena.a_large_one_comes(13 * LINE, high=False)
    for number in (3, 1):
        arena.one_goes(number)
    assert arena.comes("make_beyond", lines * LINE) == comes
    arena.all_is_in_order()
    arena.teardown()


def test_what_gets_memory_just_now_keeps_it_when_a_full_device_has_free_pages_back() -> None:
    page = 4 * LINE
    arena = Arena()
    for begin, end in ((12, 20), (0, 6), (2, 10)):
        assert arena.functions.back(arena.probe, *map(ctypes.c_size_t, (begin * page, end * page, 8))) == end - begin
    arena.teardown()


def test_the_shelf_ends_with_the_limit_also_where_what_stays_lies_beyond():
    """What stays there is an ordinary region from then on."""
    arena = Arena()
    arena.begins(0)
    arena.a_large_one_comes(6 * LINE, high=False)
    arena.one_must_stay(0)
    arena.all_is_in_order()
    arena.the_limit_falls(1, of="shelf_end")
    arena.all_is_in_order()
    assert arena.functions.shelf_end(arena.probe) == 0
    arena.teardown()


@pytest.mark.long
class TestArena(Arena.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(stateful_step_count=40)
