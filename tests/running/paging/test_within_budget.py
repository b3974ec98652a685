"""What is in memory of arena and page frames together is never more than the budget, by the system's own count."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys

import pytest

from python_path import environment
from running.paging.counted import WORKS
from running.paging.workloads import LARGE

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["userfaultfd", "signals"])
def seen(request, tmp_path_factory):
    command = [sys.executable, "-m", "running.paging.counted", request.param, str(tmp_path_factory.mktemp("tier"))]
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=280, env=environment()).stdout
    )


@pytest.mark.parametrize("name", [work.name for work in WORKS])
def test_ops_on_mapped_storages_stay_within_the_budget(seen, name):
    of = seen[name]
    assert of["mapped_ops"] > 0 and of["looks"] >= 5
    assert of["budget"] // 2 < of["bytes"] <= of["budget"]
    assert 0 < of["frame_bytes"] <= of["known_frame_bytes"] <= of["budget"]


def test_a_table_that_stays_mapped_is_within_the_budget(seen):
    of = seen["table"]
    assert of["looks"] >= 5 and LARGE // 16 - mmap.PAGESIZE <= of["known_frame_bytes"] <= LARGE // 16
    assert LARGE // 32 < of["frame_bytes"] <= LARGE // 16
    assert of["bytes"] <= of["budget"]
