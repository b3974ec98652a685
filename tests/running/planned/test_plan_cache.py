"""A run takes the plan of an earlier run of the same script, from disk, and none that is not for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import memfit
from memfit.files.kept_plan import KeptPlan, load_kept_plan, save_kept_plan
from memfit.ir import Plan, Trace
from memfit.machine import Link, Machine
from memfit.running.engine import plans
from memfit.running.planned import plan_cache
from memfit.running.planned.claims import Claims
from memfit.running.planned.link import SessionLink
from memfit.running.planned.recorded import in_order_of_use
from memfit.running.planned.revisions import Revisions
from memfit.running.session import settings
from python_path import environment
from running.plainly import as_plainly, descend
from running.planned.training import plan_at_fixed_steps
from trace_builder import TraceBuilder

pytestmark = [pytest.mark.timeout(180), pytest.mark.unstressed("what there is left for a plan to move")]


def machine(gb_per_s: float) -> Machine:
    link = Link.of_bandwidth(gb_per_s, latency_us=0.0)
    return Machine("a steady link", link, link)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A folder of the test's own; plans by known times, at fixed steps."""
    own = tmp_path / "plans"
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", str(own))
    by_known_times(monkeypatch)
    return own


def but_answers(folder: Path) -> list[Path]:
    """Return the files that are there, without those of what was tried of calls."""
    return [path for path in folder.glob("*") if not path.name.endswith(plans.ANSWERS)]


def by_known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_at_fixed_steps(monkeypatch)
    monkeypatch.setattr(SessionLink, "machine", lambda *_: machine(0.5))


def train(width: int = 128, activation: type = torch.nn.GELU, steps: int = 14) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(m for _ in range(6) for m in (torch.nn.Linear(width, width), activation())))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    losses = [loss.detach() for loss in descend(optimizer, lambda: net(torch.randn(256, width)).square().mean(), steps)]
    return [*losses, *(p.detach().clone() for p in net.parameters())]


def limited(budget: str | int = "45%", width: int = 128, moves: str = "swap", **options: object) -> memfit.Session:
    with memfit.session(budget, "ram", moves=moves, **options) as session:
        train(width)
    return session


def found_plan(session: memfit.Session) -> bool:
    return session.kept_plans == 1 and session.plan_searches == 0


@pytest.mark.long
@pytest.mark.parametrize("moves", ["joint", "swap", "recompute"])
def test_a_second_run_plans_nothing_and_gives_the_same_bits(folder, moves):
    budget = "70%" if moves == "recompute" else "45%"
    first = as_plainly(train, budget, "ram", moves=moves)
    assert first.plan_searches > 0 and first.kept_plans == 0 and len(but_answers(folder)) == 1
    second = as_plainly(train, budget, "ram", moves=moves)
    assert found_plan(second) and second.planned_iterations > 0
    mine, theirs = second.planned.plan, first.planned.plan
    assert (mine.swaps, mine.recomputes) == (theirs.swaps, theirs.recomputes)
    assert bool(mine.recomputes) == (moves != "swap") and bool(mine.swaps) == (moves != "recompute")
    assert second.stats.failed_recomputations == 0 and second.stats.peak_footprint_bytes <= second.stats.budget_bytes


@pytest.mark.long
def test_another_script_budget_or_way_has_no_plan_yet():
    limited()
    for other in ({"budget": "50%"}, {"width": 136}, {"moves": "joint"}):
        session = limited(**other)
        assert session.kept_plans == 0 and session.plan_searches > 0, other
    assert found_plan(limited())


@pytest.mark.long
def test_an_iteration_of_other_ops_has_no_plan_yet():
    limited()
    with memfit.session("45%", "ram", moves="swap") as session:
        train(activation=torch.nn.SiLU)
    assert session.kept_plans == 0 and session.plan_searches > 0


