"""Jobs in threads of their own, for tests of what they do to each other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def hurried(seconds: float) -> Iterator[None]:
    """Let threads take turns in Python every `seconds`, far more often than they do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def at_once(jobs: Sequence[Callable[[], object]]) -> list[object]:
    """Begin all jobs together; return what each returned or raised."""
    results: list[object] = [None] * len(jobs)
    start = threading.Barrier(len(jobs))

    def run(i: int) -> None:
        start.wait()
        try:
            results[i] = jobs[i]()
        except BaseException as error:  # noqa: B036
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@contextmanager
def repeated(*jobs: Callable[[], object], every_s: float = 0.0) -> Iterator[None]:
    """Do each job again and again, in a thread of its own, until the block has ended; raise what one has raised."""
    over, errors = threading.Event(), list[BaseException]()

    def run(job: Callable[[], object]) -> None:
        try:
            while not over.wait(every_s):
                job()
        except BaseException as error:  # noqa: B036
            errors.append(error)

    threads = [threading.Thread(target=run, args=[job]) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
