"""Record one iteration of a function or of a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from memfit.errors import InputError
from memfit.ir import Trace
from memfit.running.scripts.inside import EndOfProgram, run_program
from memfit.running.scripts.script import Program, as_program, check_program
from memfit.running.session import Session
from memfit.running.session.iterations import WHOLE
from memfit.tracing.roofline import Accelerator, accelerator_named


def record(step: Callable[[], object]) -> Trace:
    """Run one training iteration twice without a limit and record the second run.

    Arguments:
        step: Runs one iteration: forward, backward, optimizer step. Its first run makes what only a first iteration
            makes, such as the optimizer's state.

    Returns:
        The trace of the second run, as one iteration.

    Raises:
        UsageError: A session is active, or `step` ran no op.
    """
    with Session(None, "ram", record=False, notes_shapes=True) as session:
        step()
        return session.record_span(step)


def record_meta(step: Callable[[], object], accelerator: str | Accelerator = "h100") -> Trace:
    """Run one training iteration twice on device meta, which takes no memory, and record the second run.

    Arguments:
        step: Runs one iteration of a model whose tensors are all on `torch.device("meta")`. Its first run makes the
            optimizer's state.
        accelerator: The GPU whose roofline predicts the ops' durations (microseconds): "v100", "a100", "h100", "h200",
            or an `Accelerator` of `memfit.tracing.roofline`. float32 runs on tensor cores if torch's switches say so.

    Returns:
        The trace of the second run. It has the storages of device meta alone.

    Raises:
        InputError: The accelerator's name is unknown.
        UsageError: A session is active, or `step` ran no op.
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
    """The first whole iteration has been recorded."""


def record_script(script: Program | str, arguments: Sequence[str], split: str = "never") -> Trace:
    """Run `script` up to the end of its first whole iteration and return that.

    `split` is as of `memfit.session`: with "try" the trace tells of the smaller budgets in which ops run in slices.

    Raises InputError if the script is missing, fails, or ends before it has repeated an iteration.
    """
    program = as_program(script)
    check_program(program)
    session = Session(None, "ram", script=str(program), on_trace=_stop, notes_shapes=True, split=split)
    code = run_program(program, arguments, session)
    if code:
        raise InputError(f"the script '{script}' ended with exit code {code}", why="see above",
                         remedy=f"run it plainly until it works: python {script}")  # fmt: skip
    if session.recorded is None:
        raise InputError(
            f"the script '{script}' ended before a whole iteration had been seen",
            why=f"an iteration is whole {WHOLE}",
            remedy="let it run two steps or more",
        )
    return session.recorded


def _stop() -> None:
    raise _Recorded
