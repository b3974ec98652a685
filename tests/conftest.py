import os

from hypothesis import settings

# A time limit on each example says more about the machine than about the code.
settings.register_profile("memfit", deadline=None)
settings.load_profile("memfit")

# On a busy machine a script of some steps may be over before it has its plan.
os.environ["MEMFIT_PATIENCE"] = "60"
# A test that finds the plan of another is not the test that it was.
os.environ["MEMFIT_PLAN_CACHE"] = "off"


def pytest_configure(config):
    """Only the tests marked gpu are of a GPU: the others' sessions would govern one, if they saw it."""
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
