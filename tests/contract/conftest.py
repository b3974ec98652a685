"""The same fixtures as the tests of the runtime."""

from running.conftest import few_visible_objects, one_thread  # noqa: F401
