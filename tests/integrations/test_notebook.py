"""A notebook's cells inside a budget, in IPython itself."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from xml.etree import ElementTree

import pytest

pytest.importorskip("IPython")
torch = pytest.importorskip("torch")

from IPython.core.interactiveshell import InteractiveShell  # noqa: E402
from traitlets.config import Config  # noqa: E402

import memfit  # noqa: E402
from python_path import environment  # noqa: E402
from trace_builder import TraceBuilder  # noqa: E402

pytestmark = pytest.mark.timeout(180)

MODEL = """
import torch
torch.manual_seed(0)
hidden = [layer for _ in range(4) for layer in (torch.nn.Linear(128, 128), torch.nn.ReLU())]
model = torch.nn.Sequential(torch.nn.Linear(64, 128), *hidden, torch.nn.Linear(128, 64))
optimizer = torch.optim.Adam(model.parameters())
batch = torch.randn(512, 64)
def step():
    optimizer.zero_grad()
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""

UNTIL_PLANNED = (
    "for _ in range(100):",
    "    step()",
    "    if _memfit.planned_iterations > 2 and _memfit.planned.plan: break",
)


class Notebook:
    """A shell that keeps what its last cell printed."""

    def __init__(self, shell, capsys):
        self.shell, self._capsys = shell, capsys

    def run(self, *lines):
        """Run a cell; return its result."""
        self._capsys.readouterr()
        result = self.shell.run_cell("\n".join(lines), store_history=True)
        self.out, self.err = self._capsys.readouterr()
        return result

    def __getitem__(self, name):
        return self.shell.user_ns[name]


@pytest.fixture
def notebook(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", str(tmp_path / "plans"))
    hook, main = sys.excepthook, sys.modules["__main__"]
    config = Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}})
    shell = InteractiveShell.instance(config=config)
    try:
        yield Notebook(shell, capsys)
    finally:
        shell.reset()
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):  # they hold a failed cell's tensors
            vars(sys).pop(name, None)
        InteractiveShell.clear_instance()
        gc.collect()
        sys.excepthook, sys.modules["__main__"] = hook, main
        assert not memfit.running.session.api._entries, "a cell's session has not ended"


@pytest.fixture
def trained(notebook):
    """A notebook with the extension, and with a model from an earlier cell."""
    assert notebook.run("%load_ext memfit").success and notebook.run(MODEL).success
    return notebook


def test_a_cell_trains_in_its_budget_to_the_same_bits(trained):
    result = trained.run("%%memfit --budget 80%", "losses = [step() for _ in range(6)]", "losses[-1]")
    assert result.success and trained["Out"][3] == trained["losses"][-1]
    assert trained.out.count("memfit: the limit is in force") == 1 and trained.out.count("memfit: budget ") == 1
    stats = trained["_memfit"].stats
    assert 0 < stats.peak_footprint_bytes <= stats.budget_bytes < stats.peak_live_bytes
    assert stats.adopted_bytes >= sum(p.nbytes for p in trained["model"].parameters())
    plain: dict[str, object] = {}
    exec(MODEL + "losses = [step() for _ in range(6)]", plain)
    assert plain["losses"] == trained["losses"]
    same = zip(plain["model"].parameters(), trained["model"].parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)


def test_the_cell_s_last_value_is_shown_unless_a_semicolon_ends_it(trained):
    trained.run("%%memfit", "'shown ' + 'so'")
    assert "shown so" in trained.out and trained["_"] == "shown so"
    trained.run("%%memfit", "'hidden ' + 'so';")
    assert "hidden so" not in trained.out and trained["_"] == "shown so"


def test_a_cell_that_runs_again_takes_the_plan_that_it_had(trained):
    def kept(options):
        assert trained.run(f"%%memfit --budget 60% --moves swap {options}", *UNTIL_PLANNED).success
        return trained["_memfit"].kept_plans

    trained.run("step(), step()")  # the optimizer has its state
    assert kept("") == 0
    assert any(kept("") for _ in range(4))  # threads may free in another order: then it is another iteration
    assert kept("--no-plan-cache") == 0


def test_options_reach_the_session(trained):
    trained.run("where, share = 'ram', '75%'")
    trained.run("%%memfit --budget '3 MiB' --tier {where} --no-grow --moves swap --into s", "step()")
    assert trained["s"].stats.budget_bytes == 3 << 20 and str(trained["s"].tier) == "ram"
    assert trained["s"]._settings.moves == "swap" and trained["s"]._settings.grow is False
    trained.run("%%memfit --budget {share} --into t", "step()")
    assert "the budget of 75% never took effect" in trained.err


