"""Training on a GPU inside a budget gives the bits of training without one."""

from __future__ import annotations

import tempfile

import pytest

from memfit.errors import BudgetError
from memfit.running.engine.tiers import TierSpec
from memfit.running.scripts.verify import verify
from on_gpu.helpers_gpu import MIB, train, watched, workspace_bytes
from running.helpers_training import PROGRAMS, known, run_in_session, run_plainly
from running.plainly import same_bits
from running.test_examples import FOLDER, NEEDS, SMALL

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

TIERS = {
    "ram": TierSpec("ram"),
    "disk": TierSpec("disk", tempfile.gettempdir()),
    "ram and disk": TierSpec("ram", tempfile.gettempdir(), 1 << 20),
    "checked": TierSpec("ram", checked=True),
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_at_a_tight_budget(name, tier):
    program = PROGRAMS[name]
    expected = known(program)
    log, session = run_in_session(program, expected.tight_bytes + workspace_bytes() + 2 * MIB, TIERS[tier])
    assert log.rows == expected.rows
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_torchs_default_algorithms_where_plain_runs_repeat_themselves(name):
    import torch

    torch.use_deterministic_algorithms(False)
    program = PROGRAMS[name]
    rows = run_plainly(program).rows
    if run_plainly(program).rows != rows:
        pytest.skip("two plain runs differ")
    budget = known(program).tight_bytes + workspace_bytes() + 2 * MIB
    assert run_in_session(program, budget, "ram")[0].rows == rows


@pytest.mark.parametrize("tier", ["ram", "disk"])
@pytest.mark.parametrize("percent", [80, 50, 30])
@pytest.mark.parametrize("name", SMALL)
def test_an_example(name, percent, tier, tmp_path):
    pytest.importorskip(NEEDS.get(name, "sklearn"))
    script, arguments = str(FOLDER / f"{name}.py"), [*SMALL[name].split(), "--steps", "10", "--device", "cuda"]
    spec = TierSpec(tier, str(tmp_path) if tier == "disk" else "")
    try:
        verdict = verify(script, arguments, f"{percent}%", spec, device="cuda", deterministic=True)
    except BudgetError as error:
        assert "smallest feasible budget" in str(error) or "cannot be met" in str(error)
        assert percent < 80, "most of the peak has to do"
        pytest.skip(f"{percent} % of the peak is below what one op needs")
    assert verdict.difference is None, str(verdict.difference)
    stats = verdict.limited.stats
    assert stats is not None and 0 < stats["peak_footprint_bytes"] <= stats["budget_bytes"]


@pytest.mark.parametrize("percent", [80, 60, 40])
def test_planned_swaps_stay_within_the_budget_as_the_driver_sees_it(percent):
    import memfit

    expected = train()  # which also loads every kernel
    with memfit.session(None, device="cuda") as session:
        train(steps=3)
    peak = session.stats.peak_live_bytes
    budget = peak * percent // 100
    with memfit.session(budget, device="cuda"):  # the driver has memory of its own for the first planned copies
        train()
    with watched() as watch, memfit.session(budget, device="cuda") as session:
        found = train()
    assert same_bits(found, expected)
    assert session.stats.swaps > 0 and session.stats.prefetches > 0
    assert 0 < watch.peak_bytes <= budget
