"""Symbolic replay: what every op reads, as a hash of all that led to it."""

from memfit.planning.joint.again import updates_statistics


def reads(trace, names, *, op_of=None, storage_of=None, runs_again=None):
    """What each op that is not run again reads; `names` (shared between replays) numbers the values.

    Random ops make the same value when they run again. A norm's statistics are not read.
    """
    op_of = op_of or range(len(trace.ops))
    storage_of = storage_of or range(len(trace.storages))
    runs_again = runs_again or [False] * len(trace.ops)

    def name(*parts):
        return names.setdefault(parts, len(names))

    held = {s: name("before", storage_of[s]) for s, storage in enumerate(trace.storages) if storage.born_before}
    seen = []
    for index, op in enumerate(trace.ops):
        first = op.first_tick
        until = trace.ops[index + 1].first_tick if index + 1 < len(trace.ops) else trace.ticks
        born = {s for s, storage in enumerate(trace.storages) if first <= storage.alloc_tick < until}
        statistics = {s for s in op.writes if updates_statistics(op) and trace.recurs(trace.storages[s])}
        assert all(trace.storages[s].alloc <= index < trace.storages[s].free for s in (*op.reads, *op.writes))
        inputs = [s for s in dict.fromkeys((*op.reads, *op.writes)) if s not in statistics and s not in born]
        values = tuple(sorted((storage_of[s], held.get(s, name("fresh", storage_of[s]))) for s in inputs))
        if not runs_again[index]:
            seen.append((op_of[index], values))
        for storage in op.writes:
            held[storage] = name(op_of[index], storage_of[storage], values)
    return seen
