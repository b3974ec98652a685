"""An exception of memfit's own code is never said to be the script's, and one of the script's is never memfit's."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import memfit as package
from memfit.errors import InternalError
from memfit.running import frames
from memfit.running.doors import guards
from memfit.running.engine import patching
from memfit.running.engine.parts import Part
from memfit.running.scripts import witness
from memfit.running.scripts.inside import run_program
from memfit.running.scripts.witness import Request, Witness, read_plainly
from memfit.running.session import Session, chunking, iterations, passes

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("on_its_own"),
    pytest.mark.filterwarnings("ignore:global module"),
]
SOURCE = Path(package.__file__).parent


@pytest.fixture(autouse=True)
def this_process(monkeypatch, tmp_path) -> None:
    """What a program changes is put back."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


TRAINS = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    torch.ones(2, 4, requires_grad=True).numpy(force=True)
with torch.no_grad():
    model(torch.ones(2, 4))
"""

# A function of memfit's that each hook or door uses for its own work.
FAULTS = {
    "the hook after an optimizer's step": (iterations.Iterations, "_stepped", iterations),
    "the hook before an optimizer's step": (witness, "_parameters", witness),
    "the hook on a backward pass": (witness, "parts_of", witness),
    "the hook after a module's call": (passes, "tensors_in", passes),
    "the hook before a module's call": (passes.Passes, "_begins", passes),
    "the wrapper of torch's list ops": (chunking, "_length", chunking),
    "the door to numpy": (guards, "_resolved", guards),
}


def fault(module) -> object:
    """A function of `module`, by its code, which fails."""
    space: dict = {}
    exec(compile("def broken(*_):\n    raise KeyError('broken')\n", module.__file__, "exec"), space)
    return space["broken"]


def ran(tmp_path, text: str) -> int:
    """Run a script in a session, with all hooks of `memfit verify` as well."""
    script = tmp_path / "s.py"
    script.write_text(text)
    session = Session(None, "ram", plan=False)
    with open(tmp_path / "log", "w") as log:
        hooks = Witness(log, read_plainly, Request(str(script), [], str(tmp_path / "log")))
        return run_program(str(script), ["an argument"], session, hooks.installed)


@pytest.mark.parametrize("where", FAULTS)
def test_a_failure_of_memfits_is_reported_as_such_with_its_traceback(tmp_path, capsys, monkeypatch, where):
    owner, name, module = FAULTS[where]
    monkeypatch.setattr(owner, name, fault(module))
    with pytest.raises(InternalError) as caught:
        ran(tmp_path, TRAINS)
    err = capsys.readouterr().err
    assert "s.py" in err and Path(module.__file__).name in err and err.rstrip().endswith("KeyError: 'broken'")
    assert caught.value.what.startswith("memfit failed: KeyError: 'broken'") and caught.value.exit_code == 7
    assert "not the script" in caught.value.why and "report" in caught.value.remedy


def test_a_class_of_the_scripts_that_fails_for_a_hook_alone_is_memfits_failure(tmp_path, capsys, monkeypatch):
    """As for a wrapper subclass whose method a hook called, and that has none. (No hook meets `__torch_function__`.)"""
    monkeypatch.setattr(witness, "parts_of", lambda tensor, name: [Part(name, tensor.detach())])
    script = TRAINS.replace("import torch", "import torch\nclass Own(torch.Tensor):\n"
        "    def detach(self):\n        raise NotImplementedError('detach')\n", 1)  # fmt: skip
    script = script.replace("    optimizer.step()", "    torch.autograd.backward(torch.ones(()).as_subclass(Own))")
    with pytest.raises(InternalError, match="memfit failed: NotImplementedError"):
        ran(tmp_path, script)
    assert "in detach" in capsys.readouterr().err


OWN = {
    "a list op of torch's that refuses": "torch._foreach_add_([object()], 1)",
    "a door of torch's that refuses": "torch.ones(1, requires_grad=True).numpy()",
    "a door that Python answers": "import numpy as np; np.asarray(torch.ones(1, requires_grad=True))",
    "a backward pass that torch refuses": "torch.autograd.backward(torch.ones(2, requires_grad=True) * 1)",
    "a backward pass without gradients": "torch.ones(()).backward()",
    "a module's own code": "\nclass M(torch.nn.Module):\n    def forward(self): raise KeyError('own')\nM()()",
    "an optimizer's own code": "\nclass O(torch.optim.SGD):\n    def step(self): raise KeyError('own')\n"
    "O([torch.nn.Parameter(torch.ones(1))], 0.1).step()",
    "a hook of the script's": "\nt = torch.ones(2, requires_grad=True)\nt.register_hook(lambda g: {}['own'])\n"
    "t.sum().backward()",
    "a function of autograd's": "\nclass F(torch.autograd.Function):\n    @staticmethod\n"
    "    def forward(ctx, x): return x[9]\nF.apply(torch.ones(2))",
    "a transform": "torch.vmap(lambda x: {}['own'])(torch.ones(2))",
    "an op of torch's": "torch.ones(2) @ torch.ones(3)",
    "a module that is imported": "import absent",
    "the compiler of the script": "x = = 1",
    "a loader of torch's": "torch.load('absent')",
    "an endless recursion": "\ndef f(): model(torch.ones(2, 4)); f()\nf()",
    "memory that is nowhere": "raise MemoryError",
    "its interrupt": "raise KeyboardInterrupt",
}


@pytest.mark.parametrize("what", OWN)
def test_an_exception_that_passes_memfits_functions_is_the_scripts(tmp_path, capsys, what):
    text = "import torch\nmodel = torch.nn.Linear(4, 4)\n" + OWN[what] + "\n"
    assert ran(tmp_path, text) in (1, -2)
    err = capsys.readouterr().err
    assert "s.py" in err and "memfit" not in err.replace(str(tmp_path), "")


def test_a_failure_that_the_script_answers_is_the_scripts_business(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(chunking, "_length", fault(chunking))
    handled = "import torch\ntry:\n    torch._foreach_add_([torch.ones(1)], 1)\nexcept KeyError:\n    {}\n"
    assert ran(tmp_path, handled.format("pass")) == 0
    assert ran(tmp_path, handled.format("raise ValueError('own') from None")) == 1
    with pytest.raises(InternalError, match="KeyError"):  # as where a library has wrapped it
        ran(tmp_path, handled.format("raise ValueError('own')"))


def test_a_session_that_cannot_end_is_memfits_failure(tmp_path, monkeypatch):
    monkeypatch.setattr("memfit.running.session.active.Running.close", fault(iterations))
    with pytest.raises(InternalError, match="memfit failed"):
        ran(tmp_path, "import torch; torch.ones(1)")


def calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((SOURCE / "running").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and name in ast.unparse(node.func):
                yield str(path.relative_to(SOURCE)), node


def test_every_hook_on_torch_is_known_as_memfits_own_work():
    found = [(file, ast.unparse(node)) for file, node in calls("register_") if "hook" in ast.unparse(node.func)]
    assert len(found) >= 6
    outside = [call for file, call in found if file != "running/doors/module_hooks.py" and "hook(self." not in call]
    assert not outside


def test_whatever_stands_before_a_function_of_torchs_is_known_to_pass_its_exceptions_on():
    assert {file for file, _ in calls("engine.redirect")} == {"running/engine/patching.py"}

    def standing(*_):
        return [call() for call in (len,)]

    with patching.replaced(torch, "standing_before", standing):
        assert standing.__code__ in frames._passing
        assert all(code in frames._passing for code in frames._codes(standing))
