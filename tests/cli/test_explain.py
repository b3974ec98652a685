"""`memfit explain` on a small trace of a chain of layers."""

import json

import pytest

from cli.small_trace import SIZE, chain_in, run


@pytest.fixture
def trace(tmp_path):
    return chain_in(tmp_path)


def test_a_plan_is_made_and_explained(capsys, trace):
    out, err = run(capsys, "explain", trace, "--budget", "70%", "--machine", "pcie5", "--effort", "0.02")
    assert "Smallest feasible budget" in out and "What memory buys" in out
    assert err.startswith(f"next: memfit explain {trace} --budget 70% --machine pcie5 '#")


def test_json_is_all_that_is_printed(capsys, trace):
    out, err = run(capsys, "explain", trace, "--budget", "70%", "--effort", "0.02", "--json")
    assert json.loads(out)["plan"]["at_budget"]["budget_bytes"] == SIZE * 6 * 70 // 100 and err == ""
    out, err = run(capsys, "explain", trace, "--budget", "70%", "mm", "--effort", "0.02", "--json")
    assert json.loads(out)["matched"] == 6 and err == ""


@pytest.mark.parametrize("at", [2, 4, 6])
def test_a_pattern_may_stand_before_between_and_behind_the_options(capsys, trace, at):
    words = ["explain", trace, "--budget", "70%", "--effort", "0.02"]
    out = run(capsys, *words[:at], "m.py:3", *words[at:], "--json").out
    assert [one["tensor"]["storage"] for one in json.loads(out)["storages"]] == [3]


def test_a_plans_file_is_explained_with_its_own_budget_and_machine(capsys, tmp_path, trace):
    path = str(tmp_path / "p.json")
    run(capsys, "plan", trace, "--budget", "70%", "--machine", "pcie3", "-o", path)
    figures = json.loads(run(capsys, "explain", trace, path, "--effort", "0.02", "--json").out)
    assert (figures["machine"], figures["budget_bytes"]) == ("pcie3", SIZE * 6 * 70 // 100)
    assert figures["plan"]["policy"] == "memfit" and figures["plan"]["remakings"] == 0
    other = json.loads(run(capsys, "explain", trace, path, "#0", "--machine", "pcie5", "--json").out)
    assert other["machine"] == "pcie5" and other["matched"] == 1


def test_a_budget_below_the_floor_is_explained_and_refused(capsys, trace):
    out, err = run(capsys, "explain", trace, "--budget", "1", code=3)
    assert "Smallest feasible budget" in out and "allocated by the op" in out and "cannot be met" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["TRACE"], 2, "there is no budget to explain"),
        (["TRACE", "PLAN", "--budget", "60%"], 2, "exclude each other"),
        (["TRACE", "x", "y", "--budget", "60%"], 2, "takes one plan and one pattern"),
        (["TRACE", "TRACE"], 1, "is not a memfit plan"),
        (["TRACE", "nothing*", "--budget", "60%"], 2, "no storage matches 'nothing*'"),
        (["TRACE", "--budget", "60%", "--nothing"], 2, "unrecognized arguments: --nothing"),
    ],
)
def test_what_cannot_be_explained_is_an_error_with_a_remedy(capsys, tmp_path, trace, words, code, says):
    plan = str(tmp_path / "p.json")
    run(capsys, "plan", trace, "--budget", "70%", "-o", plan)
    named = {"TRACE": trace, "PLAN": plan}
    err = run(capsys, "explain", *(named.get(word, word) for word in words), code=code).err
    assert says in err and "try: " in err
