"""What must hold of storages made again on a GPU. Each runs in a process of its own, on a simulated one."""

from __future__ import annotations

import ctypes
import gc
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import memfit
from cuda_sim.simulator import MIB, Gpu
from cuda_sim.training import assert_equal, on_host
from memfit import Stats
from memfit.running import engine
from memfit.running.engine.tiers import TierSpec
from memfit.running.session import Session
from running.planned.kernels import Forgetful, done_by
from running.planned.networks import CLASSES, WORKS, Work, activated
from running.planned.training import LEARNT, plan_at_fixed_steps
from running.stress.compare import stressed

STEPS = 14
TIER = TierSpec("ram")


class Gated(nn.Module):
    """A block of ops that a GPU does in its own way: random numbers of both kinds, numbers on the device."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)
        self.generator = torch.Generator("cuda").manual_seed(7)
        self.steps = torch.zeros((), device="cuda")

    def forward(self, x: Tensor) -> Tensor:
        scale = 1 + 1 / (1 + self.steps)
        self.steps += 1
        y = self.dropout(F.gelu(self.wide(x)) * scale)
        noise = torch.rand(x.shape, device=x.device, generator=self.generator)
        return x + torch.relu_(self.narrow(y)) * noise


def _gated() -> nn.Module:
    return nn.Sequential(*(Gated(64) for _ in range(6)), nn.Linear(64, CLASSES))


GATED = Work(_gated, lambda size: torch.randn(size, 64), 512)
# A GPU's memory comes in pages of 2 MiB: larger batches than on the CPU.
BATCH = 2048
# (The simulated GPU has no attention of its own.)
ALL = {"gated": GATED} | {name: replace(work, batch=8 * work.batch) for name, work in WORKS.items() if name != "masked"}


def train(work: Work, after: Callable[[int], object] = lambda step: None, steps: int = STEPS) -> list[Tensor]:
    """Train on the GPU; return all that is left, the generators' states too. `after` is told of each step."""
    torch.manual_seed(0)
    net = work.network().cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        targets = torch.randint(CLASSES, (work.batch,)).cuda()
        loss = F.cross_entropy(net(work.inputs(work.batch).cuda()), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        after(step)
    moments = [value for state in optimizer.state.values() for value in state.values()]
    own = [module.generator.get_state() for module in net.modules() if hasattr(module, "generator")]
    return on_host([*losses, *net.parameters(), *net.buffers(), *moments, torch.cuda.get_rng_state(), *own])


@dataclass
class Trained:
    """Training by a plan, which has given the bits of plain training."""

    session: Session
    stats: list[Stats] = field(default_factory=list)  # after each step

    def a_step(self, name: str) -> list[int]:
        """Return by how much a figure grew in each step under the plan."""
        steady = [getattr(each, name) for each in self.stats[LEARNT:]]
        return [after - before for before, after in pairwise(steady)]

    def assert_clean(self) -> None:
        """Every step drops what the plan says, makes again what is to return, and nothing has gone wrong."""
        drops = self.session.planned.plan.recomputes
        assert len(drops) == len(self.session.planned.dropped) > 0
        assert set(self.a_step("discards")) == {len(drops)}
        assert set(self.a_step("recomputations")) == {sum(drop.returns for drop in drops)}
        last = self.stats[-1]
        assert last.failed_recomputations == last.plan_mismatches == last.failed_copies == 0

    def names_of_repeated(self) -> set[str]:
        """Return the names of the ops that the plan has run again."""
        plan = self.session.planned.plan
        ops = self.session.compressed_plan.trace().ops
        return {ops[op].name for recompute in plan.recomputes for op in recompute.ops}


@contextmanager
def at_fixed_steps() -> Iterator[None]:
    """Plans are there at fixed steps, and are the same ones each time."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.backends.cudnn.enabled = False
    with pytest.MonkeyPatch.context() as patch:
        plan_at_fixed_steps(patch)
        yield


def trained(work: Work, moves: str, budget: str | int, plain: list[Tensor], tier: TierSpec = TIER,
            after: Callable[[int], object] = lambda step: None) -> Trained:  # fmt: skip
    """Train in a session and compare with what plain training gave."""
    with at_fixed_steps(), Session(budget, tier, device="cuda", moves=moves, plan_cache=False) as session:
        result = Trained(session)

        def note(step: int) -> None:
            result.stats.append(session.stats)
            after(step)

        limited = train(work, note)
    assert_equal(plain, limited)
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes
    return result


def plainly(work: Work) -> list[Tensor]:
    torch.backends.cudnn.enabled = False
    return train(work)


def what_is_dropped_comes_back_to_the_same_bits(gpu: Gpu) -> None:
    for name, work in ALL.items():
        plain = plainly(work)
        for moves in ("recompute", "joint"):
            print(name, moves)
            trained(work, moves, "60%", plain).assert_clean()


def no_byte_goes_to_the_host_for_a_trial(gpu: Gpu) -> None:
    """A call is tried while the first iteration is recorded. Its bytes are compared where they lie: 8 are read then."""
    copied = [0]

    def note(step: int) -> None:
        copied.append(gpu.count("to_host"))

    plain = train(GATED, note)
    of_the_program = [b - a for a, b in pairwise(copied)]
    copied[:] = [gpu.count("to_host")]
    result = trained(GATED, "recompute", "60%", plain, after=note)
    result.assert_clean()
    to_host = [b - a - plainly for (a, b), plainly in zip(pairwise(copied), of_the_program, strict=True)]
    first = next(i for i, stats in enumerate(result.stats) if stats.discards)
    assert 0 < to_host[0] < 8 * 1024 and to_host[0] % 8 == 0
    assert to_host[first:] == [0] * (STEPS - first) and result.stats[-1].check_ns == 0


def what_was_tried_is_known_to_the_next_session(gpu: Gpu) -> None:
    """By call and shapes, in a file: neither the calls nor what a plan drops is tried again."""
    plain = plainly(GATED)
    to_host: list[int] = []

    def begun() -> int:
        """Return what goes to the host until the first step has ended."""
        to_host[:] = [gpu.count("to_host")]
        trained_there = train(GATED, lambda step: to_host.append(gpu.count("to_host")))
        assert_equal(plain, trained_there)
        return to_host[1] - to_host[0]

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMFIT_PLAN_CACHE", folder)
        for is_first in (True, False):
            with at_fixed_steps(), Session("60%", TIER, device="cuda", moves="recompute") as session:
                assert (engine.load().tried_calls() == []) == is_first
                assert (begun() == 0) != is_first
            assert session.stats.discards > 0 and session.stats.failed_recomputations == 0


def what_came_back_the_same_is_not_looked_at_again_when_its_plan_is_back(gpu: Gpu) -> None:
    """Of two batch sizes in turn: to look at bytes is to wait for the GPU."""
    works = [replace(WORKS["embedding"], batch=batch) for batch in (192, 256)]
    torch.manual_seed(0)
    net = works[0].network().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    stats: list[Stats] = []
    with at_fixed_steps(), Session("60%", TIER, device="cuda", moves="recompute", plan_cache=False) as session:
        for step in range(24):
            work = works[step % 2]
            optimizer.zero_grad()
            targets = torch.randint(CLASSES, (work.batch,)).cuda()
            F.cross_entropy(net(work.inputs(work.batch).cuda()), targets).backward()
            optimizer.step()
            stats.append(session.stats)
    before, last = stats[-7], stats[-1]
    assert last.plans - before.plans == 6 and last.discards - before.discards > 0
    assert last.check_ns == before.check_ns == 0, "all was tried when it was recorded"


def an_evaluation_between_steps_leaves_a_plan_its_drops(gpu: Gpu) -> None:
    """That a call comes out the same is known of that call, whatever else the program runs before it."""
    steps = LEARNT + 12

    def program(session: Session | None = None) -> tuple[list[Tensor], list[Stats]]:
        torch.manual_seed(0)
        net, seen, stats = _gated().cuda(), list[Tensor](), list[Stats]()
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        for step in range(steps):
            if step > LEARNT and step % 3 == 0:
                with torch.no_grad():
                    seen.append(net(torch.randn(512, 64).cuda()).sum())
            optimizer.zero_grad()
            targets = torch.randint(CLASSES, (512,)).cuda()
            loss = F.cross_entropy(net(torch.randn(512, 64).cuda()), targets)
            loss.backward()
            optimizer.step()
            seen.append(loss.detach())
            if session is not None:
                stats.append(session.stats)
        return on_host([*seen, *net.parameters(), torch.cuda.get_rng_state()]), stats

    plain, _ = program()
    with at_fixed_steps(), Session("60%", TIER, device="cuda", moves="recompute", plan_cache=False) as session:
        limited, stats = program(session)
    assert_equal(plain, limited)
    steady = stats[-8:]  # all but the first evaluation, whose ops nobody knows
    discards = {after.discards - before.discards for before, after in pairwise(steady)}
    assert discards == {len(session.planned.plan.recomputes)} and steady[-1].derailments > steady[0].derailments
    assert steady[-1].plans == steady[0].plans
    assert steady[-1].check_ns == steady[-1].failed_recomputations == steady[-1].plan_mismatches == 0


def what_was_looked_at_between_and_has_left_again_comes_back_from_where_it_is(gpu: Gpu) -> None:
    """It has left otherwise than by the plan, and its bytes are not those that the plan's re-run is compared with."""
    steps = LEARNT + 15

    def program(session: Session | None = None) -> list[Tensor]:
        torch.manual_seed(0)
        net, seen, wide = _gated().cuda(), list[Tensor](), list[Tensor]()
        for module in net[:-1]:
            module.wide.register_forward_hook(lambda module, inputs, output: wide.append(output.detach()))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        for step in range(steps):
            optimizer.zero_grad()
            targets = torch.randint(CLASSES, (512,)).cuda()
            loss = F.cross_entropy(net(torch.randn(512, 64).cuda()), targets)
            if step > LEARNT and step % 3 == 0:
                for each in wide[: step // 3 % 5 + 1]:
                    seen.append(each.sum())
                    torch.ones(session.stats.budget_bytes // 40 if session else 1, device="cuda")  # of 4 bytes each
            wide.clear()
            loss.backward()
            optimizer.step()
            seen.append(loss.detach())
        return on_host([*seen, *net.parameters(), torch.cuda.get_rng_state()])

    plain = program()
    for moves in ("recompute", "joint"):
        with at_fixed_steps(), Session("60%", TIER, device="cuda", moves=moves, plan_cache=False) as session:
            assert_equal(plain, program(session))
        stats = session.stats
        assert stats.discards > 0 and stats.evictions > 0 and stats.derailments > 0
        assert stats.failed_recomputations == 0


def the_driver_gives_out_no_more_than_the_budget(gpu: Gpu) -> None:
    plain = plainly(GATED)
    torch.cuda.reset_peak_memory_stats()
    plainly(GATED)
    budget = int(0.6 * torch.cuda.max_memory_allocated()) + MIB
    torch.cuda.empty_cache()
    assert gpu.count("in_use") == 0
    gpu.reset_peak()
    peaks: list[int] = []
    result = trained(GATED, "joint", budget, plain, after=lambda step: peaks.append(gpu.count("peak")))
    result.assert_clean()
    assert max(peaks) <= budget


def what_is_dropped_comes_back_however_late_a_stream_is(gpu: Gpu) -> None:
    plain = {name: plainly(work) for name, work in ALL.items()}
    tiers = (TIER, TierSpec("ram", checked=True))
    for seed, name in enumerate(("gated", "convolutional", "residual in place", "gated", "attentive", "gated")):
        gpu.delay(random.Random(seed).choice((100, 300, 1000)), seed)
        trained(ALL[name], "joint", "60%", plain[name], tiers[seed % 2]).assert_clean()
        gpu.delay(0)


def a_re_run_draws_what_was_drawn(gpu: Gpu) -> None:
    """With a generator of its own or the device's: neither is moved by it."""
    result = trained(GATED, "recompute", "60%", plainly(GATED))
    result.assert_clean()
    names = result.names_of_repeated()
    assert any("dropout" in name for name in names) and "aten::rand.generator" in names, names


def a_re_run_that_draws_beside_another_thread_is_not_trusted(gpu: Gpu) -> None:
    """The same bytes come out, but by chance: somebody else had the generator while it had the state of then."""
    seen, told, repeated = set[float](), set[str](), list[float]()

    def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
        mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
        if (known := x.sum().item()) in seen:
            repeated.append(torch.rand(1, device="cuda").item())  # as another thread would
        seen.add(known)
        return x * mask / (1 - p), mask

    with done_by(native_dropout, "native_dropout", "CUDA"):
        plain = plainly(GATED)
        seen.clear()
        assert not repeated
        look = lambda step: told.update(why for _, why in engine.load().tried_drops()[1])  # noqa: E731
        trained(GATED, "recompute", "60%", plain, after=look)
    assert repeated and "aten::native_dropout: another thread drew random numbers meanwhile" in told, told
    assert engine.load().tried_drops() == (0, [])


def a_write_that_no_schema_tells_of_comes_after_what_is_made_of_the_old_bytes(gpu: Gpu) -> None:
    def program() -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.randn(4096, device="cuda") * 1
        y = x * 3
        z = torch.ops.aten._cslt_compress(x)
        return on_host([y + 0, x + 0, z + 0, x * y])

    plain = program()
    gpu.delay(300, 1)
    with memfit.session(64 * MIB, "ram", device="cuda", plan=False) as session, stressed("recompute"):
        limited = program()
    gpu.delay(0)
    assert_equal(plain, limited)
    assert session.stats.recomputations > 0 and session.stats.failed_recomputations == 0


def no_step_waits_for_the_gpu_once_drops_are_trusted(gpu: Gpu) -> None:
    waits: list[int] = []

    def note(step: int) -> None:
        waits.append(gpu.count("waits"))

    def by_step() -> list[int]:
        return [b - a for a, b in zip(waits[LEARNT:], waits[LEARNT + 1 :], strict=False)]

    plain = train(GATED, note)
    of_the_program = by_step()
    waits.clear()
    result = trained(GATED, "joint", "50%", plain, after=note)
    result.assert_clean()
    assert result.stats[-1].recomputations > 0 == result.stats[-1].check_ns, "all was tried when it was recorded"
    assert by_step() == of_the_program


def what_comes_out_different_is_told_and_never_dropped_again(gpu: Gpu) -> None:
    for delay in (0, 300):
        gpu.delay(delay, delay)
        kernel = Forgetful()
        with done_by(kernel.silu, "silu", "CUDA"):
            plain = plainly(activated(nn.SiLU, BATCH))
            kernel.seen.clear()
            assert kernel.repeated == 0
            result = trained(activated(nn.SiLU, BATCH), "joint", "60%", plain)
        assert kernel.repeated > 0 and result.stats[-1].recomputations > result.stats[-1].failed_recomputations == 0
        told = result.session.not_made_again
        assert told and all("aten::silu: they came out different" in why for why in told)
        assert engine.load().tried_drops()[1] == [] and result.stats[-1].plans >= 2
    gpu.delay(0)


def a_drop_whose_call_is_another_is_tried_anew(gpu: Gpu) -> None:
    """With the settings of later the kernel does not come out the same any more."""
    kernel = Forgetful()

    def silu(x: Tensor) -> Tensor:
        return kernel.silu(x) if torch.are_deterministic_algorithms_enabled() else torch.sigmoid(x).mul_(x)

    def set_in_mid_run(step: int) -> None:
        torch.use_deterministic_algorithms(step >= LEARNT + 2, warn_only=True)

    with done_by(silu, "silu", "CUDA"):
        plain = train(activated(nn.SiLU, BATCH), set_in_mid_run)
        set_in_mid_run(0)
        kernel.seen.clear()
        assert kernel.repeated == 0
        result = trained(activated(nn.SiLU, BATCH), "joint", "60%", plain, after=set_in_mid_run)
    set_in_mid_run(0)
    assert kernel.repeated > 0 and result.stats[-1].failed_recomputations == 0
    told = result.session.not_made_again
    assert told and all("aten::silu: they came out different" in why for why in told), told


FLAGS: dict[str, Callable[[bool], object]] = {
    "benchmark": lambda on: setattr(torch.backends.cudnn, "benchmark", on),
    "deterministic": lambda on: setattr(torch.backends.cudnn, "deterministic", on),
    "tf32 products": lambda on: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32" if on else "ieee"),
    "tf32 convolutions": lambda on: setattr(torch.backends.cudnn.conv, "fp32_precision", "tf32" if on else "ieee"),
    "half sums": lambda on: setattr(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", on),
    "bfloat sums": lambda on: setattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", on),
    "half accumulation": lambda on: setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", on),
    "flash": torch.backends.cuda.enable_flash_sdp,
    "math": torch.backends.cuda.enable_math_sdp,
    "algorithms": torch.use_deterministic_algorithms,
}


def flags_now() -> int:
    """Return a number that says how each flag is set."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    on = (
        convolutions.benchmark, convolutions.deterministic, products.fp32_precision == "tf32",
        convolutions.conv.fp32_precision == "tf32", products.allow_fp16_reduced_precision_reduction,
        products.allow_bf16_reduced_precision_reduction, products.allow_fp16_accumulation,
        torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return sum(2**i for i, is_on in enumerate(on) if is_on)


class Flagged(nn.Module):
    """An activation whose forward runs with all flags one way; the ops after it see them the other way."""

    def forward(self, x: Tensor) -> Tensor:
        for turn in FLAGS.values():
            turn(True)
        y = F.silu(x)
        for turn in FLAGS.values():
            turn(False)
        return y


def a_re_run_sees_the_flags_of_then(gpu: Gpu) -> None:
    def silu(x: Tensor) -> Tensor:
        return torch.sigmoid(x).mul_(x).add_(1e-3 * flags_now())

    with done_by(silu, "silu", "CUDA"):
        plain = plainly(activated(Flagged, BATCH))
        result = trained(activated(Flagged, BATCH), "recompute", "60%", plain)
    result.assert_clean()
    assert any("silu" in name for name in result.names_of_repeated())
    assert flags_now() == 0, "they are as the program left them"


def what_is_asked_for_in_between_is_made_again_in_any_stream(gpu: Gpu) -> None:
    """Dropped storages that the program reads before the plan's time: in any stream, on the host, or by address."""
    side = torch.cuda.Stream()
    remade: list[int] = []

    def read(outputs: list[Tensor], where: str) -> Tensor:
        if where == "host":
            return torch.stack([output.detach().cpu().sum() for output in outputs])
        if where == "address":
            assert all(output.data_ptr() for output in outputs)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side if where == "side" else torch.cuda.current_stream()):
            sums = torch.stack([(output.detach() * 2).sum() for output in outputs])
        torch.cuda.current_stream().wait_stream(side)
        return sums

    def program(reads: list[str], session: Session | None = None) -> list[Tensor]:
        torch.manual_seed(0)
        net, outputs = _gated().cuda(), list[Tensor]()
        for block in net[:-1]:
            block.dropout.register_forward_hook(lambda _, inputs, output: outputs.append(output))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        seen = []
        for where in reads:
            optimizer.zero_grad()
            x = net(torch.randn(512, 64).cuda())
            if where:
                before = session.stats.recomputations if session else 0
                seen.append(read(outputs, where))
                remade.append(session.stats.recomputations - before if session else 0)
            outputs.clear()
            x.square().mean().backward()
            optimizer.step()
            seen.append(x.detach().sum())
        return on_host([*seen, *net.parameters(), torch.cuda.get_rng_state()])

    for where in ("side", "host", "address", "main"):
        reads = [""] * LEARNT + ["", where, ""]
        plain = program(reads)
        gpu.delay(100, len(where))
        with at_fixed_steps(), Session("60%", TIER, device="cuda", moves="recompute", plan_cache=False) as session:
            limited = program(reads, session)
        gpu.delay(0)
        assert_equal(plain, limited)
        assert session.stats.failed_recomputations == 0, where
        assert remade[-1] > 0, where


def on_demand(work: Work, plain: list[Tensor], budget: str | int = "60%", slow: bool = True) -> Stats:
    """Train without plans, over a link so `slow` that nothing is copied which can be made again, and compare."""
    torch.backends.cudnn.enabled = False
    with Session(budget, TIER, device="cuda", plan=False, plan_cache=False) as session:
        rate = 1e-6 if slow else 1e6
        engine.load().allow_drops(rate, rate)
        limited = train(work)
    assert_equal(plain, limited)
    stats = session.stats
    assert stats.peak_footprint_bytes <= stats.budget_bytes
    assert stats.failed_recomputations == stats.growths == 0
    return stats


def what_leaves_without_a_plan_is_dropped_where_that_takes_less_time(gpu: Gpu) -> None:
    for number, (name, work) in enumerate(ALL.items()):
        plain = plainly(work)
        gpu.delay(100 * (number % 2), number)
        dropped, copied = on_demand(work, plain), on_demand(work, plain, slow=False)
        gpu.delay(0)
        assert dropped.recomputations > copied.recomputations, name
        assert dropped.bytes_out < copied.bytes_out, name


def what_leaves_without_a_plan_comes_back_in_tighter_and_tighter_budgets(gpu: Gpu) -> None:
    for name in ("gated", "residual in place", "convolutional"):
        plain = plainly(ALL[name])
        torch.cuda.reset_peak_memory_stats()
        plainly(ALL[name])
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        for share in (0.9, 0.75, 0.5, 0.4):
            on_demand(ALL[name], plain, int(share * peak) + MIB)


class Mallinfo(ctypes.Structure):
    """The C library's account of its heap (mallinfo2(3))."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    ))  # fmt: skip


def heap_bytes() -> int:
    """Return the bytes of the C library's heap that are in use."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    return int(mallinfo().uordblks)


def what_lives_on_without_a_plan_keeps_nothing_of_the_step_that_made_it(gpu: Gpu) -> None:
    """A loss in a list would keep the calls of the whole step, if it could be made again."""
    in_use = [0] * 60
    torch.backends.cudnn.enabled = False
    with Session("60%", TIER, device="cuda", plan=False, plan_cache=False) as session:
        engine.load().allow_drops(1e-6, 1e-6)

        def note(step: int) -> None:
            in_use[step] = heap_bytes()

        train(GATED, note, steps=len(in_use))
    assert session.stats.discards > 0
    a_step = (in_use[-1] - in_use[19]) / (len(in_use) - 20)
    assert a_step < 4096, a_step


def what_does_not_come_out_again_is_copied_without_a_plan(gpu: Gpu) -> None:
    kernel = Forgetful()
    work = activated(nn.SiLU, BATCH)
    with done_by(kernel.silu, "silu", "CUDA"):
        plain = plainly(work)
        kernel.seen.clear()
        stats = on_demand(work, plain)
    assert kernel.repeated > 0 and stats.bytes_out > 0
    assert on_demand(work, plainly(work)).bytes_out < stats.bytes_out, "it is dropped where it comes out again"


def what_is_written_over_is_dropped_with_what_had_made_it(gpu: Gpu) -> None:
    """All that a step keeps are outputs of `relu_`, which lie where a linear layer's did."""

    def network() -> nn.Module:
        layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.ReLU(inplace=True))]
        return nn.Sequential(*layers, nn.Linear(64, CLASSES))

    work = Work(network, lambda size: torch.randn(size, 64), BATCH)
    plain = plainly(work)
    assert on_demand(work, plain).recomputations > 0
    assert all(is_same for is_over, _, is_same, _ in engine.load().tried_calls() if not is_over)


def a_difference_is_seen_wherever_it_lies(gpu: Gpu) -> None:
    """In bytes of which only some fill whole words; each call is of another shape, so that it is tried itself."""
    calls = [0]
    changed = -1  # the byte that another run makes otherwise

    def logical_not(x: Tensor) -> Tensor:
        calls[0] += 1
        made = x == 0
        if calls[0] == 2 and changed >= 0:
            made.view(-1)[changed : changed + 1].logical_xor_(torch.ones(1, dtype=torch.bool, device=x.device))
        return made

    def outcomes() -> dict[int, bool]:
        return {key: is_same for is_over, key, is_same, _ in engine.load().tried_calls() if not is_over}

    sizes = (1, 7, 8, 9, 1003, 1 << 20)
    with done_by(logical_not, "logical_not", "CUDA"), Session("256MiB", TIER, device="cuda", plan_cache=False):
        cases = [(size, at) for size in sizes for at in (-1, 0, size // 2, size - 1)]
        for number, (size, changed) in enumerate(cases):
            x = torch.ones((1,) * number + (size,), dtype=torch.bool, device="cuda")
            before = outcomes()
            calls[0] = 0
            torch.logical_not(x)
            tried = {key: is_same for key, is_same in outcomes().items() if key not in before}
            assert calls[0] == 2 and list(tried.values()) == [changed < 0], (size, changed, tried)


def everything_that_can_be_is_made_again_before_every_op(gpu: Gpu) -> None:
    for name, work in ALL.items():
        small = replace(work, batch=8)
        torch.backends.cudnn.enabled = False
        plain = train(small, steps=3)
        for delay in (0, 20):
            gpu.delay(delay, 1)
            with memfit.session(64 * MIB, "ram", device="cuda", plan=False) as session, stressed("recompute"):
                limited = train(small, steps=3)
            gpu.delay(0)
            assert_equal(plain, limited)
            stats = session.stats
            assert stats.recomputations > 100 and stats.failed_recomputations == 0, (name, stats)
