import os
import pickle

import pytest

from memfit.errors import InputError
from memfit.files import load_snapshot
from snapshot_builder import block, event, frame, freed, save, segment, snapshot


def rows_of(lifetimes):
    columns = (lifetimes.lower.tolist(), lifetimes.upper.tolist(), lifetimes.size.tolist())
    return list(zip(*columns, strict=True))


def loaded(tmp_path, value, **options):
    return load_snapshot(save(tmp_path / "s.pickle", value), **options)


def test_allocs_and_frees_are_lifetimes_of_the_sizes_requested(tmp_path):
    trace = [
        event("segment_alloc", 4096, 2 << 20),
        event("alloc", 4096, 1000),
        event("alloc", 5120, 77),
        *freed(4096, 1000),
        event("alloc", 4096, 50),
    ]
    segments = (segment(4096, block(512, 50), block(512, 0, "inactive"), block(512, 77)),)
    lifetimes = loaded(tmp_path, snapshot(trace, segments=segments))
    assert rows_of(lifetimes) == [(2, 5, 1000), (3, 7, 77), (6, 7, 50)]
    assert lifetimes.ids == ("0", "1", "2") and lifetimes.sources == ()


def test_a_block_waiting_for_another_stream_is_alive_until_its_free_completed(tmp_path):
    trace = [
        event("alloc", 512, 10),
        event("free_requested", 512, 10),
        event("alloc", 1024, 20),
        event("free_completed", 512, 10),
    ]
    assert rows_of(loaded(tmp_path, snapshot(trace))) == [(1, 4, 10), (3, 5, 20)]
    waiting = [*freed(256, 1), *trace[:3]]
    assert rows_of(loaded(tmp_path, snapshot(waiting))) == [(0, 2, 1), (3, 6, 10), (5, 6, 20)]


def test_a_recording_may_leave_out_completions(tmp_path):
    trace = [event("alloc", 512, 10), event("free_requested", 512, 10), event("alloc", 512, 20)]
    assert rows_of(loaded(tmp_path, snapshot(trace))) == [(1, 2, 10), (3, 4, 20)]


def test_what_was_alive_at_the_start_is_known_by_its_free_or_by_the_segments(tmp_path):
    trace = [event("alloc", 512, 10), *freed(2048, 99)]
    segments = (
        segment(512, block(512, 10), block(512, 333), block(512, 444, "active_awaiting_free")),
        segment(2048, block(512, 0, "inactive")),
        segment(1 << 30, block(512, 7), device=1),
    )
    lifetimes = loaded(tmp_path, snapshot(trace, segments=segments))
    assert rows_of(lifetimes) == [(0, 3, 99), (0, 4, 333), (0, 4, 444), (1, 4, 10)]


def test_blocks_without_addresses_follow_each_other(tmp_path):
    whole = segment(512, block(512, 10), block(1024, 5, "inactive"), block(512, 20))
    for each in whole["blocks"]:
        del each["address"], each["requested_size"]
    del whole["device"]
    trace = [event("alloc", 512 + 1536, 20)]
    assert rows_of(loaded(tmp_path, snapshot(trace, segments=(whole,)))) == [(0, 2, 512), (1, 2, 20)]


@pytest.mark.parametrize(
    "action", ["segment_map", "segment_unmap", "segment_free", "snapshot", "oom", "workspace_snapshot"]
)
def test_other_actions_take_time_only(tmp_path, action):
    other = event(action, 512, 5, device_free=3)
    if action == "oom":
        del other["addr"]
    trace = [other, event("alloc", 512, 10), other]
    assert rows_of(loaded(tmp_path, snapshot(trace))) == [(2, 4, 10)]


def test_the_first_versions_say_free(tmp_path):
    assert rows_of(loaded(tmp_path, snapshot([event("alloc", 512, 10), event("free", 512, 10)]))) == [(1, 2, 10)]


def test_later_fields_are_passed_over(tmp_path):
    trace = [
        event("alloc", 512, 10, compile_context="N/A", user_metadata="", pool_id=(0, 0), unknown=[None, 1.5, True])
    ]
    assert rows_of(loaded(tmp_path, snapshot(trace, later={"a": (1,)}))) == [(1, 2, 10)]


def test_a_pause_in_the_recording(tmp_path):
    # The free of the first block and the alloc of the third were not recorded.
    trace = [event("alloc", 512, 10), event("alloc", 512, 20), *freed(512, 20), *freed(512, 30)]
    assert rows_of(loaded(tmp_path, snapshot(trace))) == [(1, 2, 10), (2, 4, 20)]


def test_the_device_with_most_events_or_the_one_that_is_named(tmp_path):
    value = snapshot([event("alloc", 512, 1)], [], [event("alloc", 512, 2), event("alloc", 1024, 3)])
    assert rows_of(loaded(tmp_path, value)) == [(1, 3, 2), (2, 3, 3)]
    assert rows_of(loaded(tmp_path, value, device=0)) == [(1, 2, 1)]
    for device in (1, 3, -1):
        with pytest.raises(InputError, match=rf"no event on device {device}\n.*devices: 0, 2"):
            loaded(tmp_path, value, device=device)


