import gzip
import os
import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import InputError
from memfit.files.plain_pickle import brief, load_plain_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(value=PLAIN, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_data_comes_back_as_it_is(tmp_path_factory, value, protocol):
    path = tmp_path_factory.mktemp("p") / "a.pickle"
    path.write_bytes(pickle.dumps(value, protocol))
    if protocol <= 2 and contains_bytes(value):
        with pytest.raises(InputError, match="not a pickle of plain data"):  # they are built by a call there
            load_plain_pickle(path)
    else:
        assert load_plain_pickle(path) == value


def contains_bytes(value):
    if isinstance(value, dict):
        return any(map(contains_bytes, value.values()))
    return isinstance(value, bytes) or (isinstance(value, list | tuple) and any(map(contains_bytes, value)))


def test_a_gzipped_one(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(pickle.dumps({"a": 1})))
    assert load_plain_pickle(tmp_path / "a") == {"a": 1}


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (os.system, (f"touch {self.marker}",))


class Plain:
    pass


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_executed(tmp_path, protocol):
    marker = tmp_path / "ran"
    (tmp_path / "a").write_bytes(pickle.dumps({"segments": [Hostile(marker)]}, protocol))
    with pytest.raises(InputError, match=r"not a pickle of plain data\n.*names (posix|nt)\.system") as caught:
        load_plain_pickle(tmp_path / "a")
    assert not marker.exists()
    assert "do not load this file with pickle" in caught.value.remedy


SHORT = pickle.dumps("touch ran", 2)[2:-1]


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (pickle.dumps(Plain(), 5), "names .*Plain"),
        (pickle.dumps(Plain(), 0), "names copy"),
        (b"cos\nsystem\n.", "names os.system"),
        (b"(S'touch ran'\nios\nsystem\n.", "names os.system"),
        (b"(cos\nsystem\nS'touch ran'\no.", "names os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "names os.system"),
        (b"\x80\x02cbuiltins\neval\n.", "names builtins.eval"),
        (b"\x80\x02cbuiltins\ndict\n.", "names builtins.dict"),
        (b"Pid\n.", "an object outside"),
        (b"\x80\x02K\x01Q.", "an object outside"),
    ],
)
def test_every_way_to_a_global_is_refused(tmp_path, program, match):
    (tmp_path / "a").write_bytes(program)
    with pytest.raises(InputError, match=match):
        load_plain_pickle(tmp_path / "a")


DOUBLED = b")\x940" + b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86\x940" for i in range(60)) + b"h\x3c"
"""A tuple of twice a tuple of twice ...: 2**60 steps to hash it, in C, which no signal ends."""


@pytest.mark.timeout(20, method="thread")
@pytest.mark.parametrize(
    ("program", "match"),
    [
        (b"\x80\x04}" + DOUBLED + b"K\x01s.", "has a tuple as a key"),
        (b"\x80\x04}(" + DOUBLED + b"K\x01u.", "has a tuple as a key"),
        (b"\x80\x04}(K\x01K\x01" + DOUBLED + b"K\x01u.", "has a tuple as a key"),
        (b"\x80\x04(" + DOUBLED + b"K\x01d.", "has a tuple as a key"),
        (b"\x80\x04\x8f(" + DOUBLED + b"\x90.", "holds a set"),
        (b"\x80\x04(" + DOUBLED + b"\x91.", "holds a set"),
        (b"\x80\x03}]K\x01s.", "has a list as a key"),
        (b"\x80\x03}}K\x01s.", "has a dict as a key"),
    ],
)
def test_what_takes_for_ever_to_hash_is_refused(tmp_path, program, match):
    (tmp_path / "a").write_bytes(program)
    with pytest.raises(InputError, match=match):
        load_plain_pickle(tmp_path / "a")


def test_it_may_be_a_value(tmp_path):
    (tmp_path / "a").write_bytes(b"\x80\x04" + DOUBLED + b".")
    assert isinstance(load_plain_pickle(tmp_path / "a"), tuple)


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b"\x80",
        b"\x80\x09N.",
        b"not a pickle",
        b"}.}"[1:],
        b"\x80\x02\x82\x01.",  # an extension code
        b"\x80\x02X\x01\x00\x00\x00f)R.",  # calls a string
        b"\x80\x02]}K\x01K\x02sb.",  # sets the state of a list
        b"\x80\x02K\x01K\x02s.",
        b"\x80\x02h\x05.",  # what was never stored
        b"\x80\x02X" + struct.pack("<I", 4_000_000_000) + b"a.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 63) + b"N.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b".",
        b"\x80\x02X\x01\x00\x00\x00\xff.",
        b"\x80\x02(.",
        b"I12x\n.",
        b"F1.x\n.",
        b"S'unended\n.",
    ],
)
def test_damaged_ones_are_one_error(tmp_path, program):
    (tmp_path / "a").write_bytes(program)
    with pytest.raises(InputError, match="cannot unpickle") as caught:
        load_plain_pickle(tmp_path / "a")
    assert caught.value.remedy


@given(data=st.data())
def test_cut_short_or_changed_anywhere_it_is_an_error_or_plain(tmp_path_factory, data):
    whole = pickle.dumps({"segments": [{"address": 2**40, "blocks": ["a", (1, 2.5, None)]}]})
    cut = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[cut] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("p") / "a"
    path.write_bytes(whole[:cut])
    with pytest.raises(InputError):
        load_plain_pickle(path)
    path.write_bytes(bytes(changed))
    try:
        value = load_plain_pickle(path)
    except InputError:
        return
    assert isinstance(value, dict | list | tuple | str | int | float | bool | bytes | bytearray | type(None))


def test_what_is_in_a_file_is_told_in_few_words():
    doubled: list = []
    for _ in range(60):
        doubled = [doubled, doubled]
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert brief(doubled) == "a list of 2" and brief(deep) == "a list of 1"
    assert brief(10**9000) == "an integer of 29898 bits" and brief(-1) == "-1" and brief(None) == "None"
    assert brief("x" * 1000) == repr("x" * 60) and brief({}) == "a dict of 0"
