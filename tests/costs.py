"""What each test costs in CPU seconds, child processes included: the slowest are listed, and a limit can be set.

Wall time says more about what else runs on the machine than about a test.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings

_LISTED = 30
_LONG_MARKS = ("long", "slow", "gpu")
_PROPERTY = "cpu_seconds"


def pytest_addoption(parser):
    group = parser.getgroup("costs of tests")
    group.addoption("--costs", metavar="FILE", help="write the CPU and wall seconds of each test to FILE, as JSON")
    group.addoption("--slowest", action="store_true", help=f"list the {_LISTED} tests that took the most CPU time")
    group.addoption(
        "--cpu-limit", type=float, metavar="SECONDS", help="fail a test that is not marked long or slow above this"
    )


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have been waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Note the CPU time of each phase; a phase above the limit is a failure of the test."""
    report = yield
    now = cpu_seconds()
    spent = now - getattr(item, "cpu_seconds_before", now)
    item.cpu_seconds_before = now
    report.user_properties = [*report.user_properties, (_PROPERTY, spent)]
    limit = _limit_of(item)
    if call.when == "call" and report.passed and spent > limit:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} took {spent:.1f} s of CPU time, and may take {limit:g} s: make it smaller, or mark it long"
        )
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.cpu_seconds_before = cpu_seconds()


def _limit_of(item) -> float:
    """Return the CPU seconds that a test may take. A property has as many times those as it tries more examples."""
    limit = item.config.getoption("--cpu-limit")
    if not limit or any(item.get_closest_marker(mark) for mark in _LONG_MARKS):
        return math.inf
    is_property = getattr(getattr(item, "function", None), "is_hypothesis_test", False)
    more = settings().max_examples / settings.get_profile("dev").max_examples if is_property else 1
    return limit * max(more, 1)


class Costs:
    """The costs of all tests, of all workers."""

    def __init__(self, config) -> None:
        self._config = config
        self._cpu: dict[str, float] = defaultdict(float)
        self._wall: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report) -> None:
        self._wall[report.nodeid] += report.duration
        # A report has the properties of the phases before it as well; the last one is its own.
        own = [value for name, value in report.user_properties if name == _PROPERTY][-1:]
        self._cpu[report.nodeid] += sum(own)

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self._config.getoption("--slowest"):
            terminalreporter.write_sep("=", f"{_LISTED} tests with the most CPU seconds")
            for seconds, name in sorted(((cpu, name) for name, cpu in self._cpu.items()), reverse=True)[:_LISTED]:
                terminalreporter.write_line(f"{seconds:7.2f}  {name}")
        if path := self._config.getoption("--costs"):
            tests = {name: {"cpu_s": cpu, "wall_s": self._wall[name]} for name, cpu in sorted(self._cpu.items())}
            Path(path).write_text(json.dumps(tests, indent=1) + "\n")


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # the controller has the reports of all workers
        config.pluginmanager.register(Costs(config), "costs of tests, together")
