"""The sentence at a run's end: what happened, what it cost, and advice by the cause."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from memfit.running.engine.tiers import TierSpec
from memfit.running.scripts.advice import sentence
from memfit.running.scripts.launch import Outcome, _host_bytes
from memfit.running.session.stats import Stats

GIB = 1 << 30
FIGURES: dict[str, int] = dict.fromkeys((field.name for field in fields(Stats)), 0) | {
    "ops": 9000, "iterations": 300, "budget_bytes": 2 * GIB, "peak_live_bytes": 10 * GIB // 3, "bytes_out": 5 * GIB,
}  # fmt: skip


def outcome(*, about: dict[str, Any] | None = None, **figures: int) -> Outcome:
    usual = {
        "exit_code": 0, "budget": "60%", "peak_bytes": 10 * GIB // 3, "planned_iterations": 297, "tier": "ram",
        "seconds": 100.0, "peak_rss_bytes": 3 * GIB, "signatures": {},
    }  # fmt: skip
    return Outcome(stats=Stats(**FIGURES | figures), **usual | (about or {}))


def test_it_says_what_happened_what_it_cost_and_what_to_try():
    found = sentence(outcome(about={"tier_host_bytes": GIB}, stall_ns=3 * 10**9, copy_ns=10**9))
    assert found == (
        "trained 300 iterations within 2.00 GiB (60 % of the peak), 297 by a plan, 4 % of the time waiting for copies; "
        "the process took 3.00 GiB of host memory, 1.00 GiB of it the tier; "
        "next: memfit trace and memfit curve foresee what more memory would save, and less would cost"
    )


def test_within_is_said_of_a_limit_that_was_kept_alone():
    found = sentence(outcome(peak_footprint_bytes=3 * GIB, growths=1, peak_growth_bytes=GIB))
    assert found.startswith("trained 300 iterations in 3.00 GiB of 2.00 GiB (60 % of the peak), ")


def test_a_loop_that_does_not_train_made_forward_passes():
    found = sentence(outcome(about={"forward_only": True}))
    assert found.startswith("made 300 forward passes within 2.00 GiB")
    assert sentence(outcome(about={"forward_only": True}, iterations=1)).startswith("made 1 forward pass within")


SECOND = 10**9
CASES = [
    ({}, {}, "a lower budget, as --budget 45%; "),
    ({"bytes_out": 0}, {}, "everything fitted; a lower budget, as --budget 45%"),
    ({"stall_ns": 20 * SECOND}, {}, "a larger budget; memfit trace and memfit curve foresee"),
    ({"copy_ns": 20 * SECOND}, {"tier": "disk:/tmp"}, "a larger budget, a faster disk (--tier disk:PATH); memfit"),
    ({"copy_ns": 20 * SECOND}, {"planned_iterations": 0, "unplanned": ("no room", "no room")},
     "most iterations had no plan (no room): a larger budget, or batches of fewer sizes"),
    ({"copy_ns": 20 * SECOND, "iterations": 8}, {"planned_iterations": 0}, "more steps: a plan needs about 6"),
    ({"copy_ns": 20 * SECOND}, {"planned_iterations": 9}, "most iterations had no plan: batches of fewer sizes"),
    ({"growths": 2, "peak_growth_bytes": 5 << 20}, {}, "the limit gave way 2 times, by 5.00 MiB at most"),
    ({"record_bytes": GIB}, {}, "memfit's own records took 1.00 GiB: leave that much beside the budget"),
    ({"budget_bytes": 0, "bytes_out": 0}, {"budget": "", "peak_bytes": None}, "--budget 60%, which is about 2.00 GiB"),
    ({"budget_bytes": 0, "bytes_out": 0}, {"no_limit": "why"}, "more steps, or a budget in bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("figures", "about", "advice"), CASES)
def test_the_advice_is_by_the_cause(figures, about, advice):
    assert f"; next: {advice}" in sentence(outcome(about=about, **figures))


def test_a_script_that_failed_or_ran_no_op_is_given_no_advice():
    failed = sentence(outcome(about={"exit_code": 5}, iterations=1))
    assert failed.startswith("the script failed (5); it had trained 1 iteration within 2.00 GiB (60 % of the peak), ")
    idle = sentence(outcome(about={"budget": "", "peak_bytes": None}, ops=0, iterations=0, budget_bytes=0))
    assert idle == "trained 0 iterations without a limit; the process took 3.00 GiB of host memory"
    assert "next" not in failed


def test_a_budget_beyond_the_peak_is_no_share_of_it():
    roomy = outcome(about={"budget": "auto"}, budget_bytes=20 * GIB, bytes_out=0)
    assert sentence(roomy).startswith("trained 300 iterations within 20.0 GiB, 297 by a plan, ")
    assert "budget 20.0 GiB, arena peak" in roomy.summary()
    assert "budget 2.00 GiB, 60 %, arena peak" in outcome().summary()


def test_the_tiers_part_of_the_hosts_memory_is_that_of_its_ram():
    assert _host_bytes(TierSpec("disk", "/tmp"), 9) == 0
    assert _host_bytes(TierSpec("ram"), 9) == 9
    assert _host_bytes(TierSpec("ram", "/tmp", 4), 9) == 4 and _host_bytes(TierSpec("ram", "/tmp", 40), 9) == 9
