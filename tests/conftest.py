import os

from hypothesis import HealthCheck, settings

pytest_plugins = ("costs", "libraries")

# A time limit on examples says more about the machine than about the code. One fixture serves all examples of a test.
_COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
}
# The fast suite tries the same examples each time, so that a green commit stays green; the other profiles explore.
# --hypothesis-profile, or `make test PROFILE=ci`, chooses one.
settings.register_profile("dev", max_examples=12, derandomize=True, **_COMMON)
settings.register_profile("ci", max_examples=60, print_blob=True, **_COMMON)
settings.register_profile("explore", max_examples=1000, print_blob=True, **_COMMON)
settings.load_profile("dev")

# On a busy machine a script of some steps may be over before it has its plan.
os.environ["MEMFIT_PATIENCE"] = "60"
# A test that finds the plan of another is not the test that it was.
os.environ["MEMFIT_PLAN_CACHE"] = "off"


def pytest_configure(config):
    """Only the tests marked gpu are of a GPU: the others' sessions would govern one, if they saw it."""
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
