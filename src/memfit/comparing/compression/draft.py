"""A trace that can be edited: storages resized, taken out and put in, and made into a trace again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from memfit.comparing.compression.contents import contents
from memfit.ir import BEFORE_FIRST_TICK, Category, Handover, Op, Phase, Storage, Trace, align_up
from memfit.shapes import Tensor

_OF_A_LAYER = re.compile(r"aten::_?(t|mm|addmm|matmul|sum|view|reshape|reshape_alias|transpose|expand|detach)(\.|$)")


@dataclass(eq=False, slots=True)
class Piece:
    """A storage of a draft. Its lifetime is that of its events in the steps.

    Attributes:
        size_bytes: Its size.
        category: The kind of its content.
        source: The line that allocated it.
        module: The module that allocated it.
        tensor: The tensor in it as it was recorded; None where that cannot be told.
        born_before: Whether it is alive before the iteration.
        item_bytes: The bytes of one element.
        is_float: Whether its elements are floating-point numbers, as far as is known.
        pin: The step from which on it is pinned (None: the end), and the line that pinned it; None if it is not.
    """

    size_bytes: int
    category: Category
    source: str = ""
    module: str = ""
    tensor: Tensor | None = None
    born_before: bool = False
    item_bytes: int = 4
    is_float: bool = True
    pin: tuple[Step | None, str] | None = None

    @property
    def count(self) -> int:
        """The number of its elements."""
        return self.size_bytes // self.item_bytes


@dataclass(eq=False, slots=True)
class Event:
    """An allocation or a free of a piece. One that is `inside` is made by the op, and not between it and the next."""

    piece: Piece
    allocates: bool
    inside: bool = True


@dataclass(eq=False, slots=True)
class Step:
    """An op of a draft, with what is allocated and freed from its beginning to that of the next."""

    op: Op
    reads: dict[Piece, None]
    writes: dict[Piece, None]
    events: list[Event] = field(default_factory=list)
    recorded_bytes: int = 0  # that its accesses had, and its allocations at their most
    recorded_peak: int = 0

    @property
    def phase(self) -> Phase:
        """The part of the iteration it belongs to."""
        return self.op.phase

    def uses(self, piece: Piece) -> bool:
        """Return whether it reads or writes `piece`."""
        return piece in self.reads or piece in self.writes

    def makes(self, piece: Piece) -> bool:
        """Return whether `piece` is allocated by its op."""
        return any(event.allocates and event.inside and event.piece is piece for event in self.events)

    def forget(self, piece: Piece) -> None:
        """Access `piece` no more."""
        self.reads.pop(piece, None)
        self.writes.pop(piece, None)

    def accessed_bytes(self) -> int:
        """Return the bytes of what it reads and writes."""
        return sum(piece.size_bytes for piece in self.reads | self.writes)

    def own_peak(self, alignment: int) -> int:
        """Return the most that its op's own allocations take at once."""
        held, most, own = 0, 0, set()
        for event in self.events:
            if event.allocates and event.inside:
                own.add(event.piece)
            if event.piece in own:
                held += align_up(event.piece.size_bytes, alignment) * (1 if event.allocates else -1)
                most = max(most, held)
        return most


