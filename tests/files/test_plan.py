import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import InputError
from memfit.files import load_plan, load_timeline, save_plan, save_timeline
from memfit.ir import Copy, Direction, Map, Plan, Recompute, Stall, Swap, Timeline

COUNT = st.integers(0, 2**40)
SWAPS = st.builds(Swap, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, st.booleans())
OPS_AGAIN = st.lists(COUNT, min_size=1, max_size=4).map(tuple)
RECOMPUTES = st.builds(Recompute, COUNT, COUNT, COUNT, OPS_AGAIN, st.booleans())
MAPS = st.builds(Map, COUNT, OPS_AGAIN, COUNT)
PLANS = st.builds(
    Plan,
    signature=st.text(max_size=5),
    op_count=st.integers(1, 99),
    policy=st.text(max_size=5),
    machine=st.text(max_size=5),
    budget_bytes=COUNT,
    swaps=st.lists(SWAPS, max_size=4).map(tuple),
    footprint_bytes=COUNT,
    recomputes=st.lists(RECOMPUTES, max_size=4).map(tuple),
    maps=st.lists(MAPS, max_size=4).map(tuple),
)
TIME = st.floats(-1e9, 1e9)
WAIT = st.floats(0, 1e9)
DIRECTION = st.sampled_from(Direction)
OPS = st.lists(st.tuples(TIME, TIME, COUNT), max_size=4)


@st.composite
def timelines(draw):
    ops = draw(OPS)
    return Timeline(
        start_us=tuple(row[0] for row in ops),
        end_us=tuple(row[1] for row in ops),
        resident_bytes=tuple(row[2] for row in ops),
        stalls=tuple(draw(st.lists(st.builds(Stall, COUNT, COUNT, DIRECTION, WAIT), max_size=3))),
        copies=tuple(draw(st.lists(st.builds(Copy, COUNT, DIRECTION, COUNT, TIME, TIME), max_size=3))),
        iteration_us=draw(TIME),
        compute_us=draw(TIME),
        host_bytes=draw(COUNT),
    )


@given(PLANS)
def test_a_plan_comes_back_as_it_was(tmp_path_factory, plan):
    path = tmp_path_factory.mktemp("plan") / "p.json"
    save_plan(plan, path)
    assert load_plan(path) == plan


def test_a_plan_of_version_1_loads_without_its_placements(tmp_path):
    placements = {"storage": [0], "begin": [0], "end": [4], "offset_bytes": [512]}
    assert load_plan(edited(tmp_path / "p", save_plan, SWAPPING, version=1, placements=placements)) == SWAPPING


@pytest.mark.parametrize(("version", "lacks"), [(2, "recomputes"), (4, "maps")])
def test_a_plan_of_an_earlier_version_loads_without_what_that_lacks(tmp_path, version, lacks):
    plan = SWAPPING if version == 2 else PLAN
    path = edited(tmp_path / "p", save_plan, plan, version=version)
    document = json.loads(path.read_text())
    del document[lacks]
    path.write_text(json.dumps(document))
    assert load_plan(path) == plan


def test_a_plan_of_version_5_makes_all_again_that_it_drops(tmp_path):
    save_plan(FOR_GOOD, tmp_path / "p")
    assert load_plan(tmp_path / "p") == FOR_GOOD
    document = json.loads((tmp_path / "p").read_text()) | {"version": 5}
    del document["recomputes"]["returns"]
    (tmp_path / "p").write_text(json.dumps(document))
    assert all(one.returns for one in load_plan(tmp_path / "p").recomputes)


def test_a_plan_of_version_3_has_its_recomputes(tmp_path):
    with pytest.raises(InputError, match="field recomputes is not an object"):
        load_plan(edited(tmp_path / "p", save_plan, PLAN, recomputes=[]))


@given(timelines())
def test_a_timeline_comes_back_as_it_was(tmp_path_factory, timeline):
    path = tmp_path_factory.mktemp("timeline") / "t.json.gz"
    save_timeline(timeline, path)
    assert load_timeline(path) == timeline


def edited(path, save, what, **changes):
    save(what, path)
    document = json.loads(path.read_text())
    for section, columns in changes.items():
        document[section] = document.get(section, {}) | columns if isinstance(columns, dict) else columns
    path.write_text(json.dumps(document))
    return path


SWAPPING = Plan("s", 5, "p", "m", 9, (Swap(0, 1, 0, 1, 2, 3, False),))
PLAN = replace(SWAPPING, recomputes=(Recompute(1, 2, 4, (0, 1)), Recompute(2, 2, 4, (1,))))
FOR_GOOD = replace(PLAN, recomputes=(*PLAN.recomputes, Recompute(3, 1, 4, (0,), returns=False)))
TIMELINE = Timeline((0.0,), (1.0,), (3,), (Stall(0, 0, Direction.IN, 1.0),), (), 1.0, 1.0, 0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"swaps": {"cyclic": [2]}}, "swaps.cyclic[0] is 2, outside [0, 1]"),
        ({"swaps": {"in_start": []}}, "swaps.in_start has 0 entries instead of 1"),
        ({"swaps": {"storage": [-1]}}, "swaps.storage[0] is -1"),
        ({"op_count": "x"}, "op_count is not an integer"),
        ({"recomputes": {"length": [1, 1]}}, "recomputes.ops has 3 entries instead of 2"),
        ({"recomputes": {"length": [3, 0]}}, "recomputes.length[1] is 0, outside [1,"),
        ({"recomputes": {"length": [2, True]}}, "recomputes.length[1] is not an integer"),
        ({"recomputes": {"ops": [0, -1, 1]}}, "recomputes.ops[1] is -1"),
        ({"recomputes": {"before": [4]}}, "recomputes.before has 1 entries instead of 2"),
        ({"recomputes": {"storage": "12"}}, "recomputes.storage is not a list"),
        ({"maps": {"length": [2]}}, "maps.op has 0 entries instead of 1"),
        ({"maps": {"length": [0], "op": [1], "frame_bytes": [0]}}, "maps.length[0] is 0, outside [1,"),
        ({"maps": {"length": [1], "op": [1], "frame_bytes": [-1], "storages": [1]}}, "maps.frame_bytes[0] is -1"),
        ({"version": 7}, "newer memfit"),
        ({"format": "memfit-trace"}, "is not a memfit plan"),
    ],
)
def test_a_damaged_plan_names_the_field(tmp_path, changes, says):
    with pytest.raises(InputError) as error:
        load_plan(edited(tmp_path / "p", save_plan, PLAN, **changes))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ops": {"end_us": ["x"]}}, "ops.end_us[0] is not a finite number"),
        ({"ops": {"end_us": [True]}}, "ops.end_us[0] is not a finite number"),
        ({"stalls": {"direction": [2]}}, "stalls.direction[0] is 2"),
        ({"stalls": {"duration_us": [-1]}}, "stalls.duration_us[0] is not a duration"),
        ({"iteration_us": None}, "iteration_us is not a finite number"),
    ],
)
def test_a_damaged_timeline_names_the_field(tmp_path, changes, says):
    with pytest.raises(InputError) as error:
        load_timeline(edited(tmp_path / "t", save_timeline, TIMELINE, **changes))
    assert says in str(error.value)
