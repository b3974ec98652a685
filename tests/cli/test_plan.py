"""`memfit plan`, `simulate`, `curve` and `compare --budgets` on a small trace of a chain of layers."""

import json
import subprocess
import sys

import pytest

from cli.small_trace import SIZE, chain_in, run
from memfit.baselines.policies import POLICIES
from memfit.files import load_plan, load_timeline, save_machine, save_trace
from memfit.machine import Link, Machine
from planning.joint.test_transformed import layers
from trace_builder import TraceBuilder


@pytest.fixture
def trace(tmp_path):
    return chain_in(tmp_path)


def test_a_plan_is_saved_and_simulated(tmp_path, capsys, trace):
    path, timeline, chrome = (str(tmp_path / name) for name in ("p.json", "timeline.json", "c.json"))
    out, err = run(capsys, "plan", trace, "--budget", "70%", "-o", path)
    assert "memfit on pcie4" in out and "memory" in out
    assert err == f"next: memfit simulate {trace} {path} --machine pcie4\n"
    plan = load_plan(path)
    assert plan.budget_bytes == SIZE * 6 * 70 // 100 and plan.swaps
    out, err = run(capsys, "simulate", trace, path, "-o", timeline, "--chrome", chrome)
    assert "memfit on pcie4" in out and err.startswith("next: memfit compare")
    assert load_timeline(timeline).peak_bytes <= plan.budget_bytes
    names = {event["name"] for event in json.loads((tmp_path / "c.json").read_text())["traceEvents"]}
    assert {"aten::mm", "resident", f"storage {plan.swaps[0].storage}"} <= names


def test_json_is_all_that_is_printed(capsys, tmp_path, trace):
    path = str(tmp_path / "p.json")
    out, err = run(capsys, "plan", trace, "--budget", "70%", "-o", path, "--json")
    assert json.loads(out)["policy"] == "memfit" and err == ""
    out, err = run(capsys, "simulate", trace, path, "--json", "--machine", "pcie3")
    assert json.loads(out)["swaps"] == len(load_plan(path).swaps) and err == ""
    out, err = run(capsys, "curve", trace, "--points", "3", "--effort", "0.02", "--json")
    assert len(json.loads(out)["points"]) == 3 and err == ""
    out, err = run(capsys, "compare", trace, "--budgets", "80,60%", "--policies", "none,memfit", "--json")
    assert len(json.loads(out)["cells"]) == 4 and err == ""


def test_without_a_budget_the_plan_is_the_least_that_costs_nothing(capsys, trace):
    figures = json.loads(run(capsys, "plan", trace, "--json").out)
    assert figures["bound_us"] is None
    assert figures["budget_bytes"] < SIZE * 6 and figures["overhead"] < 1e-5


@pytest.fixture
def remakable(tmp_path):
    """A trace of layers, and a machine so slow that making them again is far cheaper than copies."""
    link = Link((1, SIZE), (1e6, 1e9))
    save_machine(Machine("slow", link, link), tmp_path / "m.json")
    save_trace(layers(4)[0], tmp_path / "layers.json")
    return str(tmp_path / "layers.json"), "--machine", str(tmp_path / "m.json")


@pytest.mark.long
def test_a_joint_plan_is_the_default_and_its_file_is_enough_to_simulate_it(tmp_path, capsys, remakable):
    path, chrome = str(tmp_path / "p.json"), str(tmp_path / "c.json")
    trace, *machine = remakable
    out = run(capsys, "plan", *remakable, "--budget", "70%", "-o", path).out
    plan = load_plan(path)
    assert plan.recomputes and plan.policy == "memfit"
    assert f"memfit on slow: {len(plan.swaps)} swaps, {len(plan.recomputes)} recomputes" in out
    assert "bound      +" in out and "of ops that run again" in out
    simulated = run(capsys, "simulate", trace, path, *machine, "--chrome", chrome).out
    assert [line for line in out.splitlines() if "bound " not in line] == simulated.splitlines()
    names = {event["name"] for event in json.loads((tmp_path / "c.json").read_text())["traceEvents"]}
    assert any(name.endswith(" (again)") for name in names)


