import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events_builder import DATA, needs_data
from memfit.errors import InputError
from memfit.events import lifetimes_of_rows
from memfit.files import load_lifetimes_csv, save_lifetimes_csv


def written(path, text):
    path.write_text(text)
    return path


def rows_of(lifetimes):
    columns = (lifetimes.lower.tolist(), lifetimes.upper.tolist(), lifetimes.size.tolist())
    return list(zip(lifetimes.ids, *columns, strict=True))


EXPECTED = [("a", 0, 5, 64), ("7", 2, 3, 0)]


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("id,lower,upper,size\na,0,5,64\n7,2,3,0\n", None),
        ("a,0,5,64\n7,2,3,0", None),
        ("a,0,5,64,128\n7,2,3,0,0\n", [128, 0]),
        ("size,offset,Lower,UPPER,id\n64,128,0,5,a\n0,0,2,3,7\n", [128, 0]),
        ("\ufeffid, lower, upper, size\r\n\r\n a , 0, 5, 64\r\n7,2,3,0\r\n\r\n", None),
        ('id,lower,upper,size\n"a",0,5,64\n7,2,3,0', None),
    ],
)
def test_each_way_to_write_the_same_rows(tmp_path, text, offset):
    table = load_lifetimes_csv(written(tmp_path / "t.csv", text))
    assert rows_of(table.lifetimes) == EXPECTED
    assert (table.offset if table.offset is None else table.offset.tolist()) == offset
    assert table.lifetimes.lower.dtype == np.int64


def test_a_header_alone_is_a_table_of_nothing(tmp_path):
    assert len(load_lifetimes_csv(written(tmp_path / "t.csv", "id,lower,upper,size\n")).lifetimes) == 0


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is empty"),
        ("id,lower,upper\na,0,1", "line 1: 'size' is missing"),
        ("id,lower,upper,size,hint\na,0,1,2,3", "line 1: 'hint' is a column memfit does not know"),
        ("id,lower,upper,size,size\na,0,1,2,3", "line 1: 'size' is in the header more than once"),
        ("id,lower,upper,size\na,0,1\n", "line 2 has 3 fields instead of 4"),
        ("a,0,1,2\nb,0,1,2,3\n", "line 2 has 5 fields instead of 4"),
        ("id,lower,upper,size\na,0,1,2\nb,0,x,2", "line 3: upper is not an integer: 'x'"),
        ("a,0,1.5,2", "line 1: upper is not an integer: '1.5'"),
        ("a,0,,2", "line 1: upper is not an integer: ''"),
        ("a,0,1_0,2", "line 1: upper is not an integer: '1_0'"),
        ("a,0,²,2", "line 1: upper is not an integer"),
        ("a,0,1,-2", "line 1: size is -2, outside"),
        ("a,0,1,9223372036854775808", "line 1: size is 9223372036854775808, outside"),
        ("a,0,1,2,-1", "line 1: offset is -1, outside"),
        ("\n\na,3,3,1", "line 3: upper is 3, not after lower"),
        ("a,3,2,1", "line 1: upper is 2, not after lower"),
        (",0,1,2", "line 1: id is empty"),
        ("a,0,1,2\nb,0,1,2\na,4,5,6", "line 3: id is 'a', which line 1 has already"),
        ("a,0,1," + "9" * 5000, "line 1: size is not an integer"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_field(tmp_path, text, match):
    with pytest.raises(InputError, match=match) as caught:
        load_lifetimes_csv(written(tmp_path / "t.csv", text))
    assert str(tmp_path / "t.csv") in str(caught.value) and caught.value.remedy


def test_unreadable_files(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_lifetimes_csv(tmp_path / "missing.csv")
    (tmp_path / "b.csv").write_bytes(b"a,0,1,2\n\xff\xfe")
    with pytest.raises(InputError, match="is not text"):
        load_lifetimes_csv(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text('a,0,1,"' + "x" * 200_000)
    with pytest.raises(InputError, match="line 1: field larger"):
        load_lifetimes_csv(tmp_path / "c.csv")


IDS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1).map(str.strip).filter(bool)
ROWS = st.lists(
    st.tuples(IDS, st.integers(-5, 9), st.integers(10, 99), st.integers(0, 2**62)), unique_by=lambda row: row[0]
)


@given(rows=ROWS)
def test_the_same_rows_come_back_with_their_places(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("t") / "t.csv"
    places = list(range(len(rows)))
    save_lifetimes_csv(path, lifetimes_of_rows(rows), np.array(places, dtype=np.int64))
    table = load_lifetimes_csv(path)
    assert rows_of(table.lifetimes) == rows
    assert table.offset.tolist() == places


def test_the_file_written_has_the_header_other_tools_read(tmp_path):
    save_lifetimes_csv(tmp_path / "t.csv", lifetimes_of_rows([("a", 0, 5, 64)]), [3])
    assert (tmp_path / "t.csv").read_text() == "id,lower,upper,size,offset\na,0,5,64,3\n"


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "t.csv"
    save_lifetimes_csv(path, lifetimes_of_rows([("a", 0, 5, 64)]), [3])
    with pytest.raises(ValueError):
        save_lifetimes_csv(path, lifetimes_of_rows([("a", 0, 5, 64)]), [3, 4])
    assert path.read_text().endswith("a,0,5,64,3\n")
    with pytest.raises(InputError, match="cannot write"):
        save_lifetimes_csv(tmp_path / "no" / "t.csv", lifetimes_of_rows([]), [])


@needs_data
@pytest.mark.parametrize("name", ["packing/S_1", "packing/hist_iree_mobilebert", "snapshots/vision_small"])
def test_public_files(name):
    path = DATA / f"{name}.csv"
    table = load_lifetimes_csv(path)
    with open(path, newline="") as file:
        lines = list(csv.DictReader(file))
    assert rows_of(table.lifetimes) == [(r["id"], int(r["lower"]), int(r["upper"]), int(r["size"])) for r in lines]
    assert (table.offset is not None) == ("offset" in lines[0])
