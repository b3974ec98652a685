"""`memfit whatif` on small scripts, which run without values, and on recorded traces."""

import json

import pytest

from cli.helpers_cli import TRAINING, memfit, write
from memfit.cli import main
from memfit.files import save_trace
from planning.joint.test_transformed import layers

pytest.importorskip("torch")

VARIED = """\
import argparse, os
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--adam", type=int, default=0)
args = parser.parse_args()
width = int(os.environ.get("WIDTH", "256"))
model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
kind = torch.optim.Adam if args.adam else torch.optim.SGD
optimizer = kind(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.zeros(args.batch, width)).sum().backward()
    optimizer.step()
"""


def cases(folder, *words):
    done = memfit("whatif", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["cases"]


@pytest.mark.long
@pytest.mark.slow
def test_a_script_is_recorded_for_every_value(tmp_path):
    script = write(tmp_path, VARIED)
    found = cases(
        tmp_path, script, "--vary", "n=4096,8192", "--vary", "o=0,1", "--budget", "1GiB", "--json", "--",
        "--batch", "{n}", "--adam={o}",
    )  # fmt: skip
    assert [case["values"] for case in found] == [{"n": n, "o": o} for n in ("4096", "8192") for o in "01"]
    sgd, adam, larger, _ = (case["peak_bytes"] for case in found)
    parameters = 4 * (256 * 256 + 256 + 256 + 1)
    # One more activation of 4,096 x 256 floats, at least, lives at the peak for each of the four that do.
    assert larger - sgd >= 3 * 4096 * 256 * 4
    assert parameters <= adam - sgd <= 3 * parameters  # two states, and what Adam's step makes if the peak is there
    assert all(case["fits"] == "as it is" and case["floor_bytes"] <= case["peak_bytes"] for case in found)


@pytest.mark.slow
def test_a_name_that_no_argument_has_is_set_in_the_environment(tmp_path):
    script = write(tmp_path, VARIED)
    found = cases(tmp_path, script, "--vary", "WIDTH=64,512", "--json", "--", "--batch", "8")
    small, large = (case["peak_bytes"] for case in found)
    assert large > 16 * small and found[0]["device"].startswith("meta, timed as H100")


@pytest.mark.long
def test_a_recording_without_values_has_the_ops_and_the_bytes_of_one_with_them(tmp_path):
    script = write(tmp_path, TRAINING)
    done = memfit("trace", script, "-o", "t.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ghost, real = (cases(tmp_path, word, "--json")[0] for word in (script, "t.json"))
    assert ghost["peak_bytes"] == pytest.approx(real["peak_bytes"], rel=0.1)
    assert 0 <= ghost["ops"] - real["ops"] <= 12  # gradients that become ghosts are detached once more


@pytest.mark.long
def test_what_needs_values_is_named_with_its_line_and_another_way(tmp_path):
    script = write(tmp_path, "import torch\nweight = torch.nn.Parameter(torch.ones(4))\nweight[weight > 0].sum()\n")
    done = memfit("whatif", script, "--vary", "x=1,2", cwd=tmp_path)
    assert done.returncode == 1 and "no iteration of 'x=1 " in done.stderr
    assert "cannot run without values" in done.stderr and "script.py:3" in done.stderr
    assert "memfit trace" in done.stderr


@pytest.mark.slow
def test_a_script_that_fails_says_how(tmp_path):
    script = write(tmp_path, "def main():\n    raise ValueError('too narrow')\n\nmain()\n")
    done = memfit("whatif", script, "--", "--width", "8", cwd=tmp_path)
    assert done.returncode == 1 and "ValueError: too narrow" in done.stderr and "--width 8'" in done.stderr


@pytest.fixture
def trace(tmp_path):
    save_trace(layers(4)[0], tmp_path / "t.json.gz")
    return str(tmp_path / "t.json.gz")


def test_traces_are_compared_as_they_are(capsys, trace):
    assert main(["whatif", trace, "--budget", "75%", trace, "--effort", "0.05", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cases"]
    assert [case["values"] for case in found] == [{"trace": trace}] * 2 and found[0] == found[1]
    assert found[0]["fits"] == "with a plan"


@pytest.mark.long
def test_techniques_are_foreseen_one_by_one_and_together(tmp_path):
    script = write(tmp_path, VARIED)
    done = memfit("trace", script, "-o", "t.json.gz", "--", "--batch", "64", "--adam", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = ("whatif", "t.json.gz", "--with", "channels:50%,share:16,8bit-adam", "--budget", "90%", "--effort", "0.05")
    done = memfit(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.partition("  ")[0].strip() for line in done.stdout.splitlines()]
    at = rows.index("as it is")
    assert rows[at : at + 5] == ["as it is", "channels:50%", "share:16", "8bit-adam", "all of them"]
    said = done.stdout.splitlines()
    share = next(index for index, line in enumerate(said) if line.startswith("share:16:"))
    assert said[share + 1] == "  takes nothing off a training iteration"
    assert "    import bitsandbytes" in said and "    import torch_pruning as tp" in said
    found = json.loads(memfit(*words, "--json", cwd=tmp_path).stdout)
    peaks = [each["case"]["peak_bytes"] for each in found["applied"]]
    assert peaks[0] < 0.6 * found["as_it_is"]["peak_bytes"] == 0.6 * peaks[1]
    assert {each["case"]["budget_bytes"] for each in found["applied"]} == {found["as_it_is"]["budget_bytes"]}
    assert found["applied"][0]["case"]["fits"] == "as it is" and found["applied"][1]["case"]["fits"] == "with a plan"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["TRACE", "--with", "magic"], 2, "there is no technique 'magic'"),
        (["TRACE", "--with", "bf16"], 2, "does not say what its tensors are"),
        (["TRACE", "TRACE", "--with", "bf16"], 2, "--with takes one trace"),
        (["SCRIPT", "--with", "bf16"], 2, "--with takes one trace"),
        (["TRACE", "--vary", "batch=8"], 2, "a trace cannot be varied"),
        (["TRACE", "--", "--batch", "8"], 2, "a trace cannot be varied"),
        ([], 2, "takes one script, one module or any number of traces"),
        (["TRACE", "x.py"], 2, "takes one script, one module or any number of traces"),
        (["-m", "x", "y.py"], 2, "takes one script, one module or any number of traces"),
        (["nothing.py"], 1, "there is no script 'nothing.py'"),
        (["SCRIPT", "--vary", "batch"], 2, "--vary 'batch' cannot be read"),
        (["SCRIPT", "--accelerator", "x"], 1, "no accelerator is called 'x'"),
        (["SCRIPT", "--budget", "x"], 1, "is not a byte size"),
    ],
)
def test_what_cannot_be_foreseen_is_an_error(capsys, tmp_path, trace, words, code, says):
    named = {"TRACE": trace, "SCRIPT": str(write(tmp_path, VARIED))}
    assert main(["whatif", *(named.get(word, word) for word in words)]) == code
    err = capsys.readouterr().err
    assert says in err and "try: " in err
