import pytest

from memfit.comparing.explaining.carried import carry_out
from memfit.comparing.explaining.storages import Why, explain_storages, matching
from memfit.errors import UsageError
from memfit.ir import Plan, Recompute, Swap
from memfit.machine import Link, Machine
from memfit.planning.joint.refusals import Loss
from memfit.reporting.explain_storage import to_text
from memfit.reporting.show import print_text
from swap_builder import plan_of
from trace_builder import TraceBuilder


def machine(ns_per_byte=1000):
    link = Link.affine(0, ns_per_byte)
    return Machine("m", link, link)


def two_layers(**options):
    """Storages 1 and 2 are made by ops 0 and 1 and read by ops 6 and 5: both are idle during ops 2 to 4."""
    builder = TraceBuilder(**options)
    weight = builder.before(10)
    (first,) = builder.op("aten::mm", reads=[weight], outputs=[40], duration_us=10.0, source="/home/me/net/m.py:3")
    (second,) = builder.op("mylib::conv", reads=[weight], outputs=[30], duration_us=20.0, source="/home/me/net/m.py:4")
    for _ in range(3):
        builder.op("aten::add_.Tensor", reads=[weight], outputs=[], duration_us=10.0)
    builder.op("aten::mm", reads=[second, weight], duration_us=10.0)
    builder.free(second)
    builder.op("aten::mm", reads=[first, weight], duration_us=10.0)
    builder.op("aten::mm", reads=[weight], duration_us=10.0)
    builder.free(first)
    return builder.build()


def named_trace():
    builder = TraceBuilder()
    weight = builder.before(10, source="/home/me/init.py:1")
    builder.op("aten::mm", reads=[weight], outputs=[40, 50], source="/home/me/net/m.py:3")
    builder.op("aten::conv2d", reads=[weight], outputs=[30], source="/home/me/net/m.py:31")
    builder.op("aten::add_.Tensor", reads=[weight], outputs=[0], source="/home/me/net/m.py:3")
    return builder.build()


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("#3", [3]),
        ("m.py:3", [2, 1]),
        ("m.py:3*", [2, 1, 3]),
        ("net/m.py", [2, 1, 3]),
        ("/home/me/net/m.py:31", [3]),
        ("*.py:*", [2, 1, 3, 0]),
        ("init.py", [0]),
        ("aten::mm", [2, 1]),
        ("mm", [2, 1]),
        ("conv*", [3]),
        ("m?", [2, 1]),
    ],
)
def test_patterns_are_ids_lines_and_ops_and_the_largest_come_first(pattern, found):
    assert matching(named_trace(), pattern) == found


@pytest.mark.parametrize("pattern", ["#9", "#", "#x", "py", "add_", "m.py:5", "4"])
def test_what_matches_nothing_with_bytes_is_an_error_that_says_how_patterns_look(pattern):
    with pytest.raises(UsageError, match="no storage matches") as caught:
        matching(named_trace(), pattern)
    assert "#0 to #4" in str(caught.value) and "'conv*'" in str(caught.value)


def explained(trace, plan, pattern, ns_per_byte=1000):
    return explain_storages(carry_out(trace, machine(ns_per_byte), plan), pattern)


def only_gap(report):
    (storage,) = report.storages
    (gap,) = [gap for gap in storage.gaps if gap.returns]
    return gap


def test_a_storage_has_its_life_its_maker_and_its_gaps():
    report = explained(two_layers(), plan_of(two_layers()), "#1")
    (one,) = report.storages
    assert (one.tensor.storage, one.tensor.size_bytes, report.matched, report.matched_bytes) == (1, 40, 1, 40)
    assert (one.made_by.index, one.alive_from.index, one.alive_until.index, one.last_use.index) == (0, 0, 7, 6)
    gap = only_gap(report)
    assert (gap.after.index, gap.before.index, gap.duration_us, gap.cyclic) == (0, 6, 60.0, False)
    (last,) = [gap for gap in one.gaps if not gap.returns]  # until it is freed, after the last op
    assert (last.after.index, last.before.index, last.duration_us, last.cyclic) == (6, 0, 10.0, True)
    assert one.unused_us == 0.0 and last.swap.in_us == 0.0 < gap.swap.in_us and last.remake.refusal == Loss.UNUSED


def test_a_storage_that_recurs_is_never_unused_at_its_end():
    (one,) = explained(two_layers(), plan_of(two_layers()), "#0").storages
    assert one.made_by is one.alive_from is one.alive_until is None and one.unused_us == 0 and one.gaps == ()


