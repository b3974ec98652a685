"""Forked children: they read, train, fork again and leave; neither they nor their parents are ever wrong in a bit."""

from __future__ import annotations

import array
import ctypes
import hashlib
import itertools
import os
import platform
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch

import memfit
from memfit.running import engine
from memfit.running.engine.disturbed import DisturbedTier
from running.children import Child, child_says
from running.plainly import as_plainly
from running.pressure import BUDGET, COUNT, evicted, is_resident, press, ramp
from running.side_by_side import repeated

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.copied("what children find in the tier"),
]
SLOW = DisturbedTier("disk", "/tmp", link_bytes_per_second=6e7)
"""A link on which copies are always under way."""
PLANNED_FROM = 5  # steps


def digest(tensors: list[torch.Tensor]) -> str:
    values = (array.array("f", t.detach().flatten().tolist()).tobytes() for t in tensors)  # (NumPy would pin them)
    return hashlib.sha1(b"".join(values)).hexdigest()


class Trainer:
    """A model, its optimizer and a stream of inputs."""

    def __init__(self, width: int = 96) -> None:
        torch.manual_seed(0)  # (no child may: another thread can have torch's lock around it)
        self.net = torch.nn.Sequential(*(m for _ in range(6) for m in (torch.nn.Linear(width, width), torch.nn.GELU())))
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.width = width

    def step(self, batch: torch.Tensor | None = None) -> None:
        self.optimizer.zero_grad()
        self.net(torch.randn(64, self.width) if batch is None else batch).pow(2).mean().backward()
        self.optimizer.step()

    def state(self) -> str:
        moments = (value for state in self.optimizer.state.values() for value in state.values())
        return digest([*self.net.parameters(), *moments])


def reads(trainer: Trainer) -> Child:
    return Child(trainer.state)


def reads_late(trainer: Trainer) -> Child:
    return Child(trainer.state, waits=True)


def trains(trainer: Trainer) -> Child:
    return Child(lambda: (trainer.step(torch.ones(48, 96)), trainer.step(), trainer.state()))


def trains_late(trainer: Trainer) -> Child:
    return Child(lambda: (trainer.step(), trainer.state()), waits=True)


def forks_again(trainer: Trainer) -> Child:
    def job() -> object:
        late, early = trains_late(trainer), trains(trainer)
        said = early.answer(), trainer.state()
        trainer.step()
        return said, late.answer(), trainer.state()

    return Child(job, waits=True)


KINDS: tuple[Callable[[Trainer], Child], ...] = (reads, reads_late, trains, forks_again, trains_late)


def family(steps: int, first: int) -> list[str]:
    """Train, with a fork after each step from `first` on; returns what the children say, and the parent's own state."""
    trainer, said = Trainer(), []
    children: list[Child] = []
    kinds = itertools.cycle(KINDS)
    for step in range(steps):
        trainer.step()
        if step >= first:
            children.append(next(kinds)(trainer))
        if len(children) > 8:
            said.append(children.pop(0).answer())
    said += [child.answer() for child in children]
    return [*said, trainer.state()]


