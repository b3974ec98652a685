"""The machine a session plans for: a guess, its own copies, or a GPU's curve corrected by them."""

from __future__ import annotations

import pytest

from memfit.ir import Map
from memfit.machine import Link, Machine
from memfit.planning.lifetimes import births
from memfit.planning.paging.cost import cost_us
from memfit.running.engine.tiers import TierSpec
from memfit.running.planned.link import SessionLink
from trace_builder import TraceBuilder

MIB = 1 << 20
NOTHING = {f"{name}": 0 for name in ("bytes_out", "bytes_in", "untimed_out_bytes", "untimed_in_bytes",
                                     "out_ns", "in_ns", "timed_copies_out", "timed_copies_in")}  # fmt: skip
CURVE = Link((4096, MIB, 64 * MIB), (5.0, 30.0, 1300.0))
GPU = Machine("a gpu", CURVE, CURVE, loaded_factor=0.8)


def copies(count: int, size_bytes: int, each_us: float) -> dict[str, int]:
    moved, ns = count * size_bytes, int(1000 * count * each_us)
    return NOTHING | {"bytes_out": moved, "bytes_in": moved, "out_ns": ns, "in_ns": ns,
                      "timed_copies_out": count, "timed_copies_in": count}  # fmt: skip


def later(stats: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return {name: value + more[name] for name, value in stats.items()}


@pytest.mark.parametrize(("kind", "gb_per_s"), [("ram", 4.0), ("disk", 0.5)])
def test_before_any_copy_it_is_a_careful_guess(kind, gb_per_s):
    machine = SessionLink(TierSpec(kind)).machine(NOTHING)
    assert machine.out.copy_us(10**9) == pytest.approx(10**6 / gb_per_s / 0.9)


def test_it_is_the_mean_of_all_copies_until_the_last_are_far_from_it():
    link, first = SessionLink(TierSpec("ram")), copies(4, MIB, 100)
    second = later(first, copies(4, MIB, 140))
    link.note(second, first)
    assert link.machine(second).into.copy_us(MIB) == pytest.approx(120 / 0.9, rel=0.1)
    third = later(second, copies(4, MIB, 1000))
    link.note(third, second)
    assert link.machine(third).into.copy_us(MIB) == pytest.approx(1000 / 0.9, rel=0.02)
    fourth = later(third, copies(4, MIB, 1000))  # from then on the old ones are forgotten
    link.note(fourth, third)
    assert link.machine(fourth).into.copy_us(MIB) == pytest.approx(1000 / 0.9, rel=0.02)


@pytest.mark.parametrize("fast", [5, 50])
@pytest.mark.parametrize("slow_us", [1000, 250])
def test_no_copy_from_before_a_change_counts_once_the_last_iterations_are_after_it(slow_us, fast):
    """Two of the three in which the change is seen first were still fast."""
    link, ended = SessionLink(TierSpec("ram")), [NOTHING]

    def copy_us(each_us: float) -> float:
        """Return the time of a copy, after one more iteration."""
        ended.append(later(ended[-1], copies(4, MIB, each_us)))
        link.note(ended[-1], ended[max(len(ended) - 4, 0)])
        return link.machine(ended[-1]).out.copy_us(MIB)

    assert [copy_us(100) for _ in range(fast)][-1] == pytest.approx(100 / 0.9, rel=0.02)
    assert [copy_us(slow_us) for _ in range(3)][-1] == pytest.approx(slow_us / 0.9, rel=0.02)
    for _ in range(10):
        copy_us(slow_us)
    assert copy_us(1.5 * slow_us) == pytest.approx(slow_us / 0.9, rel=0.05)  # and then all of them count


def test_bytes_that_nobody_timed_say_nothing_of_the_speed():
    stats = copies(4, MIB, 100)
    stats |= {"bytes_out": stats["bytes_out"] + 1000 * MIB, "untimed_out_bytes": 1000 * MIB}
    machine = SessionLink(TierSpec("ram")).machine(stats)
    assert machine.out.copy_us(MIB) == pytest.approx(100 / 0.9, rel=0.1)


def test_a_gpus_curve_is_taken_as_it_is_under_load():
    machine = SessionLink(TierSpec("ram"), GPU).machine(NOTHING)
    for size in (4096, MIB, 64 * MIB):
        assert machine.out.copy_us(size) == pytest.approx(CURVE.copy_us(size) / 0.8 / 0.9)
    assert machine.both_factor == GPU.both_factor


def test_an_op_of_a_gpus_that_maps_takes_its_bytes_over_the_link():
    builder = TraceBuilder()
    a, b = builder.before(64 * MIB), builder.before(MIB)
    builder.op("aten::add", reads=[a, b], outputs=[MIB])
    trace = builder.build()
    machine = SessionLink(TierSpec("ram"), GPU).machine(NOTHING)
    took_us = cost_us(trace, Map(0, (a,), 0), births(trace), machine)
    assert took_us == pytest.approx(machine.into.copy_us(64 * MIB))


def test_a_gpus_curve_is_corrected_by_planned_copies_of_any_size():
    twice_as_slow = copies(10, 64 * MIB, 2 * 1300.0)
    machine = SessionLink(TierSpec("ram"), GPU).machine(twice_as_slow)
    assert machine.into.copy_us(MIB) == pytest.approx(2 * 30.0 / 0.9)


def test_of_a_tier_that_compresses_it_is_the_speed_of_what_is_written_and_read():
    """The copies of a trace are those of what is left: it says how much that is."""
    stats = copies(10, MIB, 100) | {"bytes_stored": 5 * MIB, "bytes_loaded": 2 * MIB}
    machine = SessionLink(TierSpec("disk", compress=True)).machine(stats)
    assert machine.out.copy_us(MIB // 2) == pytest.approx(100 / 0.9, rel=0.01)
    assert machine.into.copy_us(MIB // 5) == pytest.approx(100 / 0.9, rel=0.01)
    plain = SessionLink(TierSpec("disk")).machine(stats)
    assert plain.out.copy_us(MIB) == pytest.approx(100 / 0.9, rel=0.01)


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_processes_share_a_link_until_their_own_copies_are_timed(kind):
    alone, shared = (SessionLink(TierSpec(kind), None, processes) for processes in (1, 4))
    guess = alone.machine(NOTHING).out.copy_us(MIB)
    assert shared.machine(NOTHING).out.copy_us(MIB) == pytest.approx(4 * guess)
    assert shared.machine(copies(4, MIB, 100)).out == alone.machine(copies(4, MIB, 100)).out
    gpu = SessionLink(TierSpec("ram"), GPU, 4)
    assert gpu.machine(NOTHING) == SessionLink(TierSpec("ram"), GPU).machine(NOTHING)
