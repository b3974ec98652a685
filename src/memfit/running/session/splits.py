"""Of which calls it was tried whether slices give the same bits."""

from __future__ import annotations

from typing import ClassVar

from memfit.running.engine.module import EngineModule, SplitAnswer
from memfit.running.session.kept_answers import KeptAnswers, is_key


class KeptSplits(KeptAnswers[SplitAnswer]):
    """The answers about slices."""

    kind: ClassVar[str] = "splits"

    def known(self, engine: EngineModule) -> list[SplitAnswer]:
        """As `EngineModule.split_answers`."""
        return engine.split_answers()

    def know(self, engine: EngineModule, rows: list[SplitAnswer]) -> None:
        """As `EngineModule.know_splits`."""
        engine.know_splits(rows)

    def checked(self, row: list[object]) -> SplitAnswer:
        """Return a row of the file."""
        op, key, workspace, allocated, outputs, equal = row
        assert isinstance(op, str) and isinstance(key, int) and is_key(key) and isinstance(workspace, int)
        assert isinstance(allocated, int)
        assert isinstance(outputs, list) and isinstance(equal, list)
        layouts = [(dtype, list(sizes), list(strides)) for dtype, sizes, strides in outputs]
        return op, key, workspace, allocated, layouts, [(way, steps) for way, steps in equal]