class Draft:
    """One iteration, to be edited.

    Attributes:
        trace: The trace it was made of.
        pieces: Its storages, in order.
        steps: Its ops, in order; `start` has what is allocated and freed before the first.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        held = contents(trace)
        self.pieces = [_piece(storage, held.get(s)) for s, storage in enumerate(trace.storages)]
        self._recorded = tuple(self.pieces)
        self.steps = [self._step(op) for op in trace.ops]
        for piece, storage in zip(self.pieces, trace.storages, strict=True):
            if storage.pinned_from is not None:
                piece.pin = (*self.steps, None)[storage.pinned_from], storage.pinned_by
        self.start: list[Event] = []
        self._place_events()
        for step in self.steps:
            step.recorded_bytes = step.accessed_bytes()
            step.recorded_peak = step.own_peak(trace.alignment)

    def _step(self, op: Op) -> Step:
        reads, writes = (dict.fromkeys(self.pieces[s] for s in ids) for ids in (op.reads, op.writes))
        return Step(op, reads, writes)

    def _place_events(self) -> None:
        """Put each tick's event into the step that it falls into."""
        trace, at_tick = self.trace, dict[int, tuple[Event, int]]()
        for piece, storage in zip(self.pieces, trace.storages, strict=True):
            if not storage.born_before:
                at_tick[storage.alloc_tick] = Event(piece, allocates=True), storage.alloc
            if not trace.outlives(storage):
                at_tick[storage.free_tick] = Event(piece, allocates=False), storage.free
        ends = [op.first_tick for op in trace.ops[1:]] + [trace.ticks]
        step = -1 if trace.ops[0].first_tick else 0
        for tick, (event, index) in sorted(at_tick.items()):
            while (ends[step] if step >= 0 else trace.ops[0].first_tick) <= tick:
                step += 1
            event.inside = not event.allocates or index == step
            (self.steps[step].events if step >= 0 else self.start).append(event)

    def phase(self, *phases: Phase) -> Iterator[Step]:
        """Yield the steps of these phases."""
        return (step for step in self.steps if step.phase in phases)

    def users(self, piece: Piece, *phases: Phase) -> list[Step]:
        """Return the steps that access `piece`; of these phases, if any are named."""
        return [step for step in self.steps if step.uses(piece) and (not phases or step.phase in phases)]

    def maker(self, piece: Piece) -> Step | None:
        """Return the step whose op allocates `piece`."""
        return next((step for step in self.steps if step.makes(piece)), None)

    def drop(self, pieces: Iterable[Piece]) -> None:
        """Take pieces out, with their accesses."""
        gone = set(pieces)
        if not gone:
            return
        self.pieces = [piece for piece in self.pieces if piece not in gone]
        for step in self.steps:
            step.reads = {piece: None for piece in step.reads if piece not in gone}
            step.writes = {piece: None for piece in step.writes if piece not in gone}
        for events in self._event_lists():
            events[:] = [event for event in events if event.piece not in gone]

    def beside(self, piece: Piece, size_bytes: int) -> Piece:
        """Put a piece of `size_bytes` in that lives and is accessed as `piece` is; return it."""
        twin = replace(piece, size_bytes=size_bytes, tensor=None)
        self.pieces.append(twin)
        for step in self.steps:
            for used in (step.reads, step.writes):
                if piece in used:
                    used[twin] = None
        for events in self._event_lists():
            events[:] = [each for e in events for each in ((e, replace(e, piece=twin)) if e.piece is piece else (e,))]
        return twin

    def divide(self, piece: Piece, sizes: Iterable[int]) -> list[Piece]:
        """Put pieces of these sizes in the place of `piece`; return them."""
        parts = [self.beside(piece, size_bytes) for size_bytes in sizes]
        self.drop([piece])
        return parts

    def hold(self, piece: Piece, begin: Step | None = None, end: Step | None = None) -> Piece:
        """Put `piece` in.

        Arguments:
            piece: The new piece.
            begin: The step whose op allocates it; None if it is alive before the iteration.
            end: The step after whose op it is freed; None if it outlives the iteration.

        Returns:
            `piece`.
        """
        piece.born_before = begin is None
        self.pieces.append(piece)
        if begin is not None:
            begin.events.insert(0, Event(piece, allocates=True))
            begin.writes[piece] = None
        if end is not None:
            end.events.append(Event(piece, allocates=False))
        return piece

    def insert(
        self, beside: Step, name: str, reads: Iterable[Piece], makes: Iterable[Piece] = (), *,
        frees: Iterable[Piece] = (), after: bool = False,
    ) -> Step:  # fmt: skip
        """Put an op in, of the phase and the line of the one it is beside.

        Arguments:
            beside: The step before which it runs.
            name: The operator.
            reads: The pieces it reads.
            makes: New pieces, which it allocates and writes.
            frees: Pieces that are freed behind it.
            after: Whether it runs after `beside` instead.

        Returns:
            The new step.
        """
        made = dict.fromkeys(makes)
        self.pieces += made
        read = dict.fromkeys(reads)
        size_bytes = sum(piece.size_bytes for piece in read | made)
        duration_us = beside.op.duration_us * size_bytes / max(beside.recorded_bytes, 1)
        step = Step(Op(name, beside.phase, duration_us, beside.op.source, (), (), 0, 0), read, made)
        step.events = [Event(piece, allocates=True) for piece in made]
        step.events += [Event(piece, allocates=False) for piece in frees]
        step.recorded_bytes = size_bytes
        self.steps.insert(self.steps.index(beside) + after, step)
        return step

    def free_behind(self, step: Step, *pieces: Piece) -> None:
        """Free pieces that nothing frees yet behind a step."""
        step.events += [Event(piece, allocates=False) for piece in pieces]

    def make_in(self, piece: Piece, step: Step) -> None:
        """Let `step` allocate and write `piece`, instead of the step that does."""
        maker = self.maker(piece)
        if maker is not None:
            maker.events = [event for event in maker.events if event.piece is not piece or not event.allocates]
            maker.writes.pop(piece, None)
        step.events.insert(0, Event(piece, allocates=True))
        step.writes[piece] = None

    def end_of(self, piece: Piece) -> Step | None:
        """Return the step behind whose op `piece` is freed."""
        return next((s for s in self.steps if any(e.piece is piece and not e.allocates for e in s.events)), None)

    def last_of_layer(self, step: Step) -> Step:
        """Return the last step of the layer's backward pass that `step` belongs to.

        It goes on as long as products and sums use nothing else of the gradients than what `step` uses.
        """
        came = {piece for piece in step.reads if piece.category is Category.GRADIENT}
        last = step
        for each in self.steps[self.steps.index(step) + 1 :]:
            others = {piece for piece in each.reads if piece.category is Category.GRADIENT} - came
            if others or not _OF_A_LAYER.match(each.op.name):
                break
            last = each
        return last

    def keep_until(self, piece: Piece, step: Step) -> None:
        """Free `piece` behind `step`, if it is freed earlier."""
        end = self.end_of(piece)
        if end is not None and self.steps.index(end) < self.steps.index(step):
            end.events = [event for event in end.events if event.piece is not piece or event.allocates]
            self.free_behind(step, piece)

    def scratch(self, step: Step, size_bytes: int) -> None:
        """Let the op of `step` take `size_bytes` more while it runs."""
        piece = Piece(size_bytes, Category.SCRATCH, step.op.source)
        self.pieces.append(piece)
        step.events = [Event(piece, allocates=True), *step.events, Event(piece, allocates=False)]

    def remove(self, steps: Iterable[Step]) -> None:
        """Take steps out; what is allocated and freed in them is so in the step before."""
        gone, events, kept = set(steps), self.start, []
        for step in self.steps:
            if step in gone:
                events += [replace(event, inside=not event.allocates) for event in step.events]
            else:
                kept.append(step)
                events = step.events
        self.steps = kept

    def free_after_last_use(self, piece: Piece) -> None:
        """Free `piece` after its last access, or where it is made, if it is freed later than that."""
        uses = self.users(piece)
        last = uses[-1] if uses else self.maker(piece)
        for step in reversed(self.steps):
            if step is last:
                return
            freed = [event for event in step.events if event.piece is piece and not event.allocates]
            if freed and last is not None:
                step.events = [event for event in step.events if event not in freed]
                last.events += freed
                return

    def build(self, name: str) -> Trace:
        """Return the draft as a trace, whose signature has `name` behind that of the recorded one.

        An op's duration changes as the bytes that it reads and writes do.
        """
        lives = {piece: _Life() if piece.born_before else None for piece in self.pieces}
        ticks = _count(self.start, lives, 0, -1, len(self.steps))
        firsts = []
        for index, step in enumerate(self.steps):
            firsts.append(ticks)
            ticks = _count(step.events, lives, ticks, index, len(self.steps))
        made = [(piece, life) for piece, life in lives.items() if life is not None]
        ids = {piece: number for number, (piece, _) in enumerate(made)}
        ops = [self._op(step, first, ids) for step, first in zip(self.steps, firsts, strict=True)]
        ops = [_of_the_living(index, op, made) for index, op in enumerate(ops)]
        places = {id(step): index for index, step in enumerate(self.steps)}
        storages = [_pinned(life.storage(piece, len(ops), ticks), piece, places) for piece, life in made]
        return replace(
            self.trace, ops=tuple(ops), storages=tuple(storages), ticks=ticks, before=None,
            signature=f"{self.trace.signature}+{name}", handovers=tuple(self._handovers(ids)),
        )  # fmt: skip

    def _op(self, step: Step, first_tick: int, ids: dict[Piece, int]) -> Op:
        peak, alignment = step.own_peak(self.trace.alignment), self.trace.alignment
        more = step.op.workspace_bytes - step.recorded_peak  # holes between its allocations, and what no tick has
        workspace = peak + align_up(more * peak // step.recorded_peak, alignment) if step.recorded_peak else more + peak
        share = step.accessed_bytes() / step.recorded_bytes if step.recorded_bytes else 1.0
        return replace(
            step.op, reads=_ids(step.reads, ids), writes=_ids(step.writes, ids), first_tick=first_tick,
            workspace_bytes=workspace, duration_us=step.op.duration_us * share,
        )  # fmt: skip

    def _handovers(self, ids: dict[Piece, int]) -> Iterator[Handover]:
        """Yield those of the trace whose op, giver and taker are still there and of one size."""
        at = {id(step.op): index for index, step in enumerate(self.steps)}
        for each in self.trace.handovers:
            index = at.get(id(self.trace.ops[each.op]))
            giver, taker = self._recorded[each.giver], self._recorded[each.taker]
            if index is None or giver not in ids or taker not in ids or giver.size_bytes != taker.size_bytes:
                continue
            step = self.steps[index]
            if giver in step.reads and giver not in step.writes and step.makes(taker):
                yield Handover(index, ids[giver], ids[taker])

    def _event_lists(self) -> list[list[Event]]:
        return [self.start, *(step.events for step in self.steps)]


@dataclass(slots=True)
class _Life:
    """The lifetime of a piece while a trace is made."""

    alloc: int = 0
    alloc_tick: int = BEFORE_FIRST_TICK
    free: int | None = None
    free_tick: int | None = None

    def storage(self, piece: Piece, ops: int, ticks: int) -> Storage:
        free, free_tick = (
            (ops if self.free is None else self.free),
            (ticks if self.free_tick is None else self.free_tick),
        )
        return Storage(
            piece.size_bytes, piece.category, self.alloc, free, self.alloc_tick, free_tick, piece.source, piece.module
        )


def _count(events: Iterable[Event], lives: dict[Piece, _Life | None], ticks: int, step: int, steps: int) -> int:
    """Note the events of step number `step` in `lives`; return the number of ticks after them."""
    for event in events:
        if event.allocates:
            alloc = min(max(step if event.inside else step + 1, 0), steps - 1)
            lives[event.piece] = _Life(alloc, ticks)
        elif (life := lives[event.piece]) is not None:
            life.free, life.free_tick = min(max(step + 1, life.alloc), steps), ticks
        ticks += 1
    return ticks


def _pinned(storage: Storage, piece: Piece, places: Mapping[int, int]) -> Storage:
    """Return `storage` with the pin of `piece`: from its birth on, if the step of the pin is gone."""
    if piece.pin is None:
        return storage
    step, line = piece.pin
    at = storage.free if step is None else places.get(id(step), storage.alloc)
    return replace(storage, pinned_from=min(max(at, storage.alloc), storage.free), pinned_by=line)


def _piece(storage: Storage, tensor: Tensor | None) -> Piece:
    about = (storage.category, storage.source, storage.module, tensor, storage.born_before)
    if tensor is None:
        return Piece(storage.size_bytes, *about)
    return Piece(storage.size_bytes, *about, tensor.item_bytes, tensor.is_float)


def _of_the_living(index: int, op: Op, made: list[tuple[Piece, _Life]]) -> Op:
    """Return `op` without accesses to what does not exist then, as recordings have none."""

    def is_alive(storage: int) -> bool:
        life = made[storage][1]
        return life.alloc <= index and (life.free is None or index < life.free)

    return replace(op, reads=tuple(filter(is_alive, op.reads)), writes=tuple(filter(is_alive, op.writes)))


def _ids(used: Iterable[Piece], ids: dict[Piece, int]) -> tuple[int, ...]:
    return tuple(ids[piece] for piece in used)
