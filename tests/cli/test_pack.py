import csv
import json
from xml.etree import ElementTree

import pytest

from memfit.cli import main
from memfit.files import save_trace
from memfit.ir import Handover
from trace_builder import TraceBuilder

# Two of a and b, or a and c, at a time; b and c share the rest: 3 KiB at the peak.
CSV = "size,id,upper,lower\n1024,a,9,0\n2048,b,5,3\n2048,c,9,5\n"


def csv_file(tmp_path, text=CSV):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return str(path)


def test_figures_on_stdout_and_the_next_command_on_stderr(tmp_path, capsys):
    path = csv_file(tmp_path)
    assert main(["pack", path]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("3 lifetimes in 3.00 KiB (3,072 bytes), the lower bound: nothing can be smaller; ")
    assert err == f"next: memfit compare {path}\n"


def test_the_same_rows_come_back_with_an_offset_each(tmp_path):
    out = tmp_path / "out.csv"
    assert main(["pack", csv_file(tmp_path), "-o", str(out)]) == 0
    with open(out) as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert [r["lower"] + r["upper"] for r in rows.values()] == ["09", "35", "59"]
    begin = {name: int(row["offset"]) for name, row in rows.items()}
    end = {name: begin[name] + int(row["size"]) for name, row in rows.items()}
    for other in "bc":
        assert end["a"] <= begin[other] or end[other] <= begin["a"]
    assert max(end.values()) == 3072


def test_addresses_are_aligned(tmp_path, capsys):
    path = csv_file(tmp_path, "id,lower,upper,size\na,0,2,100\nb,0,2,100\n")
    for alignment, footprint in (("1", 200), ("64", 256), ("4KiB", 8192)):
        assert main(["pack", path, "--alignment", alignment, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["footprint_bytes"] == footprint


def test_json_is_all_that_is_printed(tmp_path, capsys):
    assert main(["pack", "--json", csv_file(tmp_path)]) == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert (figures["lifetimes"], figures["lower_bound_bytes"], figures["gap"], figures["proven"]) == (3, 3072, 0, True)
    assert err == ""


def test_the_picture_has_every_lifetime_with_its_name(tmp_path):
    svg = tmp_path / "out.svg"
    assert main(["pack", csv_file(tmp_path), "--svg", str(svg)]) == 0
    titles = [element.text for element in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}title")]
    assert sorted(title.split(":")[0] for title in titles) == ["a", "b", "c"]


def test_a_trace_s_picture_tells_categories_ops_and_lines(tmp_path):
    builder = TraceBuilder()
    builder.before(100)
    builder.op("aten::mm", outputs=[50], source="net.py:3")
    builder.alloc(30, source="net.py:4")
    path, svg = tmp_path / "t.json.gz", tmp_path / "out.svg"
    save_trace(builder.build(), path)
    assert main(["pack", str(path), "--svg", str(svg)]) == 0
    text = svg.read_text()
    assert ">parameter<" in text and ">activation<" in text
    titles = [element.text for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}title")]
    assert sorted(title.split(": ")[0] for title in titles) == ["0", "1 aten::mm net.py:3", "2 net.py:4"]
    assert all(" B at " in title for title in titles)


@pytest.mark.parametrize(("capacity", "code"), [("3KiB", 0), ("3071", 3), ("1KiB", 3)])
def test_a_capacity_is_met_or_exit_code_3(tmp_path, capsys, capacity, code):
    out = tmp_path / "out.csv"
    assert main(["pack", csv_file(tmp_path), "--capacity", capacity, "-o", str(out)]) == code
    err = capsys.readouterr().err
    assert out.exists() == (code == 0)
    assert ("no placement within" in err and "at least 3072" in err) == (code == 3)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("id,lower,upper,size\na,0,2,x\n", "line 2"),
        ("id,lower,upper,size\na,5,2,10\n", "line 2"),
        ("", "first bytes match none"),
    ],
)
def test_a_malformed_file_is_one_message_and_exit_code_1(tmp_path, capsys, text, part):
    assert main(["pack", csv_file(tmp_path, text)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("memfit: error: ") and part in err


def test_an_output_that_cannot_be_written_is_said_before_the_work(tmp_path, capsys):
    assert main(["pack", csv_file(tmp_path), "-o", str(tmp_path / "no" / "out.csv")]) == 1
    assert "no" in capsys.readouterr().err
    assert main(["pack", csv_file(tmp_path), "--alignment", "0"]) == 1


def test_in_place_halves_a_chain_of_ops_that_were_tried_and_is_a_switch(tmp_path, capsys):
    builder = TraceBuilder()
    (x,) = builder.op("load", outputs=[64])
    (y,) = builder.op("aten::relu", reads=[x], outputs=[64])
    builder.free(x)
    builder.op("use", reads=[y])
    builder.free(y)
    path, out = tmp_path / "t.json.gz", tmp_path / "out.csv"
    save_trace(builder.build(handovers=(Handover(1, x, y),)), path)
    for switch, footprint, in_place in (([], 128, 0), (["--in-place"], 64, 1)):
        assert main(["pack", str(path), "--alignment", "1", "--json", *switch, "-o", str(out)]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert (figures["footprint_bytes"], figures["in_place"], figures["lifetimes"]) == (footprint, in_place, 2)
    with open(out) as file:
        assert [row["offset"] for row in csv.DictReader(file)] == ["0", "0"]


def test_in_place_needs_a_trace_in_which_it_was_tried(tmp_path, capsys):
    builder = TraceBuilder()
    builder.op(outputs=[64])
    save_trace(builder.build(), tmp_path / "t.json")
    for file in (csv_file(tmp_path), str(tmp_path / "t.json")):
        assert main(["pack", file, "--in-place"]) == 2
        assert "memfit trace" in capsys.readouterr().err


def test_a_trace_is_read_once(tmp_path, monkeypatch):
    builder = TraceBuilder()
    builder.before(512)
    builder.op()
    save_trace(builder.build(), tmp_path / "t.json")
    read = []
    monkeypatch.setattr(
        "memfit.files.document.json.loads", lambda data, loads=json.loads: read.append(1) or loads(data)
    )
    assert main(["pack", str(tmp_path / "t.json")]) == 0
    assert len(read) == 1
