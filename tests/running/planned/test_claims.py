"""Of several processes that want the same plan one makes it, and the others have it from there."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from memfit.running.engine import plans
from memfit.running.planned.claims import Claims

pytestmark = pytest.mark.timeout(60)

CLAIMING = """\
import pathlib, sys, threading, time
from memfit.running.planned.claims import Claims

claims = Claims(pathlib.Path(sys.argv[1]))
claims.wait_for("plan", lambda: None, threading.Event())
print("it", flush=True)
time.sleep(60)
"""


def never() -> threading.Event:
    return threading.Event()


def test_the_first_makes_it_and_the_others_find_what_it_made(tmp_path):
    first, second, made = Claims(tmp_path), Claims(tmp_path), []
    assert first.wait_for("plan", lambda: None, never()) is None
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(second.wait_for("plan", lambda: made[0] if made else None,
                                                                          never())))  # fmt: skip
    thread.start()
    time.sleep(0.2)
    assert thread.is_alive()  # it waits
    made.append("the plan")
    first.release("plan")
    thread.join(10)
    assert found == ["the plan"] and list(tmp_path.iterdir()) == []


def test_what_is_there_before_the_claim_ends_is_taken_at_once(tmp_path):
    first, second = Claims(tmp_path), Claims(tmp_path)
    first.wait_for("plan", lambda: None, never())
    assert second.wait_for("plan", lambda: "the plan", never()) == "the plan"


def test_one_that_found_nothing_lets_the_next_one_search(tmp_path):
    first, second, third = (Claims(tmp_path) for _ in range(3))
    assert first.wait_for("plan", lambda: None, never()) is None
    first.release_all()
    assert second.wait_for("plan", lambda: None, never()) is None
    assert third.wait_for("plan", lambda: None, never(), longest=0.1) is None  # it waited as long as it may
    assert second.wait_for("another", lambda: None, never()) is None


def test_a_wait_ends_with_the_session(tmp_path):
    first, second, stop = Claims(tmp_path), Claims(tmp_path), never()
    first.wait_for("plan", lambda: None, stop)
    stop.set()
    began = time.monotonic()
    assert second.wait_for("plan", lambda: None, stop) is None and time.monotonic() - began < 1


@pytest.mark.long
def test_a_process_that_is_killed_has_no_claim(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", CLAIMING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "it\n"
    other = Claims(tmp_path)
    assert other.wait_for("plan", lambda: None, never(), longest=0.1) is None and not other._held
    process.kill()
    process.communicate()
    assert other.wait_for("plan", lambda: None, never(), longest=10) is None and list(other._held) == ["plan"]


def test_a_folder_that_takes_no_files_has_each_search_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert Claims(tmp_path / "file").wait_for("plan", lambda: None, never()) is None


def test_what_a_killed_process_leaves_is_removed_with_the_plans(tmp_path):
    Claims(tmp_path).wait_for("plan", lambda: None, never())
    assert len(list(tmp_path.iterdir())) == 1
    plans.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
