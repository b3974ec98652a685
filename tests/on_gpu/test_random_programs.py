"""Programs drawn at random, on a GPU: the same bits plainly, in an unlimited session and within a budget."""

from __future__ import annotations

import gc
import tempfile
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memfit
from memfit.errors import BudgetError
from memfit.planning.lifetimes import minimum_budget, peak_live
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.engine.tiers import TierSpec
from running.programs.contents import read_plainly
from running.programs.run import Run
from running.programs.templates import GROUPS
from running.programs.write import write

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

TIERS = (TierSpec("ram"), TierSpec("disk", tempfile.gettempdir()), DisturbedTier("ram", longest_delay_us=200))
PAGE = 2 << 20  # bytes: a budget on a GPU is one of these or more

# No programs for a GPU: children of a process that has used it, tensors of its that another thread makes, and what
# may refuse its operands by an assertion there, after which the process cannot use the GPU any more.
LEFT_OUT = ("forked", "orker", "scatter_add_", "index_put_", "index_add_", "to_sparse_")
LINES = {name: [line for line in lines if not any(word in line for word in LEFT_OUT)] for name, lines in GROUPS.items()}

steps = st.lists(
    st.sampled_from(sorted(LINES)).flatmap(lambda g: st.tuples(st.sampled_from(LINES[g]), st.integers(0, 999))),
    min_size=20, max_size=60,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_random_programs():
    fitted: Counter[bool] = Counter()

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=steps, share=st.floats(0.1, 1.0), tier=st.sampled_from(TIERS))
    def one(steps, share, tier):
        fitted[same_bits_if_it_fits(steps, share, tier)] += 1

    one()
    assert fitted[True] > fitted[False], "most budgets have to do"


def same_bits_if_it_fits(steps, share, tier) -> bool:
    """Compare a program's bits plainly, in an unlimited session and within a budget; return whether that had room."""
    gc.collect()
    gc.freeze()
    with torch.device("cuda"):
        program = write(steps)
        run = Run()
        with memfit.session(None, "ram", device="cuda") as session:
            trace = session.record_span(lambda: run.all(program.lines))
            inside = run.final(session.read_bytes)
        assert not program.differences(run.seen, inside), "differs without a limit"
        least, peak = minimum_budget(trace)[0], peak_live(trace, aligned=True)[0]
        budget = max(int(least + share * (peak - least)), PAGE)
        run = Run()
        try:
            with memfit.session(budget, tier, device="cuda") as session:
                run.all(program.lines)
                inside = run.final(session.read_bytes)
        except BudgetError:
            return False  # pinned and held storages may leave no room
        assert not program.differences(run.seen, inside)
        assert not program.differences(run.seen, run.final(read_plainly)), "differs after the session"
        assert session.stats.peak_footprint_bytes <= budget
    return True
