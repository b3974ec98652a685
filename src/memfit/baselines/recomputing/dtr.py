"""Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021): an online cache of tensors, replayed on the trace.

When an op does not fit, the storage with the least cost / (size x staleness) is evicted, where its cost is that of its
own ops and of the evicted ones around it (section 4.1, `h_DTR^eq`: sets that are joined, not split). An op that reads
an evicted storage has it made again, with the evicted inputs of that, which stay until they are evicted again. Storages
below a hundredth of the mean size are not looked at. The ranks do not know the future. Remakings cannot express that a
storage without a later use is evicted, nor that one which a remaking read leaves before the next op has ended.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import heapify, heappop, heappush

from memfit.baselines.policies.policy import too_large
from memfit.baselines.recomputing.drops import Droppable, Droppables
from memfit.baselines.recomputing.neighbourhood import Neighbourhoods
from memfit.baselines.recomputing.policy import mixed
from memfit.ir import Plan, Recompute, Trace, align_up
from memfit.machine import Machine
from memfit.planning.joint.recipes import Recipe, recipe_of
from memfit.planning.lifetimes import births, live_bytes, operands
from memfit.simulate import load_bytes

_MOST_OPS = 10_000
_MOST_TIMES = 20.0
"""A replay that takes so many times the computation is thrashing, and is given up."""
_ROUNDS = 4
"""The replay counts what is made on the way roughly; if the trace is too large after all, it is given less."""


def dtr(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the remakings of the replay; raises BudgetError if it does not fit, or thrashes."""
    drops = Droppables(trace)
    given, least = budget_bytes, None
    for _ in range(_ROUNDS):
        recomputes = _Replay(drops, given).run()
        if recomputes is None:
            break
        found = drops.of(recomputes)
        if found.peak_bytes <= budget_bytes:
            return mixed("dtr", trace, machine, budget_bytes, found.recomputes, found.made, ())
        least = min(least or found.peak_bytes, found.peak_bytes)
        given -= found.peak_bytes - budget_bytes
    raise too_large("dtr", budget_bytes, least or int(load_bytes(drops.trace).max()))


