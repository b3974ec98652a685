"""A program runs in this process as Python would run it in one of its own."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from memfit.errors import BudgetError, EngineError, InputError
from memfit.running.scripts.inside import EndOfProgram, run_program
from memfit.running.scripts.script import Program, check_program, exit_code_of, run_as_main

SEES = "import sys\nseen = (__name__, sys.argv, sys.path[0], __file__, __package__)\nsys.modules['seen'] = seen\n"


@pytest.fixture(autouse=True)
def this_process(monkeypatch, tmp_path) -> None:
    """What a program changes is put back."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "path_importer_cache", dict(sys.path_importer_cache))
    monkeypatch.chdir(tmp_path)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def seen(program: Program | str) -> tuple:
    run_as_main(program, ["a", "--b"])
    return sys.modules.pop("seen")


def test_annotations_are_objects_as_the_script_says_nothing_else(tmp_path):
    script = write(tmp_path / "s.py", "def f(x: int): pass\nassert f.__annotations__ == {'x': int}\n")
    run_as_main(str(script), [])


def test_a_file_a_folder_a_zip_file_and_a_module_see_what_python_shows_them(tmp_path):
    main = write(tmp_path / "app" / "__main__.py", SEES)
    write(tmp_path / "app" / "part.py", SEES)
    write(tmp_path / "app" / "__init__.py", "")
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as file:
        file.write(main, "__main__.py")
    here = str(tmp_path)
    assert seen("app/part.py") == ("__main__", ["app/part.py", "a", "--b"], f"{here}/app", f"{here}/app/part.py", None)
    assert seen("app") == ("__main__", ["app", "a", "--b"], f"{here}/app", f"{here}/app/__main__.py", "")
    assert seen("z.zip") == ("__main__", ["z.zip", "a", "--b"], f"{here}/z.zip", f"{here}/z.zip/__main__.py", "")
    module = f"{here}/app/part.py"
    assert seen(Program("app.part", is_module=True)) == ("__main__", [module, "a", "--b"], here, module, "app")


@pytest.mark.parametrize(
    ("name", "part"), [("missing.py", "no script"), (".", "no __main__.py"), ("-", "standard input")]
)
def test_what_is_no_script_is_named_with_the_reason(name, part):
    with pytest.raises(InputError, match="there is no script") as caught:
        check_program(Program(name))
    assert part in str(caught.value) and "-m package" in caught.value.remedy


@pytest.mark.parametrize(
    ("code", "status"), [(None, 0), (3, 3), (-1, 255), (256, 0), (True, 1), (2**70, 255), (-(2**70), 255), ("text", 1)]
)
def test_the_status_of_an_exit_is_pythons(code, status):
    assert exit_code_of(SystemExit(code)) == status


def test_a_traceback_has_no_frames_of_memfits_in_it_wherever_they_are(tmp_path, capsys):
    """The wrapper of torch's list ops stands in for any."""
    script = "import torch\nfrom memfit.running import engine\nfrom memfit.running.session import chunking\n"
    script += "with chunking.installed(engine.load(), 1 << 18):\n"
    script += "    try:\n        torch._foreach_add_([object()], 1)\n    except TypeError as error:\n"
    script += "        raise ValueError('own') from error\n"
    assert run_program(str(write(tmp_path / "s.py", script)), []) == 1
    err = capsys.readouterr().err
    assert err.count("s.py") == 2 and "TypeError" in err and "ValueError: own" in err
    assert "chunking" not in err.replace("chunking.installed", "") and "memfit" not in err


def test_an_error_of_an_excepthook_does_not_hide_the_scripts_own(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", lambda *_: 1 / 0)
    assert run_program(str(write(tmp_path / "s.py", "raise ValueError('own')")), []) == 1
    assert "ValueError: own" in capsys.readouterr().err


WRAPS = """
from memfit.errors import BudgetError
try:
    raise BudgetError("memfit: the budget cannot be met")
except BudgetError as error:
    {}
"""


@pytest.mark.parametrize("wrapping", ["raise KeyError('x') from error", "raise KeyError('x')"])
def test_an_error_of_memfits_that_a_library_wrapped_is_memfits_still(tmp_path, capsys, wrapping):
    with pytest.raises(BudgetError, match="cannot be met"):
        run_program(str(write(tmp_path / "s.py", WRAPS.format(wrapping))), [])
    assert "KeyError: 'x'" in capsys.readouterr().err  # the library's own words come first


@pytest.mark.parametrize(("ending", "code"), [("raise KeyError('x') from None", 1), ("raise SystemExit(7)", 7)])
def test_a_script_that_answers_memfits_error_by_another_end_has_that_end(tmp_path, ending, code):
    assert run_program(str(write(tmp_path / "s.py", WRAPS.format(ending))), []) == code


def test_a_session_that_cannot_begin_is_no_fault_of_the_scripts(tmp_path):
    class Broken:
        def __enter__(self):
            raise MemoryError("std::bad_alloc")

    script = write(tmp_path / "s.py", "open('ran', 'w')")
    with pytest.raises(EngineError, match="could not begin") as caught:
        run_program(str(script), [], Broken())
    assert "std::bad_alloc" in caught.value.why and not (tmp_path / "ran").exists()


def test_what_memfit_ends_early_has_ended_well(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ends", EndOfProgram)
    assert run_program(str(write(tmp_path / "s.py", "import ends\nraise ends\n")), []) == 0
