"""`memfit run` leaves a script as it is: what it sees, what it prints, how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.helpers_cli import memfit, run, write

pytestmark = pytest.mark.timeout(300)


def both(folder: Path, text: str, *arguments: str, stdin: str = "") -> tuple:
    """Run a script plainly and within a budget."""
    write(folder, text)
    plain = run("script.py", *arguments, cwd=folder, stdin=stdin)
    budgeted = memfit("run", "--budget", "1GiB", "--tier", "ram", "script.py", *arguments, cwd=folder, stdin=stdin)
    return plain, budgeted


ENDINGS = {
    "its end": "print('done')",
    "sys.exit()": "import sys; sys.exit()",
    "sys.exit(3)": "import sys; sys.exit(3)",
    "sys.exit(-1)": "import sys; sys.exit(-1)",
    "sys.exit(text)": "import sys; print('out'); sys.exit('the text')",
    "os._exit": "import os; os._exit(7)",
    "an exception": """
def f(x):
    return 1 / x

try:
    f(0)
except ZeroDivisionError as error:
    raise ValueError("bad") from error
""",
    "a syntax error": "print('never')\nx = = 1\n",
    "an exception for its own hook": "import sys\nsys.excepthook = lambda *_: print('hooked')\nraise ValueError",
    "a thread that lives longer": """
import threading, time, torch

def work():
    time.sleep(0.5)
    print(torch.ones(1000).mul_(2).sum().item())

threading.Thread(target=work).start()
""",
    "an exit handler": """
import atexit, torch
x = torch.ones(10)
atexit.register(lambda: print(x.sum().item()))
""",
}
RARE = {"sys.exit()", "sys.exit(-1)", "os._exit", "its end"}


@pytest.mark.long
@pytest.mark.parametrize("ending", [pytest.param(e, marks=pytest.mark.slow) if e in RARE else e for e in ENDINGS])
def test_a_script_ends_as_it_does_plainly(tmp_path, ending):
    plain, budgeted = both(tmp_path, ENDINGS[ending])
    assert budgeted.returncode == plain.returncode
    assert budgeted.stdout == plain.stdout
    assert budgeted.stderr.startswith(plain.stderr)
    assert "memfit/running" not in budgeted.stderr


SEES = """\
'''The docstring.'''
from __future__ import annotations

import dataclasses
import inspect
import os
import pickle
import sys

import neighbour


@dataclasses.dataclass
class Point:
    x: int
    y: "list[int]"


def function():
    return 1


print(__doc__, __name__, __package__, __spec__)
print(os.path.isabs(__file__), os.path.basename(__file__), os.path.samefile(__file__, sys.argv[0]))
print(sys.argv, sys.path[0] == os.path.dirname(os.path.realpath(__file__)), neighbour.value)
print(os.getcwd(), open("beside.txt").read(), repr(sys.stdin.read()))
print(Point.__module__, pickle.loads(pickle.dumps(Point(1, [2]))), pickle.loads(pickle.dumps(function))())
print(sys.modules["__main__"].Point is Point, inspect.getsource(function))
print(sorted(name for name in globals() if not name.startswith("__")), vars(sys.modules["__main__"]) is globals())
"""
ARGUMENTS = ["a b", "--budget", "5", "--", "-h", "--json", "", "--stats=x"]


@pytest.mark.long
def test_a_script_sees_what_it_sees_plainly(tmp_path):
    write(tmp_path, "value = 42", "neighbour.py")
    write(tmp_path, "read", "beside.txt")
    plain, budgeted = both(tmp_path, SEES, *ARGUMENTS, stdin="typed\n")
    assert plain.returncode == 0, plain.stderr
    assert (budgeted.returncode, budgeted.stdout) == (0, plain.stdout), budgeted.stderr


@pytest.mark.slow
def test_a_script_in_another_folder_imports_its_neighbours_and_reads_what_is_in_the_working_folder(tmp_path):
    folder = tmp_path / "scripts"
    folder.mkdir()
    write(folder, "value = 42", "neighbour.py")
    write(tmp_path, "read", "beside.txt")
    write(folder, SEES)
    results = [run(*words, "scripts/script.py", "1", cwd=tmp_path) for words in ((), ("-m", "memfit", "run"))]
    assert results[0].returncode == 0, results[0].stderr
    assert results[1].stdout == results[0].stdout


@pytest.mark.long
def test_what_is_printed_is_passed_on_byte_by_byte(tmp_path):
    write(
        tmp_path,
        "import sys, os\nsys.stdout.buffer.write(b'\\x00\\xff\\r\\n')\nsys.stdout.flush()\nos.write(1, b'raw')",
    )
    command = [sys.executable, "-m", "memfit", "run", "script.py"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120).stdout == b"\x00\xff\r\nraw"


SPAWNS = """\
import multiprocessing

import torch


class Job:
    def __init__(self, value):
        self.value = torch.full((3,), float(value))


def work(job, queue):
    queue.put((job.value * 2).tolist())


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=work, args=(Job(i), queue)) for i in (1, 2)]
    for process in processes:
        process.start()
    print(sorted(queue.get() for _ in processes))
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])
"""


@pytest.mark.slow
def test_a_script_may_spawn_processes(tmp_path):
    write(tmp_path, SPAWNS)
    result = memfit("run", "--budget", "1MiB", "script.py", cwd=tmp_path)
    assert result.stdout == "[[2.0, 2.0, 2.0], [4.0, 4.0, 4.0]]\n[0, 0]\n", result.stderr
    assert result.returncode == 0


@pytest.mark.long
def test_a_module_has_arguments_of_its_own(tmp_path):
    (tmp_path / "package").mkdir()
    write(tmp_path / "package", "import sys\nprint(sys.argv[1:], __package__)", "part.py")
    result = memfit(
        "run", "--budget", "1MiB", "--tier", "ram", "-m", "package.part", "-m", "--json", "--", cwd=tmp_path
    )
    assert (result.returncode, result.stdout) == (0, "['-m', '--json', '--'] package\n"), result.stderr
