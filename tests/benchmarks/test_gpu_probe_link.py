"""The probe's cells of the link, on a stand-in for a GPU: buffers on the host, copies at once, the clock for events."""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu import probe, probe_link

REQUEST = {"device": "cpu", "quick": True}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    made = torch.empty
    runtime = SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0)
    monkeypatch.setattr(torch, "empty", lambda *args, pin_memory=False, **options: made(*args, **options))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(probe_link, "prepare", lambda request: torch.device("cpu"))  # the true one is for good
    monkeypatch.setattr(probe_link, "now", lambda device: time.perf_counter())
    monkeypatch.setattr(probe_link, "sizes", lambda quick, smallest=4096: [1 << 20, 4 << 20])
    monkeypatch.setattr(probe_link, "_QUICK_PRODUCT", 64)  # processors without bfloat16 take minutes for larger ones
    monkeypatch.setattr(probe_link, "_us", short(probe_link._us))


def short(us):
    return lambda once, count, **beside: us(once, min(count, 10), **beside) / min(count, 10) * count


@pytest.mark.long
@pytest.mark.parametrize(("key", "call"), [(key, call) for key, call, memfit in probe.CELLS if not memfit])
def test_a_cell_of_the_link_measures_and_has_its_table(key, call):
    noted = {}
    found = getattr(probe_link, call.partition(":")[2])(REQUEST, noted.update)
    (table,) = probe.tables({key: {"status": "ok", "result": found}})
    assert table.rows and all(len(row) == len(table.columns) for row in table.rows)
    assert all(found.items() >= {name: value}.items() for name, value in noted.items())


def test_copies_have_the_bytes_of_the_other_side():
    link = probe_link.Link(torch.device("cpu"), 64)
    for way, to, source in (("out", link.host, link.device), ("in", link.device, link.host)):
        source[way].fill_(7)
        to[way].fill_(0)
        link.copy(way, 32)
        assert to[way].tolist() == [7] * 32 + [0] * 32
    assert probe_link.rates(REQUEST, None) == {"out_gb_per_s": None, "in_gb_per_s": None}
