"""Record one iteration: of a function the caller holds in hand, or of a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from memfit.errors import InputError
from memfit.ir import Trace
from memfit.running.scripts.inside import EndOfProgram, run_program
from memfit.running.scripts.script import Program, as_program, check_program
from memfit.running.session import Session
from memfit.tracing.roofline import Accelerator, accelerator_named


def record(step: Callable[[], object]) -> Trace:
    """Run `step` twice without a limit and return the trace of the second run.

    `step` runs one training iteration: forward, backward, optimizer step. The first run makes what only the
    first iteration makes (the optimizer's state). Raises UsageError inside another session.
    """
    with Session(None, "ram", record=False) as session:
        step()
        return session.record_span(step)


def record_meta(step: Callable[[], object], accelerator: str | Accelerator = "h100") -> Trace:
    """Run `step` twice on tensors of device meta, which take no memory and no time, and return the second run's trace.

    `step` runs one training iteration of a model whose tensors are all on `torch.device("meta")`; the first run makes
    the optimizer's state. The trace has the storages of that device alone, and durations that a roofline of
    `accelerator` predicts: "v100", "a100", "h100", "h200" or a profile. float32 runs on tensor cores where torch's
    switches for them say so. Raises InputError for an unknown name, UsageError inside another session.
    """
    profile = accelerator_named(accelerator) if isinstance(accelerator, str) else accelerator
    profile = replace(
        profile,
        tf32_products=torch.get_float32_matmul_precision() != "highest",
        tf32_convolutions=torch.backends.cudnn.allow_tf32,
    )
    with Session(None, "ram", record=False, accelerator=profile) as session:
        step()
        return session.record_span(step)


class _Recorded(EndOfProgram):
    """There is a trace."""


def record_script(script: Program | str, arguments: Sequence[str]) -> Trace:
    """Run `script` up to the end of its first whole iteration and return that.

    Raises InputError if the script is missing, fails, or ends before it has repeated an iteration.
    """
    program = as_program(script)
    check_program(program)
    session = Session(None, "ram", script=str(program), on_trace=_stop)
    code = run_program(program, arguments, session)
    if code:
        raise InputError(f"the script '{script}' ended with exit code {code}", why="see above")
    if session.recorded is None:
        raise InputError(
            f"the script '{script}' ended before a whole iteration had been seen",
            why="an iteration is whole from one optimizer step to the next, or when the op stream has repeated",
            remedy="let it run two steps or more",
        )
    return session.recorded


def _stop() -> None:
    raise _Recorded
