import gzip
import os

import pytest

from memfit.errors import InputError
from memfit.files.document import read_document, write_document


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_document(path, "thing", 1, {"n": 1})

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(InputError, match="No space left"):
        write_document(path, "thing", 1, {"n": 2})
    monkeypatch.undo()
    assert read_document(path, "thing", 1).integer("n", 0) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_the_old_file_stands_until_the_new_one_is_complete(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_document(path, "thing", 1, {"n": 1})
    seen = []
    replace = os.replace

    def spy(source, target):
        seen.append((os.path.dirname(source), read_document(source, "thing", 1).integer("n", 0)))
        seen.append((os.path.dirname(target), read_document(target, "thing", 1).integer("n", 0)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", spy)
    write_document(path, "thing", 1, {"n": 2})
    assert seen == [(str(tmp_path), 2), (str(tmp_path), 1)]


def test_files_obey_the_umask_like_any_other(tmp_path):
    old = os.umask(0o022)
    try:
        write_document(tmp_path / "a.json", "thing", 1, {})
    finally:
        os.umask(old)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o644


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(InputError, match="cannot write .*nowhere"):
        write_document(tmp_path / "nowhere" / "a.json", "thing", 1, {})


def test_gz_follows_the_name_on_writing_and_the_content_on_reading(tmp_path):
    write_document(tmp_path / "a.json.gz", "thing", 1, {"n": 5})
    packed = (tmp_path / "a.json.gz").read_bytes()
    assert b'"n":5' in gzip.decompress(packed)
    (tmp_path / "renamed.json").write_bytes(packed)
    assert read_document(tmp_path / "renamed.json", "thing", 1).integer("n", 0) == 5


def test_equal_content_makes_equal_files(tmp_path):
    for name in ("a.gz", "b.gz"):
        write_document(tmp_path / name, "thing", 1, {"n": 5})
    packed = (tmp_path / "a.gz").read_bytes()
    assert packed == (tmp_path / "b.gz").read_bytes()
    assert packed[4:8] == bytes(4)  # gzip's time stamp


def test_not_a_number_is_never_written(tmp_path):
    with pytest.raises(ValueError):
        write_document(tmp_path / "a.json", "thing", 1, {"n": float("nan")})
    assert list(tmp_path.iterdir()) == []


def refused(path, content, match):
    path.write_bytes(content)
    with pytest.raises(InputError, match=match) as caught:
        read_document(path, "thing", 3)
    assert str(path) in str(caught.value)
    assert caught.value.remedy


def test_what_is_not_such_a_document_is_refused_with_its_reason(tmp_path):
    path = tmp_path / "a.json"
    refused(path, b"", "is not JSON")
    refused(path, b'{"format": "memfit-thi', "is not JSON")
    refused(path, b"\xff\xfe\x00binary", "is not JSON")
    refused(path, b"[" * 100_000, "is not JSON")
    refused(path, b"[1, 2]", "no memfit header")
    refused(path, b'{"a": 1}', "no memfit header")
    refused(path, b'{"format": "memfit-plan", "version": 1}', "is not a memfit thing\n.*'memfit-plan'")
    refused(path, b'{"format": "memfit-thing"}', "version is missing")
    refused(path, b'{"format": "memfit-thing", "version": "1"}', "version is not an integer")
    refused(path, b'{"format": "memfit-thing", "version": 0}', "version is 0")
    refused(path, b'{"format": "memfit-thing", "version": 4}', "newer memfit\n.*reads up to 3")
    refused(path, gzip.compress(b'{"format": "memfit-thing", "version": 1}')[:-9], "cannot unpack")


def test_an_older_version_is_read(tmp_path):
    write_document(tmp_path / "a.json", "thing", 2, {"n": 5})
    assert read_document(tmp_path / "a.json", "thing", 3).integer("version", 1) == 2


def test_unreadable_paths(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_document(tmp_path / "missing.json", "thing", 1)
    with pytest.raises(InputError, match="directory"):
        read_document(tmp_path, "thing", 1)
