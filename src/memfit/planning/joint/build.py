"""The linear program's columns and rows. `program` says what they mean."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from memfit.planning.joint.clean import copied_before
from memfit.planning.joint.problem import Columns, Problem, Terms, minus, terms_of
from memfit.planning.joint.relations import Relations
from memfit.planning.joint.segments import Segments
from memfit.planning.joint.solver import INFINITY, LinearProgram
from memfit.planning.joint.stretches import Idle

Rerun = tuple[int, int]
"""An op, and the op before which it runs again."""
_Loose = tuple[int, int, int]
"""The first and the last op before which a storage may return, and the column of that."""


@dataclass(slots=True)
class Built:
    """The program, in units of `us` and `size`; `columns` by the gap's number, `reruns` with the columns of each."""

    program: LinearProgram
    us: float
    size: float
    columns: dict[int, Columns]
    reruns: dict[Rerun, list[int]]


@dataclass(slots=True)
class _Flow:
    """Bytes and microseconds that are due in each segment."""

    size: dict[int, Terms] = field(default_factory=lambda: defaultdict(list))
    us: dict[int, Terms] = field(default_factory=lambda: defaultdict(list))
    total_size: float = 0.0
    total_us: float = 0.0
    fastest: float = INFINITY  # the least time that a byte takes in any of its copies

    def add(self, segment: int, column: int, size: float, us: float) -> None:
        """Add a copy that `column` decides on."""
        self.size[segment].append((column, size))
        self.us[segment].append((column, us))
        self.total_size += size
        self.total_us += us
        self.fastest = min(self.fastest, us / size)


def build(problem: Problem) -> Built:
    """Return the program of `problem`."""
    return _Builder(problem).build()


