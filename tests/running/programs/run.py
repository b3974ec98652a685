"""Runs a random program line by line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from memfit.errors import MemfitError
from running.programs.calls import NAMES
from running.programs.contents import Reader, contents, is_composite, is_leaf
from running.stress.seen import rows


class Run:
    """Runs lines one by one; `seen` is what they read out or raised, by line."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Any]] = []
        self._line = 0
        self.names: dict[str, Any] = {**NAMES, "read": self._read}
        torch.manual_seed(0)

    def _read(self, value: Any) -> None:
        self.seen.append((self._line, value if isinstance(value, bytes) else repr(value)))

    def line(self, source: str) -> None:
        """Run one line. Only memfit's own errors are raised; others are part of what is seen."""
        self._line += 1
        try:
            exec(source, self.names)
        except MemfitError:
            raise
        except Exception as error:
            if "memfit: " in str(error) or "CUDA error" in str(error):  # after which the GPU refuses everything
                error.add_note(source)
                raise
            self.seen.append((self._line, f"raised {type(error).__name__}"))

    def all(self, lines: Iterable[str]) -> Run:
        """Run every line."""
        for source in lines:
            self.line(source)
        if "worker" in self.names:
            self.names["worker"].result()
        return self

    def tensors(self, composite: bool = False) -> dict[str, torch.Tensor]:
        """Return the tensors alive, by the names the program gave them (not a saved generator state)."""
        tensors = {n: v for n, v in self.names.items() if isinstance(v, torch.Tensor) and n != "state"}
        return {n: t for n, t in tensors.items() if is_composite(t) == composite}

    def final(self, read: Reader) -> dict[str, Any]:
        """Return the contents of all tensors and gradients."""
        found = {}
        for name, tensor in self.tensors().items():
            leaf = is_leaf(tensor)  # asked first: where torch refuses, `requires_grad` is another one from then on
            found[name] = contents(tensor, read)
            if leaf and tensor.grad is not None:
                found[f"{name}.grad"] = list(rows(tensor.grad, read))
        for name, tensor in self.tensors(composite=True).items():
            found[name] = list(rows(tensor, read))
        return found