@pytest.mark.parametrize("change", ["torch", "memfit", "format", "threads"])
def test_other_versions_have_no_plan_yet(monkeypatch, change):
    limited()
    match change:
        case "torch":
            monkeypatch.setattr(torch, "__version__", "99.0")
        case "memfit":
            monkeypatch.setattr(settings, "__version__", "99.0")
        case "format":
            monkeypatch.setattr(plan_cache, "_FORMAT", 99)
        case "threads":
            monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    session = limited()
    assert session.kept_plans == 0 and session.plan_searches > 0


def damaged(path: Path, how: str) -> None:
    kept, whole = load_kept_plan(path), path.read_bytes()
    swaps = kept.plan.swaps
    match how:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case "foreign":
            path.write_text("[1, 2]")
        case "of another iteration":
            save_kept_plan(replace(kept, key="0" * 64), path)
        case "another storage":
            save_kept_plan(with_swaps(kept, replace(swaps[0], storage=10**6), *swaps[1:]), path)
        case "another size":
            save_kept_plan(with_swaps(kept, replace(swaps[0], size_bytes=64), *swaps[1:]), path)
        case "too little":
            save_kept_plan(with_swaps(kept, swaps[0]), path)
        case "unknown op":
            one = replace(kept.plan.recomputes[0], ops=(10**6,))
            save_kept_plan(replace(kept, plan=replace(kept.plan, recomputes=(one,))), path)
        case "unknown refusal":
            save_kept_plan(replace(kept, never={10**6: "it is not there"}), path)


def with_swaps(kept: KeptPlan, *swaps: object) -> KeptPlan:
    return replace(kept, plan=replace(kept.plan, swaps=swaps))


@pytest.mark.long
@pytest.mark.parametrize(
    "how", ["empty", "cut", "foreign", "of another iteration", "another storage", "another size", "too little",
            "unknown op", "unknown refusal"],
)  # fmt: skip
def test_a_damaged_file_is_ignored_and_replaced(folder, how):
    moves = "joint" if how == "unknown op" else "swap"
    limited(moves=moves)
    (path,) = but_answers(folder)
    damaged(path, how)
    session = limited(moves=moves)
    assert session.kept_plans == 0 and session.plan_searches > 0
    assert but_answers(folder) == [path] and found_plan(limited(moves=moves))


def test_a_folder_that_cannot_be_written_costs_nothing(folder):
    folder.write_text("a file is in its place")
    session = as_plainly(train, "45%", "ram", moves="swap")
    assert session.stats.plans > 0 and session.kept_plans == 0


@pytest.mark.parametrize("how", ["variable", "option"])
def test_it_can_be_turned_off(folder, monkeypatch, how):
    if how == "variable":
        monkeypatch.setenv("MEMFIT_PLAN_CACHE", "off")
    for _ in range(2):
        session = limited(plan_cache=how != "option")
        assert session.kept_plans == 0 and session.plan_searches > 0
    assert not folder.exists()


def test_what_needs_no_plan_is_not_kept(folder):
    for _ in range(2):
        session = limited("1GiB")
        assert session.stats.plans == 1 and session.plan_searches == session.kept_plans == 0
    assert not but_answers(folder)


@pytest.mark.parametrize(("gb_per_s", "plans"), [(0.1, 2), (5.0, 1)])  # over a faster link none is better
def test_a_plan_for_another_link_is_used_at_once_and_weighed_beside_training(folder, monkeypatch, gb_per_s, plans):
    budget = 1800 << 10  # in bytes: what the plain run leaves behind would change a share
    limited(budget)
    (path,) = but_answers(folder)
    assert load_kept_plan(path).machine == machine(0.5)
    monkeypatch.setattr(SessionLink, "machine", lambda *_: machine(gb_per_s))
    session = as_plainly(train, budget, "ram", moves="swap")
    assert session.kept_plans == 1 and session.plan_searches > 0 and session.stats.plans == plans
    assert load_kept_plan(path).machine == machine(gb_per_s) and found_plan(limited(budget))