@pytest.mark.parametrize("raised", ["1/0", "raise KeyboardInterrupt", "raise SystemExit(3)", "%no_such_magic", "1 +"])
def test_an_exception_fails_the_cell_ends_the_session_and_is_shown_once(trained, raised):
    before = trained.shell.showtraceback
    result = trained.run("%%memfit --budget 1GiB", "made = torch.ones(3)", raised)
    shown = trained.out + trained.err
    error = result.error_in_exec or result.error_before_exec
    name = "UsageError" if raised.startswith("%") else type(error).__name__
    assert not result.success and shown.count(f"{name}: ") + shown.count(f"{name}:\n") == 1
    assert "run_cell" not in shown and "notebook/magic" not in shown
    assert trained.shell.showtraceback == before
    trained.run("1/0")
    assert trained.out.count("ZeroDivisionError: ") == 1


def test_a_traceback_has_the_lines_of_the_cell_as_it_was_written(trained):
    trained.run("%%memfit", "made = 3", "1/0")
    assert "In[3], line 3" in trained.out and trained["made"] == 3


def test_ctrl_c_ends_the_cell_and_its_session(trained):
    cell = ("import os, signal, time", "os.kill(os.getpid(), signal.SIGINT)", "time.sleep(60)")
    result = trained.run("%%memfit --budget 1GiB", *cell)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert trained.run("%%memfit --budget 1GiB", "step()").success


def test_an_exception_that_another_magic_has_taken_hides_no_later_one(trained):
    trained.run("%%capture", "%%memfit", "1/0")
    trained.run("1/0")
    assert trained.out.count("ZeroDivisionError: ") == 1


BAD = {
    "--budget 1x": "'1x' is not a byte size",
    "--budget 0%": "0%",
    "--bugdet 1GiB": "unrecognized arguments: --bugdet",
    "--moves about": "invalid choice",
    "--budget 1GiB --tier nowhere": "nowhere",
    "--budget '1GiB": "No closing quotation",
    "--into 1st": "1st",
}


@pytest.mark.parametrize("options", BAD)
def test_a_bad_option_is_one_message_and_the_cell_does_not_run(trained, options):
    assert not trained.run(f"%%memfit {options}", "ran = True").success
    assert trained.err.startswith("UsageError: ") and BAD[options] in trained.err
    assert "Traceback" not in trained.out + trained.err and "ran" not in trained.shell.user_ns


def test_a_session_in_a_session_is_refused_and_the_outer_one_ends(trained):
    assert not trained.run("%%memfit --budget 1GiB", "%%memfit --budget 1GiB", "1").success
    assert trained.err.count("UsageError: a memfit session is active already") == 1
    with memfit.session("1GiB", "ram"):
        trained.run("%%memfit --budget 1GiB", "1")
    assert trained.err.startswith("UsageError: a memfit session is active already")


def test_a_share_that_never_became_a_limit_is_said(trained):
    assert trained.run("%%memfit --budget 60%", "step()").success
    assert "the budget of 60% never took effect: the cell had no limit" in trained.err
    assert "give the budget in bytes" in trained.err and "no budget took effect" in trained.out


def test_a_budget_that_cannot_be_met_names_the_cell_and_its_line(trained):
    trained.run("%%memfit --budget 64KiB", "", "step()")
    assert "BudgetError: " in trained.out and trained.out.count("cannot be met") == 1
    assert "In[2]:" in trained.out and "ipython-input" not in trained.out and "interactiveshell" not in trained.out
    trained.run("%%memfit --budget 5%", "for _ in range(4): step()")
    assert "BudgetError: the budget of" in trained.out and "at In[2]:" in trained.out
    assert "never took effect" not in trained.err


def test_other_magics_and_await_work_in_the_cell(trained):
    result = trained.run("%%memfit --budget 1GiB", "%%time", "timed = step()")
    assert result.success and "Wall time" in trained.out and trained["timed"] > 0
    result = trained.run("%%memfit --budget 1GiB", "import asyncio", "await asyncio.sleep(0, 'slept')")
    assert result.success and trained["_"] == "slept"


def test_await_is_refused_where_a_loop_of_events_runs_already(trained):
    async def notebook_server():
        return trained.run("%%memfit --budget 1GiB", "import asyncio", "await asyncio.sleep(0)")

    assert not asyncio.run(notebook_server()).success
    assert "UsageError: `await` does not work" in trained.err and "Traceback" not in trained.out + trained.err


def test_the_extension_goes_as_it_came(trained):
    trained.run("%unload_ext memfit")
    trained.run("%%memfit", "1")
    assert "`%%memfit` not found" in trained.err


def shown(notebook, value):
    data, _ = notebook.shell.display_formatter.format(value)
    return data