class _Replay:
    """One iteration, op by op: who is evicted, and what is made again."""

    def __init__(self, drops: Droppables, budget_bytes: int) -> None:
        self.drops, self.values, self.trace = drops, drops.values, drops.trace
        self.budget_bytes = budget_bytes
        self.load = load_bytes(self.trace).tolist()
        live = live_bytes(self.trace, aligned=True).tolist()
        self.begin = [live[op.first_tick] + self.trace.pinned_bytes for op in self.trace.ops]
        self.born = births(self.trace)
        self.idle: dict[int, Droppable] = {}
        self.away: dict[int, tuple[Droppable, int]] = {}
        self.away_bytes = 0
        self.around = Neighbourhoods(drops.all)
        self.clock_us = 0.0
        self.seen_us: dict[int, float] = {}
        self.seen_at: dict[int, int] = {}
        self.found: list[Recompute] = []
        mean = sum(each.gap.size_bytes for each in drops.all) / max(len(drops.all), 1)
        self.by_start: dict[int, list[Droppable]] = {}
        for each in drops.all:
            if each.gap.size_bytes * 100 >= mean:
                self.by_start.setdefault(each.gap.after, []).append(each)

    def run(self) -> list[Recompute] | None:
        """Return the remakings; None if the replay thrashes."""
        most_us = _MOST_TIMES * sum(op.duration_us for op in self.trace.ops)
        for op in range(len(self.trace.ops)):
            self._run(op)
            if self.clock_us > most_us:
                return None
        return self.found

    def _run(self, op: int) -> None:
        used = set(operands(self.trace, op))
        for storage in used:
            self.idle.pop(storage, None)
        needed = [storage for storage in sorted(used) if storage in self.away]
        if needed:
            self._remake(op, needed, used)
        self._evict(used, self.load[op])
        self.clock_us += self.trace.ops[op].duration_us
        for storage in {*used, *self.trace.ops[op].writes}:
            self._touch(storage, op)
        for each in self.by_start.get(op, ()):
            self.idle[each.gap.storage] = each

    def _touch(self, storage: int, op: int) -> None:
        self.seen_us[storage], self.seen_at[storage] = self.clock_us, op

    def _remake(self, op: int, needed: list[int], used: Collection[int]) -> None:
        """Make the evicted storages again before `op`, with what they are made from; make room for it first."""
        recipes = self._recipes(op, needed, stay=True)
        held = self._inputs(recipes)
        if not self._makes_room(op, recipes, held | {*used}):
            recipes = self._recipes(op, needed, stay=False)
            held = self._inputs(recipes)
            self._makes_room(op, recipes, held | {*used})
        for storage, recipe in recipes.items():
            each, after = self.away.pop(storage)
            self.away_bytes -= self._held(storage)
            self.around.bring_back(each.value, each.us)
            self.found.append(Recompute(storage, after, op, recipe.ops))
            if each.gap.before > op:
                self.idle[storage] = each
        self.clock_us += sum(self.trace.ops[p].duration_us for p in {p for r in recipes.values() for p in r.ops})
        for storage in {*held, *recipes}:
            self._touch(storage, op)

    def _recipes(self, op: int, needed: list[int], *, stay: bool) -> dict[int, Recipe]:
        """Return what to run for each storage that comes back; evicted inputs come back too if they are to stay."""
        away = () if stay else {e.value for s, (e, _) in self.away.items() if s not in needed and e.gap.after < op}
        found: dict[int, Recipe] = {}
        wanted = list(needed)
        while wanted:
            storage = wanted.pop()
            recipe = recipe_of(self.values, self.values.before(storage, op), op, _MOST_OPS, away)
            assert recipe is not None, "what can be made at its use can be made before"
            found[storage] = recipe
            inputs = (self.values.values[need].storage for need in recipe.needs)
            wanted += [s for s in inputs if s in self.away and s not in found and s not in wanted]
        return found

    def _inputs(self, recipes: dict[int, Recipe]) -> set[int]:
        return {self.values.values[need].storage for recipe in recipes.values() for need in recipe.needs}

    def _makes_room(self, op: int, recipes: dict[int, Recipe], held: set[int]) -> bool:
        """Evict until the remakings and `op` itself fit; return whether they do."""
        back = sum(self._held(storage) for storage in recipes)
        way = self._way_bytes(sorted({p for recipe in recipes.values() for p in recipe.ops}), recipes)
        needed = max(self.begin[op] + way, self.load[op] + back)
        self._evict(held, needed)
        return bool(needed - self.away_bytes <= self.budget_bytes)

    def _way_bytes(self, ops: list[int], recipes: Collection[int]) -> int:
        """Return the most that running `ops` again holds beside what is there."""
        last = {storage: p for p in ops for storage in (*self.trace.ops[p].reads, *self.trace.ops[p].writes)}
        most, held = 0, 0
        own: set[int] = set()
        for p in ops:
            most = max(most, held + self.values.allocated_bytes[p])
            own |= {s for s in self.trace.ops[p].writes if self.born.get(s) == p}
            own = {s for s in own if last[s] > p or s in recipes}
            held = sum(self._held(s) for s in own)
        return max(most, held)

    def _held(self, storage: int) -> int:
        return align_up(self.trace.storages[storage].size_bytes, self.trace.alignment)

    def _evict(self, locked: Collection[int], needed_bytes: int) -> None:
        """Evict by the heuristic until `needed_bytes` fit with what is away, or nothing is left."""
        if needed_bytes - self.away_bytes <= self.budget_bytes:
            return
        heap = [(self._rank(each), storage) for storage, each in self.idle.items() if storage not in locked]
        heapify(heap)
        while heap and needed_bytes - self.away_bytes > self.budget_bytes:
            rank, storage = heappop(heap)
            each = self.idle[storage]
            if rank < (now := self._rank(each)):  # what it is made from was evicted: it costs more
                heappush(heap, (now, storage))
                continue
            del self.idle[storage]
            self.away[storage] = each, self.seen_at[storage]
            self.away_bytes += self._held(storage)
            self.around.evict(each.value, each.us)

    def _rank(self, each: Droppable) -> float:
        stale_us = max(self.clock_us - self.seen_us[each.gap.storage], 1e-3)
        return (each.us + self.around.us(each.value)) / (each.gap.size_bytes * stale_us)