@pytest.mark.parametrize(
    ("frames", "source"),
    [
        (
            [frame("/x/torch/nn/linear.py", 9), frame("/home/me/train.py", 3), frame("/home/me/main.py", 1)],
            "/home/me/train.py:3",
        ),
        ([frame("??", 0, "malloc"), frame("alloc.cpp", 7), frame("a.py", 2)], "a.py:2"),
        ([frame("/x/torch/nn/linear.py", 9), frame("/x/torch/nn/module.py", 4)], "/x/torch/nn/linear.py:9"),
        ([frame("alloc.cpp", 7)], ""),
        ([], ""),
    ],
)
def test_the_line_that_allocated(tmp_path, frames, source):
    marker = event("alloc", 512, 1, frames=[frame("marker.py", 1)])
    lifetimes = loaded(tmp_path, snapshot([marker, event("alloc", 1024, 1, frames=frames)]))
    assert lifetimes.sources == ("marker.py:1", source)


def test_the_lines_of_blocks_that_were_there_before(tmp_path):
    segments = (segment(2048, block(512, 10, frames=[frame()])),)
    lifetimes = loaded(tmp_path, snapshot([event("alloc", 512, 1)], segments=segments))
    assert lifetimes.sources == ("/home/me/train.py:3", "")


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_every_protocol(tmp_path, protocol):
    path = save(tmp_path / "s", snapshot([event("alloc", 512, 10)]), protocol)
    assert rows_of(load_snapshot(path)) == [(1, 2, 10)]


ALLOC = event("alloc", 512, 10)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ([ALLOC], "the snapshot is not a dict"),
        ({"segments": []}, "device_traces is missing"),
        ({"device_traces": {}, "segments": []}, "device_traces is not a list"),
        ({"device_traces": [5], "segments": []}, r"device_traces\[0\] is not a list"),
        (snapshot([ALLOC, "alloc"]), r"device_traces\[0\]\[1\] is not a dict: 'alloc'"),
        (snapshot([ALLOC, {"addr": 1}]), r"device_traces\[0\]\[1\]\.action is missing"),
        (snapshot([event("alloc", "512", 10)]), r"device_traces\[0\]\[0\]\.addr is not an integer: '512'"),
        (snapshot([event("alloc", 512, 1.0)]), r"device_traces\[0\]\[0\]\.size is not an integer: 1\.0"),
        (snapshot([event("alloc", 512, True)]), r"device_traces\[0\]\[0\]\.size is not an integer: True"),
        (snapshot([event("alloc", 512, -1)]), r"device_traces\[0\]\[0\]\.size is -1, outside"),
        (snapshot([event("alloc", 512, 2**63)]), r"size is 9223372036854775808, outside"),
        (snapshot([event(3, 512, 1)]), r"action is not a string: 3"),
        (snapshot([event("alloc", 512, 1, frames=7)]), r"device_traces\[0\]\[0\]\.frames is not a list"),
        (snapshot([event("alloc", 512, 1, frames=[{"filename": "a.py"}])]), r"frames\[0\]\.line is missing"),
        ({"device_traces": [[ALLOC]]}, "segments is missing"),
        (snapshot([ALLOC], segments=[{"address": 1}]), r"segments\[0\]\.blocks is missing"),
        (
            snapshot([ALLOC], segments=(segment(512, block(512, state=None)),)),
            r"segments\[0\]\.blocks\[0\]\.state is not",
        ),
        (snapshot(), "holds no trace\n.*history was not recorded"),
        (snapshot([], []), "holds no trace"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(tmp_path, value, match):
    with pytest.raises(InputError, match=match) as caught:
        loaded(tmp_path, value)
    assert "s.pickle" in str(caught.value) and "_record_memory_history" in caught.value.remedy


def test_a_small_file_whose_whole_text_would_be_endless_or_too_deep_is_named_at_once(tmp_path):
    endless = b"\x80\x04)" + b"2\x86" * 60 + b"."
    deep = b"\x80\x04" + b"]" * 9999 + b"a" * 9998 + b"."
    for name, content in (("endless", endless), ("deep", deep)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="is not a dict: a (list|tuple) of"):
            load_snapshot(tmp_path / name)


def test_hostile_and_truncated_files(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'ran'}",))

    with pytest.raises(InputError, match="not a pickle of plain data"):
        loaded(tmp_path, snapshot([event("alloc", 512, 10, frames=Hostile())]))
    assert not (tmp_path / "ran").exists()
    whole = pickle.dumps(snapshot([ALLOC] * 50))
    for length in (0, 1, 20, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(InputError, match="cannot unpickle"):
            load_snapshot(tmp_path / "cut")