def test_a_policy_may_only_swap_or_only_recompute_or_be_another_systems(tmp_path, capsys, remakable):
    found = {}
    for name in ("memfit", "swap", "recompute", "dtr", "swap-convolutions"):
        out = run(capsys, "plan", *remakable, "--budget", "70%", "--policy", name, "--effort", "0.1", "--json").out
        found[name] = json.loads(out)
    assert found["swap"]["swaps"] and not found["swap"]["recomputes"]
    assert found["recompute"]["recomputes"] and not found["recompute"]["swaps"]
    assert found["dtr"]["recomputes"] and found["dtr"]["bound_us"] is None
    assert found["memfit"]["iteration_us"] <= min(each["iteration_us"] for each in found.values()) + 1e-6
    assert all(found[name]["bound_us"] > 0 for name in ("memfit", "swap", "recompute"))


def test_what_is_wished_of_storages_is_done(tmp_path, capsys, remakable):
    path = str(tmp_path / "p.json")
    words = ("--recompute", "aten::batch_norm*", "--keep", "#0", "--keep", "#1", "--effort", "0.1", "-o", path)
    run(capsys, "plan", *remakable, "--budget", "70%", *words)
    assert load_plan(path).recomputes and not load_plan(path).swaps
    run(capsys, "plan", *remakable, "--budget", "70%", "--swap", "aten::*", "--effort", "0.1", "-o", path)
    assert load_plan(path).swaps and not load_plan(path).recomputes
    out = run(capsys, "plan", *remakable, "--keep", "aten::*", "--json").out  # without a budget
    assert json.loads(out)["swaps"] == 0


def test_the_addresses_of_a_joint_plan_are_within_the_budget(tmp_path, capsys, remakable):
    path = str(tmp_path / "p.json")
    run(capsys, "plan", *remakable, "--budget", "70%", "--addresses", "--effort", "0.1", "-o", path)
    plan = load_plan(path)
    assert plan.recomputes and 0 < plan.footprint_bytes <= plan.budget_bytes


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"storage": [10**6]}, "of storage 1000000, which the trace does not have"),
        ({"before": [10**6]}, "to op 1000000"),
        ({"ops": [10**6]}, "runs ops (1000000,) again"),
        ({"storage": [0], "after": [1], "before": [2], "ops": [0]}, "storage 0 is not there when"),
    ],
)
def test_a_plan_file_with_other_recomputes_is_refused(tmp_path, capsys, remakable, changes, says):
    path = tmp_path / "p.json"
    trace, *machine = remakable
    run(capsys, "plan", *remakable, "--budget", "70%", "-o", str(path))
    document = json.loads(path.read_text())
    one = {"storage": [2], "after": [1], "before": [9], "length": [1], "ops": [1]}
    path.write_text(json.dumps(document | {"recomputes": one | changes}))
    err = run(capsys, "simulate", trace, str(path), *machine, code=1).err
    assert says in err and "plan this trace again" in err


def test_addresses_are_within_the_budget(capsys, tmp_path, trace):
    path = str(tmp_path / "p.json")
    run(capsys, "plan", trace, "--budget", "4MiB", "--addresses", "-o", path)
    plan = load_plan(path)
    assert 0 < plan.footprint_bytes <= 4 * SIZE


def test_every_policy_is_compared(capsys, trace):
    out, err = run(capsys, "compare", trace, "--budgets", "80,60%")
    assert all(name in out for name in POLICIES) and "needs" in out
    assert err == f"next: memfit curve {trace} --machine pcie4\n"


