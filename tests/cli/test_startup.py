"""What starts with the command. Times differ from machine to machine; what is imported does not."""

import subprocess
import sys

from memfit import __version__
from memfit.cli import COMMANDS

HEAVY = ("torch", "numpy", "rich", "memfit._native")


def run(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)


def test_help_lists_every_command_and_imports_nothing_heavy():
    result = run("-X", "importtime", "-m", "memfit", "--help")
    assert result.returncode == 0
    assert all(name in result.stdout for name in COMMANDS)
    imported = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines()}
    assert "memfit.cli" in imported
    assert not imported.intersection(HEAVY)


def test_info_works_without_torch(tmp_path):
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from memfit.cli import main\n"
        "code = main(['info', sys.argv[1]])\n"
        "assert 'numpy' in sys.modules\n"
        "raise SystemExit(code)"
    )
    (tmp_path / "t.json").write_text(TRACE)
    result = run("-c", program, str(tmp_path / "t.json"))
    assert result.returncode == 0, result.stderr
    assert "Minimum feasible budget" in result.stdout


def test_version():
    assert run("-m", "memfit", "--version").stdout == f"memfit {__version__}\n"


# Also holds the file format still: a file written by version 1 must stay readable.
TRACE = """{"format": "memfit-trace", "version": 1, "signature": "s", "torch_version": "2.13.0",
"device": "cpu", "script": "train.py", "iteration": 2, "alignment": 64, "pinned_bytes": 0, "ticks": 1,
"storages": {"size_bytes": [8, 8], "category": [0, 1], "alloc": [0, 0], "free": [1, 1], "alloc_tick": [-1, 0],
"free_tick": [1, 1], "source": [2, 2]},
"ops": {"name": [3], "phase": [4], "duration_us": [1.5], "source": [2], "first_tick": [0],
"workspace_bytes": [64], "read_count": [1], "reads": [0], "write_count": [1], "writes": [1]},
"strings": ["parameter", "activation", "", "aten::relu", "forward"]}"""
