"""A small trace of a chain of layers in a file, and memfit called on it in this process."""

from __future__ import annotations

from pathlib import Path

from memfit.cli import main
from memfit.files import save_trace
from memfit.ir import Phase
from trace_builder import TraceBuilder

SIZE = 1 << 20


def chain_in(folder: Path) -> str:
    """Write six layers, made at lines m.py:0 to m.py:5 and read again backwards; return the file."""
    builder = TraceBuilder(alignment=512)
    made = [builder.op("aten::mm", outputs=[SIZE], duration_us=100.0, source=f"m.py:{n}")[0] for n in range(6)]
    for storage in reversed(made):
        builder.op("aten::mm", reads=[storage], duration_us=100.0, phase=Phase.BACKWARD)
        builder.free(storage)
    save_trace(builder.build(), folder / "t.json")
    return str(folder / "t.json")


def run(capsys, *words, code=0):
    assert main(list(words)) == code
    return capsys.readouterr()
