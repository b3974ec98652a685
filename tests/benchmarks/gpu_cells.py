"""What the tests of cells run in them."""

import os
import time


def fine(request, note):
    return {"twice": 2 * request["number"], "pid": os.getpid()}


def failing(request, note):
    note({"before": 1})
    raise ValueError("not like this")


def hanging(request, note):
    note({"before": 1})
    time.sleep(60)


def crashing(request, note):
    os.abort()


def ending(request, note):
    os._exit(3)
