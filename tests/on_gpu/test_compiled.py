"""Compiled code on a GPU: launches of Triton's kernels are ops, in plans too, and change no bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import memfit
from benchmarks.common.compiled_programs import PROGRAMS, train
from memfit.errors import BudgetError
from memfit.running import engine
from memfit.running.session import Session
from on_gpu.helpers_gpu import MIB, workspace_bytes
from running.doors.scaled import trained
from running.plainly import as_plainly, descend, same_bits
from running.planned.training import wait_for_plans

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]
TIMES = 16  # the batch of a CPU's tests


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_program_at_shares_of_its_peak(name, monkeypatch):
    wait_for_plans(monkeypatch)
    plain = [tensor.clone() for tensor in train(name, times=TIMES)]
    for share in ("60%", "40%", "25%"):
        with memfit.session(share, device="cuda") as session:
            try:
                found = train(name, times=TIMES)
            except BudgetError as error:
                assert "triton::" in str(error) or "needs at least" in str(error)
                assert share != "60%", str(error)
                continue
        unequal = [i for i, (one, other) in enumerate(zip(found, plain, strict=True)) if not same_bits(one, other)]
        assert not unequal, (share, unequal)
        stats = session.stats
        assert stats.bytes_out > 0 and (session.planned_iterations > 0 or share != "60%"), (share, session.unplanned)
        assert stats.unseen_writes == 0 and stats.peak_footprint_bytes <= stats.budget_bytes, share
        assert any(op.name.startswith("triton::") for op in session.trace.ops), share


def stepped() -> list[Tensor]:
    """Return parameters of 4 MiB each after steps of a compiled optimizer, whose loops are joined in one kernel."""
    torch.compiler.reset()
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(MIB)) for _ in range(12)]
    optimizer = torch.optim.AdamW(weights, lr=torch.tensor(1e-3), capturable=True)
    compiled = torch.compile(optimizer.step)
    for _ in range(6):
        for weight in weights:
            weight.grad = weight.detach() * 0.5
        compiled()
    return [weight.detach().cpu() for weight in weights]


def test_a_compiled_optimizer_has_the_same_bits_and_is_refused_by_its_kernel_s_name_where_it_does_not_fit():
    plain = stepped()
    with Session(workspace_bytes() + 256 * MIB, "ram", device="cuda") as session:
        assert same_bits(stepped(), plain)
    assert any(op.name.startswith("triton::") for op in session.trace.ops)
    with Session(workspace_bytes() + 64 * MIB, "ram", device="cuda"), pytest.raises(BudgetError, match="triton::"):
        stepped()


def test_a_compiled_optimizer_fits_where_the_program_has_its_kernels_cut():
    from torch._inductor import config

    with config.patch(combo_kernel_max_num_args=7):
        plain = stepped()
        with Session(workspace_bytes() + 64 * MIB, "ram", device="cuda") as session:
            assert same_bits(stepped(), plain)
    triton = [op for op in session.trace.ops if op.name.startswith("triton::")]
    assert triton and max(len({*op.reads, *op.writes}) for op in triton) < 12


def scale_kernel() -> Any:
    """Return a kernel as its author launches it."""
    triton = pytest.importorskip("triton")
    import triton.language as tl

    globals()["tl"] = tl

    @triton.jit
    def scale(x, out, count, by, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        tl.store(out + at, tl.load(x + at, mask=inside) * by, mask=inside)

    def launch(x: Tensor, by: float) -> Tensor:
        out = torch.empty_like(x)
        scale[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), by, BLOCK=1024)
        return out

    return launch


def test_a_kernel_of_the_user_s_pins_nothing_and_is_in_the_plan(monkeypatch):
    wait_for_plans(monkeypatch)
    launch = scale_kernel()
    session = as_plainly(lambda: trained(lambda x: launch(x, 0.5), 512, 4096, 20), "60%", device="cuda")
    assert session.planned_iterations > 0 and session.stats.swaps > 0
    assert "triton::scale" in {op.name for op in session.trace.ops}
    with memfit.session(64 * MIB, device="cuda"):
        x = torch.ones(MIB)
        assert torch.equal(launch(x, 2.0), x * 2)
        assert engine.load().may_leave(x)


def test_a_kernel_of_the_user_s_in_compiled_code():
    launch = scale_kernel()

    def steps() -> list[Tensor]:
        torch.compiler.reset()
        compiled = torch.compile(lambda x: (launch(x.sin(), 3.0) + 1).cos())
        kept = [torch.arange(MIB, dtype=torch.float32) + n for n in range(8)]
        for _ in range(4):
            kept = [compiled(each) for each in kept]
        return kept

    session = as_plainly(steps, workspace_bytes() + 32 * MIB, device="cuda", map="never")
    assert session.stats.bytes_out > 0


def test_no_graph_is_made_of_a_mode_that_would_make_one():
    def steps() -> list[Tensor]:
        torch.compiler.reset()
        torch.manual_seed(0)
        net = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.GELU())))
        run = torch.compile(net, mode="reduce-overhead")
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        seen = [
            loss.detach().clone() for loss in descend(optimizer, lambda: run(torch.randn(4096, 512)).square().mean(), 8)
        ]
        return [*seen, *(p.detach().clone() for p in net.parameters())]

    torch.compiler.reset()
    with memfit.session(None, device="cuda") as unlimited:
        plain = steps()
    with memfit.session(unlimited.stats.peak_live_bytes * 6 // 10, device="cuda") as session:
        assert same_bits(steps(), plain)
    assert session.stats.bytes_out > 0


def test_attention_that_is_compiled_from_a_function():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def steps() -> list[Tensor]:
        torch.compiler.reset()
        torch.manual_seed(0)
        attend = torch.compile(flex_attention)
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 512, 512, device="cuda")
        parts = [torch.randn(8, 8, 512, 64, requires_grad=True) for _ in range(3)]
        seen = []
        for _ in range(5):
            out = parts[0]
            for _ in range(4):
                out = attend(out, parts[1], parts[2], block_mask=mask)
            out.square().mean().backward()
            with torch.no_grad():
                for part in parts:
                    part -= 0.1 * part.grad
                    part.grad = None
            seen.append(out.detach().sum())
        return [*seen, *(part.detach().clone() for part in parts)]

    with memfit.session(None, device="cuda") as unlimited:
        plain = steps()
    with memfit.session(unlimited.stats.peak_live_bytes * 6 // 10, device="cuda") as session:
        assert same_bits(steps(), plain)
    assert session.stats.bytes_out > 0