def test_a_weight_that_nothing_uses_at_the_end_has_a_gap_over_it_instead():
    builder = TraceBuilder()
    weight = builder.before(10)
    for used in ([weight], [], []):
        builder.op("aten::mm", reads=used, duration_us=10.0)
    (one,) = explained(builder.build(), plan_of(builder.build()), "#0").storages
    assert one.unused_us == 0 and one.last_use.index == 0 and [gap.cyclic for gap in one.gaps] == [True]


def test_memory_in_a_gap_is_that_of_the_ops_between_and_not_of_those_around_it():
    builder = TraceBuilder()
    (made, *_) = builder.op("aten::ones", outputs=[40], scratch=[500])
    builder.op("aten::ones", outputs=[7])
    builder.op("aten::mm", reads=[made], outputs=[600])
    gap = only_gap(explained(builder.build(), plan_of(builder.build()), "#0"))
    assert (gap.keep.live_bytes, gap.keep.held_bytes, gap.keep.fullest.index) == (47, 47, 1)


def test_a_swap_after_a_re_run_is_told_by_the_op_that_ran_again():
    builder = TraceBuilder()
    (first,) = builder.op("aten::ones", outputs=[40])
    (second,) = builder.op("aten::mm", reads=[first], outputs=[30])
    (third,) = builder.op("aten::ones", outputs=[5])
    for _ in range(2):
        builder.op("aten::ones", outputs=[1])
    builder.op("aten::mm", reads=[first, second, third])
    trace = builder.build()
    # In the trace with remakings ops 1 and 2 run again as ops 5 and 6, and op 5 is op 7.
    remade = (Recompute(second, 1, 5, (1,)), Recompute(third, 2, 5, (2,)))
    swap = Swap(0, 40, 5, 6, 7, 7, False)
    gap = only_gap(explained(trace, Plan(trace.signature, 6, "p", "m", 1000, (swap,), recomputes=remade), "#0"))
    assert gap.decision == "swapped" and gap.swaps[0].leaves_after.index == 1 and gap.swaps[0].back_before.index == 5


def test_what_fits_is_kept():
    trace = two_layers()
    gap = only_gap(explained(trace, plan_of(trace, budget_bytes=80), "#1"))
    assert (gap.decision, gap.why, gap.keep.is_tight) == ("kept", Why.ROOM, False)
    assert (gap.keep.live_bytes, gap.keep.held_bytes, gap.keep.fullest.index) == (80, 80, 1)


def test_what_stays_while_another_leaves_says_so():
    trace = two_layers(pinned_bytes=5)
    swap = Swap(2, 30, 1, 2, 4, 5, False)
    # The peak of 85 is at op 1, which makes storage 2: within the gap of 1, and within none of 2's own.
    plan = Plan(trace.signature, len(trace.ops), "p", "m", 85, (swap,))
    first, second = (only_gap(explained(trace, plan, name)) for name in ("#1", "#2"))
    assert first.keep.live_bytes == first.keep.held_bytes == 85 and second.keep.held_bytes == 85
    assert (first.decision, second.decision) == ("kept", "swapped")


def test_others_that_leave_are_the_reason_to_stay_where_memory_is_tight():
    builder = TraceBuilder()
    (first,) = builder.op("aten::ones", outputs=[40])
    (second,) = builder.op("aten::ones", outputs=[40])
    builder.op("aten::ones", outputs=[1])
    for _ in range(2):
        (wide,) = builder.op("aten::ones", outputs=[30], duration_us=100.0)
        builder.free(wide)
    builder.op("aten::mm", reads=[first, second])
    trace = builder.build()
    plan = plan_of(trace, Swap(0, 40, 0, 3, 5, 5, False), budget_bytes=100)
    gap = only_gap(explained(trace, plan, "#1"))
    assert (gap.decision, gap.why, gap.keep.live_bytes) == ("kept", Why.OTHERS, 111)
    assert gap.keep.held_bytes == 81 and gap.keep.is_tight


def test_a_swap_has_its_copies_its_wait_and_its_price():
    trace = two_layers()
    gap = only_gap(explained(trace, plan_of(trace, Swap(1, 40, 0, 2, 5, 6, False)), "#1"))
    (swap,) = gap.swaps
    assert (swap.leaves_after.index, swap.back_before.index) == (0, 6)
    # It leaves at 10 us and takes 40; op 2 waits from 30 us to 50. It comes back from op 5 on, for 40 us more.
    assert (swap.out_start_us, swap.out_end_us) == (10.0, 50.0)
    assert (swap.in_start_us, swap.in_end_us, swap.wait_us) == (80.0, 120.0, 20.0 + 30.0)
    assert (gap.swap.out_us, gap.swap.in_us, gap.swap.least_wait_us) == (40.0, 40.0, 20.0)
    assert gap.swap.out_busy == gap.swap.in_busy == 0.0  # its own copies do not count
    assert (gap.why, gap.remake.rerun_us) == (Why.SWAPS_ONLY, 10.0)
    assert [op.index for op in gap.remake.ops] == [0] and gap.remake.refused_op is None


