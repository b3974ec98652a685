"""Programs drawn at random give the same bits plainly, in an unlimited session and within a budget."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

import memfit
from memfit.planning.lifetimes import minimum_budget, peak_live
from memfit.running.engine.tiers import TierSpec
from memfit.running.session import Session
from running.programs.contents import read_plainly
from running.programs.run import Run
from running.programs.templates import GROUPS
from running.programs.write import Program, write
from running.stress.compare import RUNS, STRESSES, stressed

TIERS = (TierSpec("ram"), TierSpec("disk", tempfile.gettempdir()), TierSpec("ram", checked=True),
         TierSpec("disk", tempfile.gettempdir(), compress=True))  # fmt: skip
AMPLE = 1 << 26
LARGEST_RETRY = 4.0  # times the peak: pinned and held storages cut up the arena

steps = st.lists(
    st.sampled_from(sorted(GROUPS)).flatmap(lambda g: st.tuples(st.sampled_from(GROUPS[g]), st.integers(0, 999))),
    min_size=20, max_size=60,
)  # fmt: skip
WRITTEN_BASE = [
    ("{new} = packed(torch.nn.LSTM(6, 4), {s:3,2,6})", 0),
    ("{new} = {s:4,6}.to_sparse_csr()", 0),
    ("{new} = {c}.transpose(-1, -2)", 0),
    ("{c}.detach().mul_(0.5)", 0),
]
quiet = pytest.mark.filterwarnings("ignore")
# A crash of the interpreter leaves the program that caused it behind.
CURRENT = Path(tempfile.gettempdir()) / f"memfit-program-{os.getpid()}.py"


def check(program: Program, budget: int | None, tier: TierSpec) -> None:
    """Run the program in a session; its tensors are compared inside it and once more after it.

    Every second one is not recorded: while ops are, calls inside of them are looked at that are passed by otherwise.
    """
    record = len(program.lines) % 2 == 0
    with Session(budget, tier, device="cpu", record=record) as session:
        run = Run().all(program.lines)
        inside = run.final(session.read_bytes)
    assert not program.differences(run.seen, inside)
    assert not program.differences(run.seen, run.final(read_plainly)), "differs after the session"
    if budget is not None:
        assert session.stats.peak_footprint_bytes <= budget


def check_unlimited(program: Program) -> tuple[int, int]:
    """Run it without a limit; returns the largest op's working set and the peak."""
    run = Run()
    with memfit.session(None, "ram") as session:
        trace = session.record_span(lambda: run.all(program.lines))
        inside = run.final(session.read_bytes)
    assert not program.differences(run.seen, inside), "differs without a limit"
    return minimum_budget(trace)[0], peak_live(trace, aligned=True)[0] + trace.pinned_bytes


def check_everywhere(program: Program, share: float, tier: TierSpec) -> None:
    gc.collect()
    gc.freeze()  # what hypothesis remembers of earlier programs is no tensor; a session would look at all of it
    CURRENT.write_text(f"# share {share}, {tier}\n" + "\n".join(program.lines) + "\n")
    least, peak = check_unlimited(program)
    budget = max(int(least + share * (peak - least)) // 64 * 64, 4096)
    retries = 0
    while True:
        try:
            check(program, budget, tier)
            break
        except memfit.BudgetError:
            retries += 1
            assert budget < LARGEST_RETRY * peak, "the budget was ample"
            budget = int(budget * 1.3) // 64 * 64
    event(f"{retries} retries")
    CURRENT.unlink()


def drawn(examples: int):
    def wrap(test):
        limits = settings(max_examples=examples, suppress_health_check=list(HealthCheck))
        draws = given(steps=steps, share=st.floats(0, 0.8), tier=st.sampled_from(TIERS))
        return limits(draws(test))

    return wrap


def check_under_stress(program: Program) -> None:
    gc.collect()
    gc.freeze()
    for stress in RUNS:
        CURRENT.write_text(f"# {stress}\n" + "\n".join(program.lines) + "\n")
        with stressed(stress):
            check(program, AMPLE, TierSpec("ram"))
    CURRENT.unlink()


@pytest.mark.long
@quiet
@pytest.mark.timeout(300)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(steps=steps)
@example(steps=WRITTEN_BASE)
def test_programs_are_bit_identical_under_stress(steps):
    check_under_stress(write(steps))


@quiet
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_programs_are_bit_identical_under_stress(capsys):
    tried = []

    @settings(max_examples=2000, suppress_health_check=list(HealthCheck), database=None)
    @given(steps=steps)
    def draws(steps):
        check_under_stress(write(steps))
        tried.append(len(steps))

    draws()
    with capsys.disabled():
        print(f"\n{len(tried)} programs of {sum(tried)} steps, under {' and '.join(STRESSES)}")
    assert len(tried) >= 2000


@pytest.mark.long
@pytest.mark.copied("what there is room for")
@quiet
@pytest.mark.timeout(300)
@drawn(50)
def test_programs_are_bit_identical_within_any_budget(steps, share, tier):
    check_everywhere(write(steps), share, tier)


@quiet
@pytest.mark.slow
@pytest.mark.timeout(3600)
@drawn(2000)
def test_many_programs_are_bit_identical_within_any_budget(steps, share, tier):
    check_everywhere(write(steps), share, tier)


def test_a_span_without_an_op_is_a_clear_error():
    with memfit.session(None, "ram") as session, pytest.raises(memfit.MemfitError, match="nothing was recorded"):
        session.record_span(lambda: None)
