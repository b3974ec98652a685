"""An exact judge of plans that only recompute, on tiny traces: the time that each adds, and the bytes it needs."""

from itertools import combinations

from memfit.ir import align_up
from memfit.planning.autoswap.candidates import ANY_GAP, candidates
from memfit.planning.joint.recipes import recipe_at_end, recipe_of
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import live_bytes
from memfit.simulate import load_bytes

NEVER = (float("inf"), float("inf"))


class Judge:
    def __init__(self, trace):
        self.trace = trace
        self.values = Values.of(trace)
        self.gaps = [gap for gap in candidates(trace, ANY_GAP) if recipe_at_end(self.values, gap)]
        self.load = load_bytes(trace).tolist()
        live = live_bytes(trace, aligned=True).tolist()
        self.begin = [live[op.first_tick] + trace.pinned_bytes for op in trace.ops]

    def recipe(self, gap, op):
        return recipe_of(self.values, self.values.before(gap.storage, op), op)

    def least_us(self, budget_bytes, most=6):
        """The least time that any choice of gaps adds; infinity if none keeps to the budget."""
        gaps = self.gaps[:most]
        choices = [chosen for size in range(len(gaps) + 1) for chosen in combinations(gaps, size)]
        results = [self.judge(chosen, leaves_again) for chosen in choices for leaves_again in (False, True)]
        return min((us for us, peak in results if peak <= budget_bytes), default=float("inf"))

    def judge(self, chosen, leaves_again):
        """The time added and the peak when `chosen` are dropped; what an early remaking read may leave again."""
        away, held, us = {}, list(self.load), 0.0
        for op in range(len(self.trace.ops)):
            away = {s: gap for s, gap in away.items() if op < self.trace.storages[s].free}
            run, early, gone = {}, set(), dict(away)
            for gap in (gap for gap in chosen if gap.before == op and gap.returns):
                if gap.storage in away and not self.remake(gap, op, away, run, early):
                    return NEVER
            us += sum(self.trace.ops[p].duration_us for p in run)
            held += [self.while_running(p, room, op, gone) for p, room in run.items()]
            if leaves_again:
                away |= {gap.storage: gap for gap in early if gap.before != op}
            away = {s: gap for s, gap in away.items() if gap.before != op}  # what is dropped for good counts again
            held[op] -= self.bytes_of(away)
            away |= {gap.storage: gap for gap in chosen if gap.after == op}
        return us, max(held)

    def bytes_of(self, away):
        return sum(align_up(gap.size_bytes, self.trace.alignment) for gap in away.values())

    def while_running(self, op, room_bytes, before, gone):
        """The least that the arena holds while `op` runs again: its inputs are back, all else may be away."""
        away = {storage: gap for storage, gap in gone.items() if storage not in self.trace.ops[op].reads}
        return self.begin[before] - self.bytes_of(away) + room_bytes

    def remake(self, gap, op, away, run, early):
        """Run what makes the storage of `gap` again, its inputs first; return whether that can be done."""
        recipe = self.recipe(gap, op)
        if recipe is None:
            return False
        del away[gap.storage]
        early.add(gap)
        run |= dict(zip(recipe.ops, recipe.room_bytes, strict=True))
        needed = [self.values.values[value].storage for value in recipe.needs]
        return all(self.remake(away[storage], op, away, run, early) for storage in needed if storage in away)
