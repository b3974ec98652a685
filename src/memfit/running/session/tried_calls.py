"""Of which calls it was tried whether they come out the same once more, or where one of their inputs lies."""

from __future__ import annotations

from typing import ClassVar

from memfit.running.engine.module import EngineModule, TriedCall
from memfit.running.session.kept_answers import KeptAnswers, is_key


class KeptTriedCalls(KeptAnswers[TriedCall]):
    """The answers about re-runs and in-place reuse."""

    kind: ClassVar[str] = "calls"

    def known(self, engine: EngineModule) -> list[TriedCall]:
        """As `EngineModule.tried_calls`."""
        return engine.tried_calls()

    def know(self, engine: EngineModule, rows: list[TriedCall]) -> None:
        """As `EngineModule.know_tried_calls`."""
        engine.know_tried_calls(rows)

    def checked(self, row: list[object]) -> TriedCall:
        """Return a row of the file."""
        is_over, key, is_same, ns = row
        assert isinstance(is_over, bool) and isinstance(key, int) and is_key(key)
        assert isinstance(is_same, bool) and isinstance(ns, int) and is_key(ns)
        return is_over, key, is_same, ns