@pytest.mark.long
def test_a_storage_that_one_run_could_not_make_again_the_next_does_not_drop(folder, monkeypatch):
    hear, refused = Revisions.hear_of_drops, []

    def refuse_one(self, known) -> bool:
        if refused or not known.plan.dropped:
            return hear(self, known)
        refused.append(known.plan.dropped[0])
        known.never[refused[0]] = "it is not what it was"
        known.making = self.asking.make(known)
        return True

    monkeypatch.setattr(Revisions, "hear_of_drops", refuse_one)
    first = limited(moves="joint")
    monkeypatch.setattr(Revisions, "hear_of_drops", hear)
    (path,) = but_answers(folder)
    assert load_kept_plan(path).never == {refused[0]: "it is not what it was"}
    second = limited(moves="joint")
    assert found_plan(second) and refused[0] not in second.planned.dropped
    assert second.planned.dropped == first.planned.dropped


SCRIPT = """\
import json, os, sys, time
import pytest, torch
import memfit
from memfit.running.planned import wanted
from running.planned.test_plan_cache import by_known_times, train

torch.set_num_threads(1)
by_known_times(pytest.MonkeyPatch())
if folder := os.environ.get("MEETING"):  # of processes that begin together, and search for long
    search = wanted.make_engine_plan
    wanted.make_engine_plan = lambda *about, **how: time.sleep(3) or search(*about, **how)
    open(os.path.join(folder, f"here{os.getpid()}"), "w").close()
    while sum(name.startswith("here") for name in os.listdir(folder)) < int(os.environ["LOCAL_WORLD_SIZE"]):
        time.sleep(0.01)
kept = [torch.ones(100 + i) for i in range(int(sys.argv[1]))]  # of other numbers in the engine
with memfit.session("1800KiB", "ram", moves=sys.argv[2]) as session:
    result = train()
bits = [value.double().sum().item().hex() for value in result]
print(json.dumps([session.kept_plans, session.plan_searches, session.stats.plans, bits]))
"""


