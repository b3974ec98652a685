import io
import json

from rich.console import Console

from memfit.reporting.allocators import AllocatorComparison, AllocatorRow, to_text
from memfit.reporting.show import print_text, to_json

MIB = 1 << 20
ROWS = (
    AllocatorRow("[bold]pool", 3 * MIB, 0.123456, 0.25, 7, 1.234),
    AllocatorRow("pytorch-expandable", MIB, -0.5, 0, 1, 2),
)
COMPARISON = AllocatorComparison("f.csv", 3, 4, 2 * MIB, ROWS)


def printed(width):
    out = io.StringIO()
    print_text(to_text(COMPARISON), Console(file=out, width=width))
    return out.getvalue()


def test_json_holds_the_fields_by_name():
    values = json.loads(to_json(COMPARISON))
    assert values["peak_live_bytes"] == 2 * MIB
    assert values["rows"][0]["footprint_bytes"] == 3 * MIB


def test_the_table_has_every_figure_with_its_unit():
    text = printed(100)
    assert "3 storages, 4 mallocs and frees, 2.00 MiB (2,097,152 bytes) live at the peak" in text
    (line,) = (line for line in text.splitlines() if "[bold]pool" in line)
    assert line.split() == ["[bold]pool", "3.00", "MiB", "+12.35", "%", "25.0", "%", "7", "1.23"]


def test_names_stay_whole_in_a_narrow_terminal():
    assert "pytorch-expandable" in printed(60)
