"""`memfit simulate --ranks`: what many ranks of one plan wait for."""

from __future__ import annotations

import json

import pytest

from cli.small_trace import chain_in, run


@pytest.fixture
def planned(tmp_path, capsys):
    """A trace and a plan that swaps, as words of a command line."""
    trace, plan = chain_in(tmp_path), str(tmp_path / "p.json")
    run(capsys, "plan", trace, "--budget", "50%", "--effort", "0.1", "-o", plan)
    return trace, plan


def figures(capsys, planned, *words):
    return json.loads(run(capsys, "simulate", *planned, "--json", *words).out)


def test_one_rank_is_the_plan_alone_and_several_share_the_tier(planned, capsys):
    one = figures(capsys, planned, "--ranks", "1")
    assert one["iteration_us"] == pytest.approx(one["alone_us"]) and one["compute_us"] == 1200
    many = figures(capsys, planned, "--ranks", "64", "--per-node", "8")
    apart = figures(capsys, planned, "--ranks", "64", "--per-node", "1")
    assert apart["iteration_us"] == pytest.approx(one["iteration_us"])
    assert many["iteration_us"] > apart["iteration_us"] and many["stall_us"] > apart["stall_us"]
    assert (many["ranks"], many["per_node"], many["collectives"], many["skew_us"]) == (
        64,
        8,
        0,
        pytest.approx(0, abs=1),
    )


def test_spread_times_are_waited_for_alike_in_each_run(planned, capsys):
    words = ("--ranks", "32", "--per-node", "1", "--spread", "10")
    spread = figures(capsys, planned, *words)
    assert spread["skew_us"] > 0 and spread == figures(capsys, planned, *words)


def test_the_report_for_a_person(planned, capsys):
    out = run(capsys, "simulate", *planned, "--ranks", "256", "--spread", "3").out
    assert out.startswith("256 ranks, 8 to a tier, which meet at the iteration's end; times spread by 3.0 %\n")
    assert "for one rank alone" in out and "for other ranks" in out


@pytest.mark.parametrize(
    "words", [("0",), ("1025",), ("2", "--per-node", "0"), ("2", "--spread", "100"), ("2", "--network", "-1")]
)
def test_what_cannot_be_simulated_is_refused(planned, capsys, words):
    assert "cannot be simulated" in run(capsys, "simulate", *planned, "--ranks", *words, code=2).err
