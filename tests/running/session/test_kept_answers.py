"""What was tried of calls is known to later sessions on the same machine, by a file beside the plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import memfit
from memfit.running import engine
from memfit.running.session.tried_calls import KeptTriedCalls

pytestmark = pytest.mark.usefixtures("on_its_own")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", str(tmp_path))
    return tmp_path


def known_at_the_beginning_and_the_end() -> tuple[set, set]:
    """Train a few steps of a network some of whose outputs may lie where an input did."""
    torch.manual_seed(0)
    weight = torch.randn(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with memfit.session("80%", "ram", device="cpu") as session:
        before = {*engine.load().tried_calls()}
        for _ in range(3):
            optimizer.zero_grad()
            F.gelu(torch.ones(512, 64) @ weight).square().mean().backward()
            optimizer.step()
        after = {*engine.load().tried_calls()}
    assert session.stats.budget_bytes > 0
    return before, after


def test_the_next_session_knows_what_this_one_has_tried(folder):
    before, after = known_at_the_beginning_and_the_end()
    assert not before and after
    (path,) = folder.glob("*.calls.tried.json")
    assert {tuple(row) for row in json.loads(path.read_text())} == after
    written = path.stat().st_mtime_ns
    assert known_at_the_beginning_and_the_end() == (after, after)
    assert path.stat().st_mtime_ns == written, "nothing new, nothing written"


def test_it_knows_nothing_of_another_torch_or_where_nothing_is_kept(folder, monkeypatch):
    known_at_the_beginning_and_the_end()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.99.0")
        assert not known_at_the_beginning_and_the_end()[0]
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", "off")
    assert not known_at_the_beginning_and_the_end()[0]


def test_an_odd_file_is_as_good_as_none():
    kept = KeptTriedCalls.of_this_machine(CPU)
    assert kept is not None
    for text in (
        "",
        "[",
        "[[1]]",
        '{"a": 1}',
        "[[true, 1, 2]]",
        "[[true, 1, true]]",
        "[[true, null, false, 0]]",
        "[[true, -1, true, 0]]",
        f"[[true, {2**64}, true, 0]]",
        "[[true, 1, true, -1]]",
    ):
        kept.path.write_text(text)
        assert not known_at_the_beginning_and_the_end()[0]


def test_what_another_process_has_tried_meanwhile_is_kept_too(folder):
    kept = KeptTriedCalls.of_this_machine(CPU)
    assert kept is not None
    with memfit.session("80%", "ram", device="cpu"):
        kept.path.write_text(json.dumps([[True, 1, True, 7]]))
        engine.load().know_tried_calls([(False, 2**64 - 1, False, 5)])
    assert json.loads(kept.path.read_text()) == [[False, 2**64 - 1, False, 5], [True, 1, True, 7]]