class _Builder:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.count = len(problem.trace.ops)
        self.program = LinearProgram()
        self.segments = Segments.of(problem.duration_us, problem.load_bytes, problem.segments)
        # (Beside less than a microsecond of ops a copy's numbers would be too large for the solver.)
        self.us = max(float(problem.duration_us.sum()), 1.0) / 1000
        self.size = max(float(problem.load_bytes.max()), 1.0) / 1000
        self.columns: dict[int, Columns] = {}
        self.out, self.into = _Flow(), _Flow()
        self.entering: dict[int, Terms] = defaultdict(list)
        self.leaving: dict[int, Terms] = defaultdict(list)
        self.away_first: Terms = []
        self.extra: dict[int, Terms] = defaultdict(list)
        self.reruns: dict[Rerun, list[int]] = defaultdict(list)
        self.loose: dict[int, dict[int, list[_Loose]]] = defaultdict(lambda: defaultdict(list))  # by op and storage

    def build(self) -> Built:
        for number in sorted(self._useful()):
            self._add_gap(number)
        relations = Relations(self.problem, self.columns, self.program, self.us)
        for number in self.columns:
            self._join_stretches(number)
            relations.add(number)
            if self.problem.may_swap:
                self._copy_out_first(number)
        self._pay_for_reruns()
        self._add_time()
        return Built(self.program, self.us, self.size, self.columns, self.reruns)

    # Gaps

    def _useful(self) -> set[int]:
        """Return the gaps that cover an end over the budget, and those in which they may be copied out already."""
        load, budget = self.problem.load_bytes, self.problem.budget_bytes
        over = np.concatenate(([0], np.cumsum([load[end] > budget for end in self.segments.ends])))
        useful = set()
        for number, idle in enumerate(self.problem.idle):
            covered = self.segments.within(idle.gap.after + 1, idle.end)
            if any(over[j + 1] > over[j] for j in covered):
                useful.add(number)
        self.earlier = (
            copied_before(self.problem.trace, self.problem.idle)
            if self.problem.clean_copies and self.problem.may_swap
            else {}
        )
        return useful | {number for each in useful for number in self.earlier.get(each, ())}

    def _add_gap(self, number: int) -> None:
        idle, columns = self.problem.idle[number], Columns()
        begin = idle.gap.after + 1
        for index, cut in enumerate(idle.cuts):
            if self.problem.may_swap:
                columns.swap[index] = self.program.column()
            if cut.recipe is not None:
                columns.remake[index] = self.program.column()
                for op in cut.recipe.ops:
                    if cut.since is not None:
                        self.loose[op][idle.gap.storage].append((cut.since, cut.op, columns.remake[index]))
                    else:
                        self.reruns[op, cut.op % self.count].append(columns.remake[index])
            if index + 1 < len(idle.cuts):
                self._reach_beyond(columns, index, is_remade=any(c.recipe for c in idle.cuts[index + 1 :]))
            self._take_away(idle, begin, cut.op, columns.away(index))
            begin = cut.op
        self.columns[number] = columns

    def _reach_beyond(self, columns: Columns, cut: int, *, is_remade: bool) -> None:
        if self.problem.may_swap:
            columns.beyond_swap[cut] = self.program.column()
        if is_remade:
            columns.beyond_remake[cut] = self.program.column()

    def _take_away(self, idle: Idle, begin: int, end: int, away: Terms) -> None:
        """Let the bytes be away during the ops [begin, end)."""
        covered = self.segments.within(begin, end)
        if not covered:
            return
        bytes_away = [(column, factor * idle.held_bytes / self.size) for column, factor in away]
        self.entering[self.segments.until(begin)] += bytes_away
        self.leaving[self.segments.until(end)] += bytes_away
        if 0 in covered:
            self.away_first += bytes_away

    def _join_stretches(self, number: int) -> None:
        """A part at most is away; and what does not return at a cut is away after it."""
        columns = self.columns[number]
        for index in range(len(self.problem.idle[number].cuts)):
            away = columns.away(index)
            if len(away) > 1:
                self.program.row(away, upper=1.0)
            for beyond, after in (
                (columns.beyond_swap, columns.in_tier(index + 1)),
                (columns.beyond_remake, columns.dropped(index + 1)),
            ):
                if index in beyond:
                    self.program.row([(beyond[index], 1.0), *minus(after)], upper=0.0)

    # Copies

    def _copy_out_first(self, number: int) -> None:
        """A copy in reads what was copied out, in this stretch or before; and both take their lanes' time."""
        idle, columns, machine = self.problem.idle[number], self.columns[number], self.problem.machine
        earlier = [n for n in self.earlier.get(number, ()) if n in self.columns]
        never_written = number in earlier
        size, segments = idle.held_bytes / self.size, self.segments
        copied = self.problem.trace.storages[idle.gap.storage].copied_bytes
        out_us, in_us = (link.copy_us(copied) / self.us for link in (machine.out, machine.into))
        released, done = segments.running(idle.gap.after), [(c, 1.0) for n in earlier for c in self._outs(n)]
        for index, cut in enumerate(idle.cuts):
            back = columns.swap[index]
            if idle.gap.returns or cut.op != idle.end:
                self.into.add(segments.until(cut.op), back, size, in_us)
            if not never_written:
                out = self._outs(number)[index]
                self.out.add(released, out, size, out_us)
                done.append((out, 1.0))
                self.program.row([*done, *minus(columns.in_tier(index))], lower=0.0)
                if not self.problem.clean_copies:
                    done.append((back, -1.0))
            released = segments.until(cut.op)
        if not never_written:  # a copy out belongs to an absence that ends with a copy in
            outs = [(out, 1.0) for out in self._outs(number)]
            self.program.row([*outs, *((back, -1.0) for back in columns.swap.values())], upper=0.0)

    def _outs(self, number: int) -> list[int]:
        """Return the columns of the copies out of a gap, which are made when they are first asked for."""
        columns = self.columns[number]
        for index in range(len(self.problem.idle[number].cuts)):
            if index not in columns.copy_out:
                columns.copy_out[index] = self.program.column()
        return list(columns.copy_out.values())

    # Time and memory

    def _pay_for_reruns(self) -> None:
        """An op runs again before another as often as the remaking that needs it most; its time is paid once."""
        alone: dict[int, float] = defaultdict(float)
        where: dict[int, int] = {}
        for (op, before), remakes in self.reruns.items():
            us = float(self.problem.again_us[op]) / self.us
            segment = self.segments.until(before)
            if us == 0:
                continue
            if len(remakes) == 1:
                alone[remakes[0]] += us
                where[remakes[0]] = segment
                continue
            again = self.program.column(cost=us)
            self.extra[segment].append((again, us))
            for remake in remakes:
                self.program.row([(again, 1.0), (remake, -1.0)], lower=0.0)
            self.reruns[op, before] = [again]
        for remake, us in alone.items():
            self.program.cost[remake] += us
            self.extra[where[remake]].append((remake, us))
        self._pay_for_loose_ones()

    def _pay_for_loose_ones(self) -> None:
        """An op runs again each time that a storage returns by it: at a cut's own op, or when is not known."""
        at_cuts: dict[int, dict[int, Terms]] = defaultdict(dict)
        for (op, before), columns in self.reruns.items():
            at_cuts[op][before] = [(column, 1.0) for column in columns]
        paid: Terms = []
        for op, storages in self.loose.items():
            us = float(self.problem.again_us[op]) / self.us
            if us == 0:
                continue
            besides = self.program.column(upper=float(len(self.problem.idle)), cost=us)
            paid.append((besides, us))
            for returns in storages.values():
                along = {at for since, until, _ in returns for at in at_cuts[op] if since <= at <= until}
                terms = [term for at in sorted(along) for term in at_cuts[op][at]]
                self.program.row([(besides, 1.0), *terms, *((back, -1.0) for *_, back in returns)], lower=0.0)
        if paid and self.problem.may_swap:
            self._place(paid)

    def _place(self, paid: Terms) -> None:
        """Let re-runs whose op is not known lengthen any segments in which there may be one."""
        returns = {one for storages in self.loose.values() for each in storages.values() for one in each}
        may_run = {segment for since, until, _ in returns for segment in self.segments.befores(since, until)}
        most = sum(us for _, us in paid) * len(self.problem.idle)
        longer = {segment: self.program.column(upper=most) for segment in sorted(may_run)}
        self.program.row([*((column, 1.0) for column in longer.values()), *minus(paid)], upper=0.0)
        for segment, column in longer.items():
            self.extra[segment].append((column, 1.0))

    def _add_time(self) -> None:
        """Let lanes work in each segment, and count the bytes at its end."""
        count = len(self.segments.ends)
        away = [self.program.column(upper=self._most_away()) for _ in range(count)]
        for j in range(count):
            entering = self.away_first if j == 0 else [(away[j - 1], 1.0), *self.entering[j], *minus(self.leaving[j])]
            self.program.row([(away[j], 1.0), *minus(entering)], 0.0, 0.0)
        self._make_room(away)
        waiting, early = self._lanes(count) if self.problem.may_swap else ([], [])
        for j, end in enumerate(self.segments.ends):
            over = (float(self.problem.load_bytes[end]) - self.problem.budget_bytes) / self.size
            if over > 0:
                held = [(columns[j], -1.0) for columns in (waiting, early) if columns]
                self.program.row([(away[j], 1.0), *held], lower=over)

    def _make_room(self, away: list[int]) -> None:
        """What runs again has room for what it allocates, and its inputs are there.

        Away meanwhile is at most what is away during the op that follows, and what returns for that.
        """
        place = {end: j for j, end in enumerate(self.segments.ends)}
        returning: dict[int, list[tuple[int, Terms]]] = defaultdict(list)
        rooms: dict[Rerun, int] = {}
        for number, columns in self.columns.items():
            for index, cut in enumerate(self.problem.idle[number].cuts):
                op = cut.op % self.count
                returning[op].append((number, terms_of(index, columns.swap, columns.remake)))
                if cut.recipe and cut.since is None and op in place:
                    rooms |= {(p, op): room for p, room in zip(cut.recipe.ops, cut.recipe.room_bytes, strict=True)}
        for (op, before), room in rooms.items():
            lacking = int(self.problem.begin_bytes[before]) + room - self.problem.budget_bytes
            if lacking <= 0:
                continue
            for again in self.reruns[op, before]:
                terms: Terms = [(away[place[before]], 1.0), (again, -room / self.size)]
                for number, back in returning[before]:
                    terms += self._away_meanwhile(number, back, op, again)
                self.program.row(terms, lower=(lacking - room) / self.size)

    def _away_meanwhile(self, number: int, back: Terms, op: int, again: int) -> Terms:
        """Return the bytes of a gap that may be away while `op` runs again; none of them if it reads the storage."""
        idle = self.problem.idle[number]
        held = idle.held_bytes / self.size
        away = [(column, factor * held) for column, factor in back]
        if idle.gap.storage not in self.problem.trace.ops[op].reads:
            return away
        there = self.program.column()  # the part that returns, and is read
        self.program.row([(there, 1.0), *minus([*back, (again, 1.0)])], lower=-1.0)
        return [*away, (there, -held)]

    def _most_away(self) -> float:
        return sum(self.problem.idle[number].held_bytes for number in self.columns) / self.size

    def _lanes(self, count: int) -> tuple[list[int], list[int]]:
        """Add the lanes; return, for each segment's end, the columns of bytes that wait to leave, or are early."""
        out, into, program = self.out, self.into, self.program
        out_us = [program.column(upper=out.total_us) for _ in range(count)]
        in_us = [program.column(upper=into.total_us) for _ in range(count)]
        stall = [program.column(upper=out.total_us + into.total_us, cost=1.0) for _ in range(count)]
        # While both directions are busy each has `factor` of its speed: what overlaps takes longer by this.
        factor = self.problem.machine.both_factor
        longer = min(1.0, (1 - factor) / factor)
        for j in range(count):
            room = self.segments.span_us[j] / self.us
            again = minus([*self.extra[j], (stall[j], 1.0)])
            program.row([(out_us[j], 1.0), (in_us[j], longer), *again], upper=room)
            program.row([(in_us[j], 1.0), (out_us[j], longer), *again], upper=room)
        waiting, early = self._bytes(out_us, out), self._bytes(in_us, into)
        self._balance(waiting[1], out.size, waiting[0], 1.0)
        self._balance(early[1], into.size, early[0], -1.0)
        self._balance([program.column(upper=out.total_us) for _ in range(count)], out.us, out_us, 1.0)
        self._balance([program.column(upper=into.total_us) for _ in range(count)], into.us, in_us, -1.0)
        return waiting[1], early[1]

    def _bytes(self, lane_us: list[int], flow: _Flow) -> tuple[list[int], list[int]]:
        """Return columns of the bytes copied in each segment, and of those that wait or are early at its end."""
        fastest = flow.fastest if flow.total_size else 0.0
        copied = [self.program.column(upper=flow.total_size) for _ in lane_us]
        for column, us in zip(copied, lane_us, strict=True):
            self.program.row([(column, fastest), (us, -1.0)], upper=0.0)
        return copied, [self.program.column(upper=flow.total_size) for _ in lane_us]

    def _balance(self, level: list[int], due: dict[int, Terms], copied: list[int], sign: float) -> None:
        """Each level is the one before plus what is due and less what is copied; the other way around if `sign` is -1.

        What is due to leave waits until it is copied; what is copied in is early until it is due.
        """
        for j, column in enumerate(level):
            change = [(c, -sign * factor) for c, factor in due[j]]
            self.program.row([(column, 1.0), (level[j - 1], -1.0), *change, (copied[j], sign)], 0.0, 0.0)