def test_a_curve_is_drawn(capsys, tmp_path, trace):
    svg = tmp_path / "c.svg"
    out, err = run(capsys, "curve", trace, "--points", "4", "--effort", "0.02", "--svg", str(svg))
    assert "nothing waits down to" in out and err.startswith(f"next: memfit plan {trace} --budget ")
    assert svg.read_text().startswith("<svg") and "nothing waits" in svg.read_text()


def test_a_curve_is_drawn_as_a_png(capsys, tmp_path, trace):
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "c.png"
    run(capsys, "curve", trace, "--points", "4", "--effort", "0.02", "--png", str(path))
    with image.open(path) as drawn:
        assert drawn.format == "PNG" and min(drawn.size) >= 400
        assert len(drawn.convert("RGB").getcolors(1 << 24)) > 10  # a line, a point, letters


def test_a_png_needs_matplotlib_and_says_so_before_anything_is_planned(capsys, monkeypatch, tmp_path, trace):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("memfit.comparing.curve.trace_curve", lambda *_, **__: pytest.fail("it has begun to plan"))
    err = run(capsys, "curve", trace, "--png", str(tmp_path / "c.png"), code=2).err
    assert "no PNG can be drawn\n  why: matplotlib is not installed" in err
    assert "try: pip install 'memfit[plots]', or --svg" in err and not (tmp_path / "c.png").exists()


def test_a_measured_machine_is_a_file(capsys, tmp_path, trace):
    link = Link((1, SIZE), (1.0, 10.0))
    save_machine(Machine("here", link, link), tmp_path / "m.json")
    out = run(capsys, "plan", trace, "--budget", "70%", "--machine", str(tmp_path / "m.json")).out
    assert "memfit on here" in out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["plan", "TRACE", "--budget", "1"], 3, "cannot be met by swapping"),
        (["plan", "TRACE", "--budget", "50%", "--policy", "none"], 3, "none finds no plan within"),
        (["plan", "TRACE", "--budget", "50%", "--keep", "*::*"], 3, "cannot be met with these wishes"),
        (["plan", "TRACE", "--keep", "#0", "--swap", "aten::*"], 2, "contradict each other"),
        (["plan", "TRACE", "--keep", "#99"], 2, "--keep #99: no storage of this trace is named so"),
        (["plan", "TRACE", "--budget", "90%", "--keep", "#0", "--policy", "dtr"], 2, "takes no wishes"),
        (["plan", "TRACE", "--budget", "x"], 1, "is not a byte size"),
        (["plan", "TRACE", "--policy", "x"], 2, "there is no policy 'x'"),
        (["plan", "TRACE", "--machine", "x"], 2, "there is no machine 'x'"),
        (["plan", "nothing"], 1, "cannot read nothing"),
        (["simulate", "TRACE", "TRACE"], 1, "is not a memfit plan"),
        (["curve", "TRACE", "--points", "1"], 2, "--points is 1"),
        (["compare", "TRACE", "--budgets", "80%", "--policies", "x"], 2, "there is no policy 'x'"),
        (["compare", "TRACE", "--budgets", "0%"], 1, "is not a usable budget"),
    ],
)
def test_errors_are_one_message_and_an_exit_code(capsys, trace, words, code, says):
    out, err = run(capsys, *(trace if word == "TRACE" else word for word in words), code=code)
    assert out == "" and err.startswith("memfit: error: ") and says in err


def test_a_plan_for_another_trace_is_refused(capsys, tmp_path, trace):
    builder = TraceBuilder()
    builder.op(outputs=[1])
    save_trace(builder.build(signature="other"), tmp_path / "other.json")
    run(capsys, "plan", trace, "--budget", "70%", "-o", str(tmp_path / "p.json"))
    err = run(capsys, "simulate", str(tmp_path / "other.json"), str(tmp_path / "p.json"), code=1).err
    assert "same trace" in err


def test_it_works_without_torch(trace):
    program = (
        "import sys; sys.modules['torch'] = None\nfrom memfit.cli import main\nraise SystemExit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "plan", trace, "--budget", "80%"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
