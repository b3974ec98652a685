import numpy as np
import pytest

from events_builder import DATA, needs_data
from memfit.errors import InputError
from memfit.events import events_of_lifetimes
from memfit.files.paper_text import (
    PaperAccess,
    load_paper_access_lifetimes,
    load_paper_accesses,
    load_paper_mallocs,
)

MALLOCS = "action,address,bytes\nmalloc,0x10,100\nmalloc,0x20,200\nfree,0x10,\nmalloc,0x10,50\nfree,0x20,\n"
ACCESSES = (
    "index,action,block,bytes,time_ns\n0,malloc,0x10,100,0\n1,read,0x30,7,5\n2,mutable,0x10,100,5\n"
    "3,free,0x10,100,6\n4,layer,0x30,7,9\n5,malloc,0x10,40,9\n6,free,0x30,7,12\n"
)


def written(path, text):
    path.write_text(text)
    return path


def rows_of(lifetimes):
    return list(zip(lifetimes.lower.tolist(), lifetimes.upper.tolist(), lifetimes.size.tolist(), strict=True))


def test_an_address_is_a_new_lifetime_each_time(tmp_path):
    lifetimes = load_paper_mallocs(written(tmp_path / "t.csv", MALLOCS))
    assert rows_of(lifetimes) == [(1, 3, 100), (2, 5, 200), (4, 6, 50)]
    assert events_of_lifetimes(lifetimes).steps == (0, 1, ~0, 2, ~1, ~2)


def test_accesses_and_what_they_say_is_alive_before(tmp_path):
    path = written(tmp_path / "t.csv", ACCESSES)
    assert load_paper_accesses(path)[2] == PaperAccess("mutable", 0x10, 100, 5)
    assert len(load_paper_accesses(path)) == 7
    assert rows_of(load_paper_access_lifetimes(path)) == [(0, 7, 7), (1, 4, 100), (6, 8, 40)]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is not a trace of the SmartPool paper"),
        ("id,lower,upper,size\n", "its first line is 'id,lower,upper,size'"),
        ("action,address,bytes\nmalloc,0x10\n", "line 2 has 2 fields instead of 3"),
        ("action,address,bytes\nrealloc,0x10,5\n", "line 2: action is 'realloc', not one of malloc, free"),
        ("action,address,bytes\nmalloc,10,5\n", "line 2: address is not an address"),
        ("action,address,bytes\nmalloc,0x10,\n", "line 2: bytes is not an integer: ''"),
        ("action,address,bytes\nmalloc,0x10,-5\n", "line 2: bytes is -5"),
        ("action,address,bytes\nmalloc,0x10,5\nfree,0x10,5\n", "line 3: bytes is given for a free"),
        ("action,address,bytes\nmalloc,0x10,5\nmalloc,0x10,5\n", "line 3: address is 0x10, which is allocated already"),
        ("action,address,bytes\nmalloc,0x10,5\nfree,0x20,\n", "line 3: address is 0x20, which is not allocated"),
    ],
)
def test_malformed_mallocs(tmp_path, text, match):
    with pytest.raises(InputError, match=match) as caught:
        load_paper_mallocs(written(tmp_path / "t.csv", text))
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (ACCESSES.replace("1,read", "2,read"), "line 3: index is 2, not 1"),
        (ACCESSES.replace("1,read", "1,write"), "line 3: action is 'write'"),
        (ACCESSES.replace("7,12\n", "7,8\n"), "line 8: time_ns is 8, outside"),
        (ACCESSES.replace("0x30,7,5", "0x30,,5"), "line 3: bytes is not an integer"),
        (ACCESSES.replace("3,free", "3,malloc"), "line 5: block is 0x10, which is allocated already"),
        (ACCESSES.replace("4,layer,0x30", "4,free,0x10"), "line 6: block is 0x10, which is not allocated"),
    ],
)
def test_malformed_accesses(tmp_path, text, match):
    with pytest.raises(InputError, match=match):
        load_paper_access_lifetimes(written(tmp_path / "t.csv", text))


@needs_data
def test_the_published_accesses_have_the_published_load():
    lifetimes = load_paper_access_lifetimes(DATA / "paper" / "cifar10_vgg_b100_accesses.csv")
    load = np.loadtxt(DATA / "paper" / "cifar10_vgg_b100_load.csv", delimiter=",", skiprows=1, dtype=np.int64)[:, 1]
    change = np.zeros(len(load) + 3, dtype=np.int64)
    np.add.at(change, lifetimes.lower, lifetimes.size)
    np.subtract.at(change, lifetimes.upper, lifetimes.size)
    live = np.cumsum(change)[1:-2]
    # The load counts 13.76 MB more, of blocks that these iterations never access, and is rounded to 1,000 bytes. In the
    # third iteration it breaks off.
    never_accessed = (load - live)[: 2 * 3172]
    assert np.ptp(never_accessed) <= 2000 and abs(never_accessed[0] - 13_762_492) < 1000
    assert int(np.argmax(load)) == int(np.argmax(live)) == 1369
