"""Every command of the recipes does what its page shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from docs.recipe import Command, Recipe, differences, environment, is_alike, read, run
from memfit.running.engine import build

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "recipes").glob("*.md"))
SLOW = {"distributed", "nvme", "slurm", "batch-size", "peak", "containers", "inference"}  # 15 seconds to minutes each
TRIED = [pytest.param(page, marks=pytest.mark.slow) if page.stem in SLOW else page for page in PAGES]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", TRIED, ids=lambda page: page.stem)
def test_the_commands_print_what_the_page_shows(page, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    recipe = read(page.read_text())
    assert recipe.commands
    done = run(recipe, tmp_path, environment(tmp_path, build().parent))
    assert "\n".join(differences(recipe, done)) == ""


def test_every_page_is_in_the_list_of_recipes():
    index = (ROOT / "docs" / "recipes.md").read_text()
    assert [page.name for page in PAGES if f"(recipes/{page.name})" not in index] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_says_why_and_what_next(page):
    text = page.read_text()
    assert text.startswith("# ") and "**Next.**" in text


def test_a_page_is_read_as_it_stands():
    files = "a\n```bash job.sh\n#!/bin/sh\n```\n\n```python\nnot run\n```\n"
    recipe = read(files + "```console\n$ one \\\n> two\nshown\n$ three\n```\n")
    assert recipe.files == {"job.sh": "#!/bin/sh\n"}
    assert recipe.commands == [Command(10, "one \\\ntwo", "shown"), Command(13, "three", "")]


@pytest.mark.parametrize(
    ("shown", "printed", "alike"),
    [
        ("9.49 MiB, 50 % of the peak", "10.2 KiB, 3 % of the peak", True),
        ("takes 1.2 s\nand 3", "takes  850 us and 12,345", True),
        ("+0.03 %", "0.00 %", True),
        ("step 1\n...\nend", "step 7\nmore\nand more\nend\n", True),
        ("at examples/gan.py:12: out", "at examples/gan.py:345: out", True),
        ("x0.50 both at once, x0.33 beside ops", "x0.86 both at once, x1.00 beside ops", True),
        ("nothing", "", False),
        ("", "a word", False),
        ("2 swaps", "2 drops", False),
        ("a\n...", "b a", False),
        ("the end", "the end, almost", False),
    ],
)
def test_words_are_compared_and_figures_are_not(shown, printed, alike):
    assert is_alike(shown, printed) == alike


def shell(*commands):
    return Recipe({"note.txt": "hello\n"}, [Command(at, *command) for at, command in enumerate(commands)])


def found(recipe, folder):
    return [*differences(recipe, run(recipe, folder, dict(os.environ), seconds=60))]


def test_commands_share_a_shell_and_files(tmp_path):
    recipe = shell(("cat note.txt", "hello"), ("x=5", ""), ("echo $x >&2; exit_code() { return 3; }", "7"),
                   ("exit_code", ""), ("echo $?", "3"))  # fmt: skip
    assert found(recipe, tmp_path) == []


def test_what_a_page_leaves_running_ends_with_it(tmp_path):
    run(shell(("sleep 600 & echo $! > pid", "")), tmp_path, dict(os.environ), seconds=60)
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    deadline = time.monotonic() + 30
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ([("false", ""), ("true", "")], "exit code 1"),
        ([("echo good", "bad")], "does not match\nbad"),
        ([("(exit 4)", ""), ("echo $?", "3")], "the page shows 3"),
    ],
)
def test_a_command_that_fails_or_prints_other_words_is_told(commands, words, tmp_path):
    assert words in "\n".join(found(shell(*commands), tmp_path))


def test_the_dockerfile_has_known_instructions_and_commands_that_a_shell_can_read():
    text = read((ROOT / "docs" / "recipes" / "containers.md").read_text()).files["Dockerfile"]
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line]
    known = {"FROM", "RUN", "COPY", "ENV", "VOLUME", "USER", "WORKDIR", "ENTRYPOINT"}
    assert steps[0][0] == "FROM" and {word for word, _ in steps} <= known
    for word, rest in steps:
        if word == "RUN":
            assert subprocess.run(["sh", "-n", "-c", rest], timeout=60).returncode == 0, rest
