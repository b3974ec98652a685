"""What lies beyond the limit for want of a long stretch comes back without more memory than the limit allows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from memfit import session
from running.cutting import MIB, are_full, cut_up, full, sizes
from running.helpers_training import others_hidden
from running.pressure import peak_rss_bytes

SPARE = 6 * MIB
"""What the process may take beside the arena while it runs these few ops."""

pytestmark = [pytest.mark.copied("where storages lie"), pytest.mark.unstressed("where storages lie")]


@pytest.fixture(autouse=True, scope="module")
def on_its_own() -> Iterator[None]:
    with others_hidden():
        yield


@pytest.mark.parametrize(
    ("drawn", "moves"), [([40, 52, 77], 2), ([20, 24, 98], 2), ([16, 2, 3, 2, 2, 3, 40, 4, 100], 3)]
)
def test_what_comes_back_has_its_pages_in_one_place(drawn: list[int], moves: int) -> None:
    sizes[:] = drawn
    budget = 132 * MIB
    x = torch.ones(1)
    cut_up(x)  # whatever torch keeps from a first time on
    peak_rss_bytes()
    before = peak_rss_bytes()
    with session(budget, "ram", device="cpu", plan=False, map="never", split="never", grow=False) as s:
        kept = cut_up(x)
        assert s.stats.punches == 1 and s.stats.relocations == 0
        x + 1
        assert s.stats.relocations == moves and s.stats.evictions == s.stats.growths == 0
        assert s.stats.footprint_bytes < budget
        assert peak_rss_bytes() - before <= budget + SPARE
        assert are_full(kept)


@pytest.mark.long
@given(st.lists(st.integers(1, 40), max_size=12), st.integers(0, 4), st.integers(1, 40))
@example([20, 24], 0, 30)
def test_the_process_stays_within_the_budget_whatever_is_cut_up(parts: list[int], spare: int, more: int) -> None:
    budget, kept_mib = 132 * MIB, sum(parts[1::2])
    if sum(parts) > 130 or kept_mib > 120:
        parts, kept_mib = [20, 24], 24
    sizes[:] = [*parts, 131 - kept_mib - spare]
    x = torch.ones(1)
    peak_rss_bytes()
    before = peak_rss_bytes()
    tier = f"disk:{tempfile.gettempdir()}"  # whose bytes are not the process's
    with session(budget, tier, device="cpu", plan=False, map="never", split="never", grow=False) as s:
        kept = cut_up(x)
        assert are_full(kept)
        kept.append(full(more))
        assert are_full(kept)
        assert peak_rss_bytes() - before <= budget + SPARE and s.stats.growths == 0