@pytest.mark.long
@pytest.mark.parametrize(
    "steps, first", [(15, PLANNED_FROM), pytest.param(212, 12, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_forks_while_copies_run_change_no_bit_of_parent_children_or_grandchildren(steps, first):
    assert as_plainly(lambda: family(steps, first), "45%", SLOW, moves="swap").stats.prefetches > 0


@pytest.mark.long
def test_children_read_and_train_from_a_tier_that_compresses(tmp_path):
    slow = DisturbedTier("disk", str(tmp_path), compress=True, link_bytes_per_second=1e7)  # so that ops wait for copies
    stats = as_plainly(lambda: family(15, PLANNED_FROM), "45%", slow, moves="swap").stats
    assert 0 < stats.bytes_stored < 0.99 * stats.bytes_out
    assert stats.prefetches > 0  # so that copies wait for one another as children come


def test_children_forked_before_the_first_whole_iteration_train():
    def run() -> list[str]:
        trainer = Trainer()
        child = Child(lambda: ([trainer.step() for _ in range(4)], trainer.state()))
        return [child.answer(), *family(3, 0)]

    as_plainly(run, "60%", "disk")


@pytest.mark.long
def test_a_child_has_no_plan_no_recording_and_no_iterations():
    with memfit.session("45%", SLOW) as session:
        trainer = Trainer()
        while session.stats.prefetches == 0:
            trainer.step()
        assert len(os.listdir("/proc/self/task")) > 1

        def done() -> list[int]:
            s = session.stats
            return [s.ops, s.allocations, s.swaps, s.prefetches, s.evictions, s.bytes_out, s.iterations, s.plans]

        def quiet() -> bool:
            before = done()
            for _ in range(3):
                trainer.step()
            assert done() == before and len(os.listdir("/proc/self/task")) == 1
            return not engine.load().has_plan()

        assert child_says(quiet)


def test_a_child_still_reads_when_its_own_child_has_ended():
    with memfit.session(BUDGET, "disk"):
        tensors = [evicted(torch.full((COUNT,), float(i))) for i in range(8)]

        def job() -> list[float]:
            Child(lambda: None).answer()
            os.write(done, b".")
            os.read(go, 1)
            return [t.min().item() for t in tensors]

        (ready, done), (go, start) = os.pipe(), os.pipe()
        child = Child(job)
        os.read(ready, 1)
        for tensor in tensors:
            tensor.fill_(-1)
        press()
        os.write(start, b".")
        assert child.answer() == str([float(i) for i in range(8)])
        for end in (ready, done, go, start):
            os.close(end)


def test_a_grandchild_reads_when_its_parent_has_ended():
    with memfit.session(BUDGET, "disk"):
        tensors = [evicted(torch.full((COUNT,), float(i))) for i in range(4)]
        (go, start), (heard, say) = os.pipe(), os.pipe()

        def late() -> None:
            os.read(go, 1)
            os.write(say, str([t.min().item() for t in tensors]).encode())

        Child(lambda: Child(late).pid).answer()
        for tensor in tensors:
            tensor.fill_(-1)
        press()
        os.write(start, b".")
        assert os.read(heard, 1000).decode() == "[0.0, 1.0, 2.0, 3.0]"
        for end in (go, start, heard, say):
            os.close(end)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_ended_children_leave_no_file_open():
    with memfit.session(BUDGET, "disk"):
        kept = evicted()
        Child(lambda: None).answer()
        before = open_files()
        for _ in range(12):
            Child(lambda: None).answer()
        assert open_files() <= before
        assert not is_resident(kept)


def test_many_children_at_once_share_few_files_and_all_read_what_was():
    with memfit.session(BUDGET, "disk") as session:
        tensor = evicted(torch.zeros(COUNT))
        before, children = open_files(), []
        for value in range(1, 23):
            children.append(Child(lambda: (tensor.min().item(), tensor.max().item()), waits=True))
            tensor.fill_(value)
            press()
        assert open_files() <= before + 17 + 2 * len(children)  # two are the test's own
        assert [child.answer() for child in children] == [str((float(v), float(v))) for v in range(22)]
        frozen = session.stats.tier_used_bytes
        tensor.fill_(-1)
        press()
        assert session.stats.tier_used_bytes < frozen


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_child_forked_without_a_file_to_spare_reads_and_its_end_is_noticed():
    with memfit.session(BUDGET, "disk") as session:
        tensors = [evicted(torch.full((COUNT,), float(i))) for i in range(8)]
        go, start = os.pipe()
        with no_more_files():
            child = os.fork()
            if child == 0:
                os.read(go, 1)
                os._exit(0 if [t.max().item() for t in tensors] == [*range(8)] else 1)
            for tensor in tensors:
                tensor.fill_(-1)
            press()
            frozen = session.stats.tier_used_bytes
            os.write(start, b".")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        tensors[0].fill_(-2)
        press()
        assert session.stats.tier_used_bytes < frozen
        os.close(go)
        os.close(start)


def test_a_child_that_leaves_the_session_goes_on_reading_and_the_parent_s_goes_on():
    go, start = os.pipe()
    with memfit.session(BUDGET, "disk") as session:
        tensors = [evicted(torch.full((COUNT,), float(i))) for i in range(8)]
        child = os.fork()
        if child != 0:
            for tensor in tensors:
                tensor.fill_(-1)
            press()
            os.write(start, b".")
    code = 1
    try:
        if child != 0:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert all((t == -1).all() for t in tensors)
            return
        os.read(go, 1)
        right = all(t.numpy()[i] == i and t.sum().item() == i * COUNT for i, t in enumerate(tensors))
        code = 0 if right and session.stats.evictions else 1
    finally:
        if child == 0:
            os._exit(code)
        os.close(go)
        os.close(start)


def test_an_exception_that_leaves_the_session_in_a_child_stays_as_it_is():
    with memfit.session(BUDGET, "disk") as session:
        kept = evicted()

        def job() -> str:
            try:
                session.__exit__(ValueError, ValueError("mine"), None)
            except BaseException as error:
                return repr(error)
            return f"quiet, {kept[7].item()}"

        assert Child(job).answer() == "quiet, 7.0"
        assert engine.load().active() and kept[9].item() == 9


def test_a_child_may_have_a_session_of_its_own_and_its_own_children():
    with memfit.session(BUDGET, "disk"):
        tensors = [evicted(torch.full((COUNT,), float(i))) for i in range(8)]

        def job() -> bool:
            with memfit.session(BUDGET, "disk") as own:
                assert own.stats.evictions == 0
                press()
                kept = evicted()
                assert own.stats.evictions > 0
                assert child_says(lambda: torch.equal(kept, ramp()), press)
                right = [t.max().item() for t in tensors] == [*range(8)]
            return right and not engine.load().active() and torch.Tensor.numpy is torch._C.TensorBase.numpy

        assert child_says(job, press)
        assert [t.min().item() for t in tensors] == [*range(8)]


@pytest.mark.long
def test_forks_while_other_threads_train_hang_no_child():
    """The engine's locks are free in the child, whoever held them at the fork.

    torch's own are not: in a plain program, too, a child now and then waits for good in a backward pass (for the lock
    of torch's list of callbacks), or in the first op of its kind. So what a child does here needs none of them.
    """
    trainers = [Trainer(8) for _ in range(4)]
    mine = trainers[0].net[0].weight.detach()

    def work(trainer: Trainer) -> None:
        trainer.step(torch.ones(4, 8))

    def reads() -> bool:
        return all((mine * i).add_(mine).sum().isfinite().item() for i in range(40))

    assert reads()
    with memfit.session(1 << 22, "disk"), repeated(*(partial(work, trainer) for trainer in trainers[1:])):
        for _ in range(24):
            assert child_says(reads)


FORK = {"x86_64": 57}  # the system call, which runs no handlers


@pytest.mark.skipif(platform.machine() not in FORK, reason="the number of fork's system call")
@pytest.mark.parametrize("tier", ["disk", "ram"])
def test_a_process_forked_behind_the_engine_s_back_is_refused_the_tier(tier):
    with memfit.session(BUDGET, tier):
        tensors = [evicted(torch.full((COUNT,), float(i))) for i in range(8)]
        pid = ctypes.PyDLL(None).syscall(FORK[platform.machine()])
        if pid == 0:
            code = 1
            try:
                with pytest.raises(RuntimeError, match="another process; a forked child can only read it"):
                    for tensor in tensors:  # it makes room for them, as if it were alone
                        tensor.fill_(-1)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert [t.min().item() for t in tensors] == [*range(8)]


def test_a_child_that_is_killed_counts_as_ended():
    with memfit.session(BUDGET, "disk") as session:
        tensor = evicted()
        child = Child(lambda: None, waits=True)
        tensor.fill_(1)
        press()
        frozen = session.stats.tier_used_bytes
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(AssertionError, match="ended with -9"):
            child.answer()
        tensor.fill_(2)
        press()
        assert session.stats.tier_used_bytes < frozen