def start(tmp_path: Path, seed: int, before: int = 0, moves: str = "swap") -> subprocess.Popen[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, tmp_path / "script.py", str(before), moves]
    return subprocess.Popen(command, env=environment(PYTHONHASHSEED=str(seed)), stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> list:
    out, _ = process.communicate(timeout=150)
    assert process.returncode == 0
    return json.loads(out)


@pytest.mark.slow
def test_processes_at_once_do_not_disturb_each_other_and_the_next_plans_nothing(tmp_path, folder):
    both = [start(tmp_path, seed) for seed in (1, 2)]
    results = [said(process) for process in both]
    assert all(in_force > 0 for *_, in_force, _ in results) and len(but_answers(folder)) == 1
    kept, searches, _, bits = said(start(tmp_path, 3, before=5))
    assert (kept, searches) == (1, 0)
    assert all(other == bits for *_, other in results)


def test_another_ranks_plan_is_taken_if_it_is_joint_or_another_than_was_found(folder):
    def kept(is_joint: bool) -> KeptPlan:
        return KeptPlan("key", Plan("s", 4, "p", "m", 9, ()), machine(1.0), is_joint)

    def asked(**wanted: bool) -> KeptPlan | None:
        cache.claims.release_all()
        return cache.from_another_rank("key", "claim", threading.Event(), **wanted)

    cache, file = plan_cache.PlanCache(folder, claims=Claims(folder)), folder / f"key{plans.ENDING}"
    assert asked(is_joint=False, is_another=False) is None and (folder / f".claim{plans.ENDING}.claim.tmp").exists()
    save_kept_plan(kept(is_joint=False), file)
    assert asked(is_joint=True, is_another=False) is None
    assert asked(is_joint=False, is_another=False) == kept(is_joint=False)
    assert asked(is_joint=False, is_another=True) is None
    save_kept_plan(kept(is_joint=True), file)
    assert asked(is_joint=True, is_another=True) == kept(is_joint=True)
    assert plan_cache.PlanCache(folder).from_another_rank(
        "key", "claim", threading.Event(), is_joint=True, is_another=False
    ) is None  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("moves", ["swap", pytest.param("joint", marks=pytest.mark.slow)])
def test_of_ranks_that_want_a_plan_at_once_one_searches(tmp_path, folder, monkeypatch, moves):
    alone = said(start(tmp_path, 0, moves=moves))
    for path in folder.iterdir():
        path.unlink()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setenv("MEETING", str(tmp_path))
    results = [said(process) for process in [start(tmp_path, seed, moves=moves) for seed in (1, 2, 3)]]
    assert sum(searches for _, searches, *_ in results) == alone[1] > 0
    assert all(in_force > 0 for *_, in_force, _ in results)
    assert [bits for *_, bits in results] == 3 * [alone[-1]]
    assert len(but_answers(folder)) == 1  # no claim is left


@given(st.randoms(use_true_random=False), st.integers(0, 3))
def test_storages_are_numbered_alike_whatever_the_engine_numbered_them(random, idle):
    builder = TraceBuilder()
    a, b, unused = builder.before(64), builder.before(64), builder.before(32)
    (c,) = builder.op(reads=[b, a], outputs=[16])
    builder.free(unused)
    builder.op(reads=[c], writes=[a])
    trace = builder.build()
    first_use = {b: 0, a: 1, c: 2}
    shuffled, blocks = mixed(random, trace, idle)
    found, own = in_order_of_use(shuffled, blocks, {100 + s: place for s, place in first_use.items()})
    assert own == [100 + b, 100 + a, 100 + unused, 100 + c]
    assert found == in_order_of_use(trace, [*range(4)], first_use)[0]


def mixed(random, trace: Trace, idle: int) -> tuple[Trace, list[int]]:
    """The trace with its storages in another order, and some that nobody uses; and their block ids."""
    unused = [replace(trace.storages[0], size_bytes=8)] * idle
    order = [*range(len(trace.storages) + idle)]
    random.shuffle(order)
    number = {old: new for new, old in enumerate(order)}
    storages = [*trace.storages, *unused]

    def renumbered(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(number[s] for s in ids))

    ops = tuple(replace(op, reads=renumbered(op.reads), writes=renumbered(op.writes)) for op in trace.ops)
    return replace(trace, ops=ops, storages=tuple(storages[old] for old in order)), [100 + old for old in order]


def test_a_kept_plan_comes_back_as_it_was(tmp_path):
    kept = KeptPlan("a key", Plan("s", 4, "p", "m", 9, ()), machine(1.0), is_joint=True, never={3: "it is random"})
    save_kept_plan(kept, tmp_path / "plan.json.gz")
    assert load_kept_plan(tmp_path / "plan.json.gz") == kept


def test_those_not_used_for_the_longest_time_go_first(folder):
    folder.mkdir()
    for age in range(5):
        path = folder / f"{age}.plan.json.gz"
        path.write_bytes(bytes(100))
        os.utime(path, (1e9 - age, 1e9 - age))
    (folder / "mine.txt").write_text("not memfit's")
    plans.trim(folder, most_files=4)
    assert sorted(path.name[0] for path, _ in plans.kept_files(folder)) == ["0", "1", "2", "3"]
    plans.trim(folder, most_bytes=250)
    assert sorted(path.name[0] for path, _ in plans.kept_files(folder)) == ["0", "1"]
    (folder / f"of-calls{plans.ANSWERS}").write_text("[]")
    assert plans.clear(folder) == 2 and [path.name for path in folder.iterdir()] == ["mine.txt"]


def test_what_a_killed_writer_has_left_goes_after_a_while(folder):
    folder.mkdir()
    old, fresh = folder / ".a.plan.json.gz.1.tmp", folder / ".a.plan.json.gz.2.tmp"
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    plans.trim(folder)
    assert list(folder.iterdir()) == [fresh]
