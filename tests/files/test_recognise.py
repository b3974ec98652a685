import gzip
import pickle

import pytest

from events_builder import DATA, needs_data
from memfit.errors import InputError, UsageError
from memfit.files import load_events, load_lifetimes, save_trace
from memfit.files.recognise import Format, recognise
from snapshot_builder import event, snapshot
from trace_builder import TraceBuilder

CSV = b"id,lower,upper,size\n0,0,1,5\n"
BARE = b"0,0,1,5\n"
MALLOCS = b"action,address,bytes\nmalloc,0x1,5\n"
ACCESSES = b"index,action,block,bytes,time_ns\n0,malloc,0x1,5,0\n"
SNAPSHOT = snapshot([event("alloc", 512, 5)])


def trace_bytes(tmp_path):
    builder = TraceBuilder()
    builder.before(5)
    builder.op()
    save_trace(builder.build(), tmp_path / "x.json")
    return (tmp_path / "x.json").read_bytes()


@pytest.mark.parametrize("packed", [False, True])
def test_each_format_is_known_by_its_content(tmp_path, packed):
    contents = {
        Format.TRACE: [trace_bytes(tmp_path), b" \n" + trace_bytes(tmp_path)],
        Format.SNAPSHOT: [pickle.dumps(SNAPSHOT, protocol) for protocol in range(6)],
        Format.PAPER_MALLOCS: [MALLOCS, MALLOCS.replace(b"\n", b"\r\n")],
        Format.PAPER_ACCESSES: [ACCESSES],
        Format.LIFETIMES: [CSV, BARE, b"\xef\xbb\xbf" + CSV, b"\n\n" + CSV],
    }
    path = tmp_path / "file.bin"
    for kind, datas in contents.items():
        for data in datas:
            path.write_bytes(gzip.compress(data) if packed else data)
            assert recognise(path) is kind
            assert load_lifetimes(path).size.tolist() == [5]
            assert load_events(path).sizes == (5,)


@pytest.mark.parametrize("data", [b"", b"hello\n", b"\x00\x01\x02", b"\x7fELF"])
def test_what_is_none_of_them_is_refused(tmp_path, data):
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(InputError, match="not a file memfit can read") as caught:
        load_lifetimes(tmp_path / "f")
    assert caught.value.remedy


def test_a_damaged_file_is_named_for_what_it_was(tmp_path):
    (tmp_path / "f").write_bytes(trace_bytes(tmp_path)[:-20])
    with pytest.raises(InputError, match="is not JSON"):
        load_events(tmp_path / "f")
    (tmp_path / "f").write_bytes(pickle.dumps(SNAPSHOT)[:-20])
    with pytest.raises(InputError, match="cannot unpickle"):
        load_events(tmp_path / "f")


def test_a_device_is_for_snapshots(tmp_path):
    (tmp_path / "f").write_bytes(CSV)
    with pytest.raises(UsageError, match="no devices"):
        load_events(tmp_path / "f", device=0)
    (tmp_path / "f").write_bytes(trace_bytes(tmp_path))
    with pytest.raises(UsageError, match="it is a memfit trace"):
        load_events(tmp_path / "f", device=0)
    (tmp_path / "f").write_bytes(pickle.dumps(SNAPSHOT))
    assert load_events(tmp_path / "f", device=0).sizes == (5,)


def test_a_trace_keeps_what_its_lifetimes_do_not_tell(tmp_path):
    (tmp_path / "f").write_bytes(trace_bytes(tmp_path))
    events = load_events(tmp_path / "f")
    assert (events.steps, events.initial) == ((0,), 1)


@needs_data
def test_the_public_files_are_known():
    kinds = {path.stem: recognise(path) for path in DATA.rglob("*.csv") if "load" not in path.name}
    assert kinds.pop("cifar10_vgg_b100_accesses") is Format.PAPER_ACCESSES
    mallocs = {name for name, kind in kinds.items() if kind is Format.PAPER_MALLOCS}
    assert mallocs == {"cifar10_vgg_b100_mallocs", "cifar10_alexnet_b100_mallocs"}
    assert {kind for name, kind in kinds.items() if name not in mallocs} == {Format.LIFETIMES}