def hostile_trace():
    builder = TraceBuilder(alignment=64)
    weight = builder.before(640, source="<b>&train.py:1")
    (out,) = builder.op("<script>alert(1)</script>", reads=[weight], outputs=[6400], source="<img src=x>.py:3")
    builder.op("second", reads=[out], writes=[weight])
    return builder.build(script="</div><script>alert(2)</script>")


def test_a_trace_is_shown_as_a_picture_in_which_nothing_of_the_script_s_is_markup(trained):
    html = shown(trained, hostile_trace())["text/html"]
    root = ElementTree.fromstring(html)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        "div", "table", "tr", "td", "svg", "polygon", "title", "line", "text", "span",
    }  # fmt: skip
    words = " ".join(root.itertext())
    assert "6.88 KiB in op 0 <script>alert(1)</script>" in words and "</div><script>" in words
    assert html.count("http") == 1 and "url(" not in html  # the name space of SVG


def test_a_trace_is_a_few_lines_in_a_terminal_and_one_within_a_list(trained):
    trace = hostile_trace()
    text = shown(trained, trace)["text/plain"]
    assert 3 < len(text.splitlines()) < 10 and "6.88 KiB" in text
    assert shown(trained, [trace])["text/plain"] == f"[{trace!r}]" and len(repr(trace)) < 200


def test_a_session_and_its_statistics_are_shown_with_cells_by_their_numbers(trained):
    session = memfit.session("1GiB")
    assert "has not begun" in shown(trained, session)["text/html"]
    trained.run("step(), step()")
    assert trained.run("%%memfit --budget 60% --moves swap", *UNTIL_PLANNED).success
    session = trained["_memfit"]
    assert "In[2]:" in shown(trained, session.trace)["text/html"]
    stats = shown(trained, session.stats)["text/html"]
    assert memfit.units.format_bytes(session.stats.budget_bytes) in stats and "arena peak" in stats
    assert "<svg" in shown(trained, session)["text/html"] and "arena peak" in shown(trained, session)["text/plain"]
    planned = shown(trained, session.planned)["text/plain"]
    assert (
        "predicted  " in planned
        and "added" in planned
        and f"\n  swaps       {len(session.planned.plan.swaps)}" in planned
    )


def test_the_report_is_shown_in_a_frame_that_may_not_reach_the_notebook(trained, monkeypatch):
    frames = []
    monkeypatch.setattr(
        "memfit.integrations.notebook.report.display", lambda data, raw: frames.append(data["text/html"])
    )
    trained.shell.user_ns["hostile"] = hostile_trace()
    assert trained.run("%memfit_report hostile --budget 100% --machine pcie3").success, trained.err
    frame = ElementTree.fromstring(frames[0])
    assert frame.tag == "iframe" and frame.get("sandbox") == "allow-scripts"
    assert "Who owns the peak" in frame.get("srcdoc") and "Within 6.88 KiB" in frame.get("srcdoc")
    for wrong in ("1", "hostile --budget 1%", "hostile --machine none", "_memfit"):
        assert not trained.run(f"%memfit_report {wrong}").success and len(frames) == 1
        assert "Traceback" not in trained.err


@pytest.mark.long
def test_what_memfit_returns_is_shown_after_a_plain_import_which_does_not_import_torch():
    program = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("import memfit")
assert "torch" not in sys.modules and "jinja2" not in sys.modules
from trace_builder import TraceBuilder
builder = TraceBuilder()
builder.op(outputs=[64])
data, _ = shell.display_formatter.format(builder.build())
assert "<svg" in data["text/html"], data
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment(), timeout=100, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.long
def test_jupyter_runs_such_cells_and_shows_what_they_leave():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [
        f"%load_ext memfit\n{MODEL}",
        "%%memfit --budget 80%\nlosses = [step() for _ in range(4)]\nlen(losses)",
        "_memfit.trace",
        "%%memfit --budget 64KiB\nstep()",
        "%%memfit\nimport asyncio\nawait asyncio.sleep(0)",
        "len(losses)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    assert [output.data["text/plain"] for output in outputs[1] + outputs[5] if "data" in output] == ["4", "4"]
    text = "".join(output.text for output in outputs[1] if output.output_type == "stream")
    assert text.count("memfit: budget ") == 1 and "Error" not in text
    assert "<svg" in outputs[2][0].data["text/html"] and "In[1]:" in outputs[2][0].data["text/html"]
    (error,) = [output for output in outputs[3] if output.output_type == "error"]
    assert error.ename == "BudgetError" and "In[1]:" in error.evalue and "ipykernel_" not in error.evalue
    assert [output.name for output in outputs[4]] == ["stderr"] and "`await` does not work" in outputs[4][0].text
