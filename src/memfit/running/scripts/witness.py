"""The results of a run, as hashes: every loss, gradient, weight and optimizer state at every optimizer step, and what
every forward pass without gradients returned.

Runs as a process of its own, plainly or under a budget (`python -m memfit.running.scripts.witness REQUEST`). It reads
a tensor's bytes without an op, so that watching changes neither the op stream nor what fits.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from memfit.errors import MemfitError
from memfit.messages import say_error
from memfit.planning.partition import Speeds
from memfit.ranks import file_of_rank
from memfit.running.doors import compiling, partitioning
from memfit.running.doors.uncompiled import uncompiled
from memfit.running.engine.disturbed import tier_of
from memfit.running.engine.parts import Part, parts_of, scales_of
from memfit.running.engine.patching import replaced
from memfit.running.frames import hook, passing
from memfit.running.host import peak_rss_bytes
from memfit.running.scripts.inside import EndOfProgram, run_program
from memfit.running.scripts.script import Program
from memfit.running.session import Session
from memfit.running.session.passes import Passes, has_optimizer, tensors_in

_LOOKS = 2  # forward passes after which it is looked for an optimizer that has yet to step


@dataclass(frozen=True)
class Request:
    """A run to watch. `budget` None is the plain run; `steps` 0 sets no limit.

    `op_step` asks for a hash of each op's outputs in that step (1 is the first), 0 for none. A step is an optimizer's
    or, in a script that does not train, a forward pass.
    """

    script: str
    arguments: list[str]
    log: str
    is_module: bool = False  # `script` is a module's name
    budget: str | None = None
    tier: dict[str, Any] | None = None
    steps: int = 0
    op_step: int = 0
    device: str = "cpu"  # whose memory the budget is for
    deterministic: bool = False  # ask torch for its deterministic algorithms
    map: str = "auto"  # as of `memfit.session`, and so is `split`
    split: str = "auto"
    speeds: tuple[float, float, float] | None = None  # that decide what compiled passes keep, in both runs

    @property
    def steps_file(self) -> str:
        """A file with as many bytes as steps have been made."""
        return f"{self.log}.steps"

    @property
    def failure_file(self) -> str:
        """A file that a run which fails makes: when it did, and with which exit code."""
        return f"{self.log}.failed"

    @property
    def program(self) -> Program:
        """The program to run."""
        return Program(self.script, self.is_module)


class _Done(EndOfProgram):
    """The last step that was asked for has been made."""


def digest(tensor: torch.Tensor, read: Callable[[torch.UntypedStorage], bytes]) -> str:
    """Return a hash of a dense tensor's elements in order, its type and its shape.

    Raises ValueError if its storage has no bytes.
    """
    with torch._C.DisableTorchFunctionSubclass():  # a subclass may answer for its attributes by code of its own
        return _digest(tensor, read)


def _digest(tensor: torch.Tensor, read: Callable[[torch.UntypedStorage], bytes]) -> str:
    about = f"{tensor.dtype}{tuple(tensor.shape)}"
    if tensor._is_zerotensor():  # torch knows that all are zeros, and keeps no bytes
        return f"zeros {about}"
    storage = tensor.untyped_storage()
    item = tensor.element_size()
    whole = np.frombuffer(read(storage), np.uint8)
    strides = [stride * item for stride in tensor.stride()]
    elements = np.ndarray((*tensor.shape, item), np.uint8, whole, tensor.storage_offset() * item, [*strides, 1])
    state = hashlib.blake2b(f"{about}{scales_of(tensor) or ''}".encode(), digest_size=16)
    state.update(np.ascontiguousarray(elements).tobytes())
    return state.hexdigest()


def read_plainly(storage: torch.UntypedStorage) -> bytes:
    """Return the bytes of a storage in ordinary memory, without an op that the op log would note.

    Raises ValueError if it has none.
    """
    if storage.nbytes() and not _has_bytes(storage):
        raise ValueError("the storage has no bytes in memory")
    if storage.device.type != "cpu":
        with _disable_current_modes():
            storage = storage.cpu()  # type: ignore[no-untyped-call]
    return ctypes.string_at(storage.data_ptr(), storage.nbytes())


def _has_bytes(storage: torch.UntypedStorage) -> bool:
    """Return whether a storage has memory: that of a wrapper subclass has none, and says so by an error."""
    try:
        return storage.data_ptr() != 0
    except RuntimeError:
        return False


class Witness:
    """Writes one line of JSON to `log` for every tensor it is shown."""

    def __init__(self, log: IO[str], read: Callable[[torch.UntypedStorage], bytes], request: Request) -> None:
        self.step = 1
        self._log = log
        self._read = read
        self._request = request
        self._ops: _OpLog | None = None
        self._trains = False
        self._owner = os.getpid()

    def installed(self) -> ExitStack:
        """Return an open context that watches every backward pass, optimizer step and forward pass."""
        stack = ExitStack()
        stack.enter_context(compiling.kernels_cut())  # in both runs
        if self._request.speeds is not None:
            stack.enter_context(partitioning.recomputed(Speeds(*self._request.speeds)))
        stack.enter_context(replaced(torch.autograd, "backward", self._watching(torch.autograd.backward)))
        stack.callback(register_optimizer_step_pre_hook(uncompiled(hook(self._before_step))).remove)
        stack.callback(register_optimizer_step_post_hook(uncompiled(hook(self._after_step))).remove)
        stack.enter_context(Passes(self._after_pass).watched())
        stack.callback(self._close_ops)
        self._open_ops()
        return stack

    @hook
    def note(self, kind: str, name: str, tensor: torch.Tensor) -> None:
        """Write the hash of one tensor, of each that it holds; not in a child that the script has forked."""
        if os.getpid() != self._owner:
            return
        for part in parts_of(tensor, name):
            row = {"step": self.step, "kind": kind, "name": part.name} | self._seen(part)
            self._log.write(json.dumps(row) + "\n")

    def _seen(self, part: Part) -> dict[str, str]:
        """Return the hash of a part, or the reason why it has none."""
        why = part.why
        try:
            if not why:
                return {"hash": digest(part.tensor, self._read)}
        except ValueError:
            why = "it has no bytes, and its class no __tensor_flatten__"
        return {"skipped": f"{type(part.tensor).__name__}: {why}"}

    def _watching(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def watched(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._trains = True
            for index, loss in enumerate([tensors] if isinstance(tensors, torch.Tensor) else tensors):
                self.note("loss", str(index), loss)
            return backward(tensors, *args, **kwargs)

        return watched

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        for name, parameter in _parameters(optimizer):
            if parameter.grad is not None:
                self.note("gradient", name, parameter.grad)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        for name, parameter in _parameters(optimizer):
            self.note("weight", name, parameter)
            for key, value in optimizer.state.get(parameter, {}).items():
                for at, tensor in enumerate(tensors_in(value)):
                    self.note("state", f"{key} of {name}" if at == 0 else f"{key} {at} of {name}", tensor)
        self._trains = True
        self._step_ends()

    def _after_pass(self, module: torch.nn.Module, outputs: list[torch.Tensor]) -> None:
        for index, output in enumerate(outputs):
            self.note("output", f"{index} of {type(module).__name__}", output)
        self._trains = self._trains or (self.step <= _LOOKS and has_optimizer())
        if not self._trains:
            self._step_ends()

    def _step_ends(self) -> None:
        self._close_ops()
        self._count_step()
        if self.step == self._request.steps:
            raise _Done
        self.step += 1
        self._open_ops()

    def _count_step(self) -> None:
        """Let the other process see that there was a step."""
        if os.getpid() == self._owner:
            with open(self._request.steps_file, "ab") as file:
                file.write(b".")

    def _open_ops(self) -> None:
        if self.step == self._request.op_step:
            self._ops = _OpLog(self)
            self._ops.__enter__()  # type: ignore[no-untyped-call]

    def _close_ops(self) -> None:
        if self._ops is not None:
            self._ops.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._ops = None


class _OpLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the outputs of every op."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._witness = witness
        self._count = 0

    @passing
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._count += 1
        # Bytes that an op leaves uninitialised may differ without a reason.
        if "empty" not in func.__name__:
            for index, tensor in enumerate(t for t in _flat(out) if isinstance(t, torch.Tensor)):
                self._witness.note("op", f"{self._count}: {func} (output {index}) at {_user_line()}", tensor)
        return out


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _user_line() -> str:
    """Return the innermost line that is neither torch's nor memfit's."""
    libraries = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
    frame = sys._getframe()
    while frame is not None and (frame.f_code.co_filename.startswith(libraries) or frame.f_back is None):
        if frame.f_back is None:
            return "an unknown line"
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _parameters(optimizer: Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    for g, group in enumerate(optimizer.param_groups):
        for p, parameter in enumerate(group["params"]):
            shape = "nested" if parameter.is_nested else "x".join(map(str, parameter.shape)) or "scalar"
            yield f"parameter {p} of group {g} ({shape}) of {type(optimizer).__name__}", parameter


def run(request: Request) -> int:
    """Run the script and write its log; returns the exit code. Raises BudgetError and TierError."""
    session, read = None, read_plainly
    if request.budget is not None:
        tier = tier_of(request.tier or {})
        session = Session(request.budget, tier, device=request.device, script=str(request.program), map=request.map,
                          split=request.split)  # fmt: skip
        read = session.read_bytes
    if request.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
        torch.use_deterministic_algorithms(True, warn_only=True)
    _settle_kernels()
    started = time.monotonic()
    with open(request.log, "w") as log:
        try:
            witness = Witness(log, read, request)
            code = run_program(request.program, request.arguments, session, witness.installed)
        except SystemExit:  # of a child that the script has forked: what is buffered will be written by its parent
            os.dup2(os.open(os.devnull, os.O_WRONLY), log.fileno())
            raise
        log.write(json.dumps(_end(session, time.monotonic() - started)) + "\n")
    return code


def _settle_kernels() -> None:
    """Let MKL's vector functions choose their kernels.

    They do so at the first call. When two of torch's threads make it at once, one may take a kernel that rounds
    differently, for this call only: a large `sqrt` as the first one gave other bits in 2 of 60 plain processes.
    """
    torch.ones(16).sqrt()


def _end(session: Session | None, seconds: float) -> dict[str, Any]:
    stats = asdict(session.stats) if session is not None else None
    return {"kind": "end", "seconds": seconds, "peak_rss_bytes": peak_rss_bytes(), "stats": stats,
            "no_limit": session.why_no_limit if session is not None else ""}  # fmt: skip


def main() -> int:
    """Read a request as JSON from the command line and run it; each rank of several has a log of its own."""
    request = Request(**json.loads(sys.argv[1]))
    request = replace(request, log=file_of_rank(request.log))
    try:
        code = run(request)
    except MemfitError as error:
        say_error(error)
        code = error.exit_code
    if code:
        Path(request.failure_file).write_text(json.dumps([time.time(), code]))
    return code


if __name__ == "__main__":
    sys.exit(main())
