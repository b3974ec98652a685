"""The hooks of `memfit verify` understand a tensor of every kind, or say that they do not."""

from __future__ import annotations

import io
import json

import pytest
import torch
from torch import Tensor

from memfit.running import engine
from memfit.running.engine.parts import parts_of
from memfit.running.scripts.verify import Run, _counts, _skipped, run_of
from memfit.running.scripts.witness import Request, Witness, read_plainly
from memfit.running.session import Session
from running.kinds_of_tensors import READABLE, UNREADABLE

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]


def noted(tensor: Tensor, read=read_plainly) -> list[dict]:
    log = io.StringIO()
    Witness(log, read, Request("s.py", [], "")).note("state", "it", tensor)
    return [json.loads(line) for line in log.getvalue().splitlines()]


@pytest.mark.parametrize("kind", READABLE)
def test_what_a_tensor_holds_is_hashed_whatever_its_kind(kind):
    first, same, other = (noted(READABLE[kind](seed)) for seed in (0, 0, 1))
    assert first == same and first != other
    assert first and all("hash" in row for row in first)
    assert len({row["name"] for row in first}) == len(first)


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_cannot_be_read_is_skipped_with_its_class_and_the_reason(kind):
    tensor = UNREADABLE[kind]()
    [row] = noted(tensor)
    assert "hash" not in row and row["skipped"].startswith(f"{type(tensor).__name__}: ")


def test_a_part_is_named_by_its_place_in_the_whole():
    names = [part.name for part in parts_of(READABLE["wrapper of wrappers"](0), "m of weight")]
    assert names == ["codes of codes of m of weight", "scale of codes of m of weight", "scale of m of weight"]


def test_a_tensor_in_a_transform_is_what_the_transform_wraps():
    seen = []
    torch.vmap(lambda row: seen.extend(noted(row)) or row)(torch.ones(2, 3))
    assert seen == noted(torch.ones(2, 3))


@pytest.mark.usefixtures("on_its_own")
def test_a_session_reads_the_same_bytes_wherever_they_are():
    engine.load()
    with Session("1MiB", "ram", plan=False) as session:
        tensors = {kind: make(0) for kind, make in READABLE.items()}
        more = [torch.full((1 << 16,), float(at)) for at in range(12)]  # 3 MiB
        assert session.stats.bytes_out > 0
        within = {kind: noted(tensor, session.read_bytes) for kind, tensor in tensors.items()}
        bare = [noted(make(), session.read_bytes) for make in UNREADABLE.values()]
        del more
    assert within == {kind: noted(make(0)) for kind, make in READABLE.items()}
    assert bare == [noted(make()) for make in UNREADABLE.values()]


def test_watching_is_no_op_of_the_programs():
    tensors = [READABLE[kind](0) for kind in ("dense", "view", "wrapper", "parameter")]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for tensor in tensors:
            noted(tensor)
    assert not [event.name for event in profile.events() if event.name.startswith("aten::")]


def test_a_verdict_counts_what_was_skipped_apart(tmp_path):
    rows = noted(READABLE["wrapper"](0)) + noted(UNREADABLE["wrapper that says nothing"]())
    assert _counts(rows) == {"state": 2}
    assert _skipped(rows) == {"state, Bare: it has no bytes, and its class no __tensor_flatten__": 1}
    end = {"kind": "end", "seconds": 1.0, "peak_rss_bytes": 1, "stats": None, "no_limit": ""}
    (tmp_path / "log").write_text("\n".join(map(json.dumps, [*rows, end])))
    assert isinstance(run_of(Request("s.py", [], str(tmp_path / "log"))), Run)
    (tmp_path / "log").write_text("\n".join(map(json.dumps, [rows[-1], end])))
    with pytest.raises(Exception, match="no tensor that was seen has bytes: 1 x state, Bare"):
        run_of(Request("s.py", [], str(tmp_path / "log")))
