"""A trace with remakings that keeps every promise, and each promise broken once."""

from dataclasses import replace

import pytest

from memfit.planning.autoswap.candidates import ANY_GAP, candidates
from memfit.planning.joint.arrange import arrange
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.validate_joint import InvalidRemakingsError, JointPromise, check_joint, require_valid_joint
from planning.joint.test_transformed import layers
from trace_builder import TraceBuilder

TRACE, SAVED = layers()
GAPS = {gap.storage: gap for gap in candidates(TRACE, ANY_GAP)}
VALUES = Values.of(TRACE)
(ONE,) = arrange(VALUES, [GAPS[SAVED[2]]])
MADE = with_recomputes(VALUES, [ONE])
AGAIN = MADE.runs_again.index(True)


def changed_op(index, **changes):
    ops = [replace(op, **changes) if at == index else op for at, op in enumerate(MADE.trace.ops)]
    return replace(MADE, trace=replace(MADE.trace, ops=tuple(ops)))


def broken(made):
    violation = check_joint(TRACE, made)
    assert violation is not None
    return violation.promise


def test_a_trace_with_remakings_keeps_every_promise():
    assert check_joint(TRACE, MADE) is None
    require_valid_joint(TRACE, MADE)


def test_an_op_that_is_another_is_found():
    assert broken(changed_op(AGAIN, name="aten::mm")) is JointPromise.OPS
    assert broken(changed_op(AGAIN, duration_us=0.0)) is JointPromise.OPS
    assert broken(replace(MADE, runs_again=(False,) * len(MADE.runs_again))) is JointPromise.OPS


def test_other_sizes_are_found():
    storages = (replace(MADE.trace.storages[0], size_bytes=1), *MADE.trace.storages[1:])
    assert broken(replace(MADE, trace=replace(MADE.trace, storages=storages))) is JointPromise.STORAGE
    assert broken(replace(MADE, trace=replace(MADE.trace, alignment=2))) is JointPromise.STORAGE


def test_an_op_that_allocates_less_is_found():
    inside = next(s for s, storage in enumerate(MADE.trace.storages) if storage.alloc == AGAIN)
    moved = replace(MADE.trace.storages[inside], alloc=AGAIN + 1)
    storages = tuple(moved if s == inside else storage for s, storage in enumerate(MADE.trace.storages))
    assert broken(replace(MADE, trace=replace(MADE.trace, storages=storages))) is JointPromise.ALLOCATIONS


def test_a_use_of_what_is_not_alive_is_found():
    dropped = next(s for s in range(len(MADE.storage_of)) if MADE.storage_of[s] == SAVED[2])
    assert broken(changed_op(AGAIN, reads=(dropped,))) is JointPromise.LIFETIME


def test_another_value_is_found():
    wrong = with_recomputes(VALUES, [replace(ONE, ops=ONE.ops[:-1])])  # without its activation
    assert broken(wrong) is JointPromise.VALUES
    with pytest.raises(InvalidRemakingsError, match="reads other values"):
        require_valid_joint(TRACE, wrong)


def test_statistics_that_are_updated_twice_are_found():
    norm = next(i for i, op in enumerate(MADE.trace.ops) if MADE.runs_again[i] and "batch_norm" in op.name)
    mean = 1
    op = MADE.trace.ops[norm]
    assert broken(changed_op(norm, writes=(mean, *op.writes))) is JointPromise.END


def test_a_storage_that_is_freed_by_a_tick_of_another_one_is_found():
    builder = TraceBuilder()
    unused = builder.before(64)
    (x,) = builder.op("aten::mm", outputs=[8])
    builder.op("aten::mm", reads=[x], outputs=[8])
    builder.other_tick()
    builder.op("aten::mm", reads=[x], outputs=[8])
    builder.free(unused)
    builder.op("aten::mm", reads=[x])
    trace = builder.build()
    made = with_recomputes(Values.of(trace), ())
    assert check_joint(trace, made) is None
    early = replace(made.trace.storages[0], free=2, free_tick=made.trace.ops[2].first_tick - 1)
    storages = (early, *made.trace.storages[1:])
    found = check_joint(trace, replace(made, trace=replace(made.trace, storages=storages)))
    assert found is not None and found.promise is JointPromise.FREES