def test_a_swap_of_what_cannot_be_made_again_names_the_op_and_the_rule():
    trace = two_layers()
    gap = only_gap(explained(trace, plan_of(trace, Swap(2, 30, 1, 2, 4, 5, False)), "#2"))
    assert (gap.why, gap.remake.rerun_us, gap.remake.ops) == (Why.ONLY_WAY, None, ())
    assert (gap.remake.refused_op.name, gap.remake.refused_storage.storage) == ("mylib::conv", 2)
    assert gap.remake.refusal == "it is not an aten op"


def test_a_swap_that_delays_nothing_says_so():
    trace = two_layers()
    gap = only_gap(explained(trace, plan_of(trace, Swap(1, 40, 0, 2, 5, 6, False)), "#1", ns_per_byte=100))
    assert gap.why is Why.HIDDEN and gap.swaps[0].wait_us == 0.0


def test_the_link_is_busy_with_other_copies_only():
    trace = two_layers()
    plan = plan_of(trace, Swap(1, 40, 0, 2, 5, 6, False))
    busy = only_gap(explained(trace, plan, "#2")).swap
    # Gap of 2: from the end of op 1 at 30 us to the start of op 5 at 80, without op 2's wait until 50.
    assert busy.out_busy == pytest.approx((50 - 30) / (80 - 30)) and busy.in_busy == 0.0


def test_a_copy_of_the_iteration_before_makes_the_link_busy_too():
    builder = TraceBuilder()
    weight, other = builder.before(100), builder.before(1)
    for used in ([other], [], [weight, other], []):
        builder.op("aten::mm", reads=used, duration_us=50.0)
    trace = builder.build()
    plan = plan_of(trace, Swap(0, 100, 2, 3, 6, 6, True))
    gap = explained(trace, plan, "#1").storages[0].gaps[0]
    # Out from 150 us to 250, which op 3 waits for; in from op 2 on, which waits 100 us for it.
    assert (gap.after.index, gap.before.index) == (0, 2) and gap.swap.in_busy > 0 and gap.swap.out_busy == 0.0


def test_a_remaking_has_its_ops_and_its_price():
    trace = two_layers()
    plan = Plan(trace.signature, len(trace.ops), "p", "m", 1000, (), recomputes=(Recompute(1, 0, 6, (0,)),))
    gap = only_gap(explained(trace, plan, "#1"))
    (one,) = gap.remakings
    assert (one.dropped_after.index, one.made_before.index, [op.index for op in one.ops]) == (0, 6, [0])
    assert (one.rerun_us, one.shared_us, gap.decision, gap.why) == (10.0, 10.0, "recomputed", Why.SHORT)
    assert only_gap(explained(trace, plan, "#1", ns_per_byte=200)).why is Why.CHEAPER_REMAKE
    assert only_gap(explained(trace, plan, "#1", ns_per_byte=10)).why is Why.FOUND_REMAKE


def test_a_remaking_where_the_link_is_full_says_so():
    builder = TraceBuilder()
    (first,) = builder.op("aten::ones", outputs=[40], duration_us=1.0)
    (large,) = builder.op("aten::ones", outputs=[90], duration_us=1.0)
    builder.op("aten::ones", outputs=[1], duration_us=100.0)
    builder.op("aten::mm", reads=[first])
    builder.op("aten::ones", outputs=[1], duration_us=100.0)
    builder.op("aten::mm", reads=[large])
    trace = builder.build()
    swap = Swap(1, 90, 1, 4, 5, 6, False)  # in the trace with remakings op 3 is op 4
    plan = Plan(trace.signature, 6, "p", "m", 1000, (swap,), recomputes=(Recompute(0, 0, 3, (0,)),))
    gap = only_gap(explained(trace, plan, "#0"))
    # From the end of op 0 at 1 us to the start of op 3 at 103; the copy of the other runs from 2 us to 92.
    assert gap.why is Why.FULL and gap.swap.out_busy == pytest.approx(90 / 102)
    assert gap.swap.planned_us == pytest.approx(102.0)


def test_the_text_tells_each_way_of_a_gap(capsys):
    trace = two_layers()
    print_text(to_text(explained(trace, plan_of(trace, Swap(2, 30, 1, 2, 4, 5, False), budget_bytes=80), "m.py")))
    text = " ".join(capsys.readouterr().out.split())
    assert "2 storages of 70 B match 'm.py'" in text and "#1 activation 1" in text
    assert "swapped it cannot be made again" in text and "not possible, it is not an aten op: op 1 mylib::conv" in text
