"""The ends of iterations, in a script that does not mark them.

An optimizer's step ends an iteration. With several optimizers (a GAN) it is the step of the one that
appeared last, so that an iteration holds a step of each. Without any optimizer, a forward pass without
gradients ends one; with several modules (an encoder and a decoder) it is the first pass of a module that has
had one since the last end. Without either, the engine looks for the period of the op stream.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch.nn import Module
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from memfit.ir import Phase
from memfit.running.doors.uncompiled import uncompiled
from memfit.running.engine.module import EngineModule
from memfit.running.engine.parts import dense_parts
from memfit.running.frames import hook
from memfit.running.session.passes import Passes, tensors_in
from memfit.tracing.build import Roles

WHOLE = (
    "from one optimizer step to the next, from one forward pass under torch.no_grad() to the next, or when the op "
    "stream has repeated"
)


class Iterations:
    """Watches optimizers and modules; calls `on_whole` at the end of each whole iteration, from one end to the next.

    `on_end` is called at every end, after that.
    """

    def __init__(self, engine: EngineModule, on_whole: Callable[[], None], on_end: Callable[[], None]) -> None:
        self.roles = Roles()
        self._engine = engine
        self._on_whole = on_whole
        self._on_end = on_end
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._last_new: weakref.ref[Optimizer] | None = None
        self._open = False  # an end has been seen since the set of optimizers last grew
        self._paused = False
        self._steps = 0
        self._ends: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()  # by who made them
        self._ends_of_passes = 0
        self.surplus = 0
        """How many ends turned out to be none: of an optimizer's steps, or of passes, that a later optimizer's end
        includes."""
        self._passes = Passes(self._passed)
        self._passed_modules: set[int] = set()  # since the last end that a forward pass made, by id
        self._turn = threading.Lock()
        self.watch_roles = True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hook into every optimizer and module for as long as the context is open."""
        handles = (
            register_optimizer_step_pre_hook(uncompiled(hook(self._before_step))),
            register_optimizer_step_post_hook(uncompiled(hook(self._after_step))),
        )
        try:
            with self._passes.watched():
                yield
        finally:
            for handle in handles:
                handle.remove()

    @property
    def are_passes(self) -> bool:
        """Whether forward passes without gradients are what ends iterations."""
        return bool(self._passed_modules)

    def take_no_passes(self) -> None:
        """Take no forward pass for an iteration's end from now on: something else ends them."""
        self._passes.stop()
        self._passed_modules.clear()
        self.roles.are_of_modules = False

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Let one thread at a time see an iteration end; the others get False, and pass theirs over."""
        mine = self._turn.acquire(blocking=False)
        try:
            yield mine
        finally:
            if mine:
                self._turn.release()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Take everything inside as one iteration, whatever steps it has."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def why_none_was_whole(self) -> str:
        """Say why no iteration has been one from its beginning to its end, when none has."""
        if not self._steps:
            return (
                "no torch optimizer made a step, no module made a forward pass without gradients, and the ops did not "
                "repeat themselves often enough"
            )
        if self.are_passes:
            return "one forward pass was made, and the first whole iteration ends with the second of the same module"
        if self._steps == 1:
            return "the optimizer made one step, and the first whole iteration ends with the second"
        return (
            f"none of the {self._steps} optimizer steps ended a whole iteration; with several optimizers, the one that "
            "appeared last has to make two"
        )

    def forget(self) -> None:
        """Call nobody from now on: what would be called refers to this in turn."""
        self._on_whole = self._on_end = lambda: None

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._engine.is_inert():  # a forked child's steps are nobody's business
            return
        self._engine.set_phase(Phase.OPTIMIZER)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._engine.is_inert():
            return
        self._engine.set_phase(Phase.FORWARD)
        with self.turn() as mine:
            if mine:
                self._stepped(optimizer)

    def _stepped(self, optimizer: Optimizer) -> None:
        self._steps += 1
        self.take_no_passes()
        self.surplus, self._ends_of_passes = self.surplus + self._ends_of_passes, 0
        if self.watch_roles:
            self._note_roles(optimizer)
        if self._paused:
            return
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self._last_new = weakref.ref(optimizer)
            self._open = False
        if self._last_new is None or self._last_new() not in (optimizer, None):
            self.surplus += self._ends.pop(optimizer, 0)
            return
        self._ends[optimizer] = self._ends.get(optimizer, 0) + 1
        self._end()

    def end_here(self) -> None:
        """End an iteration that no optimizer of torch's ends."""
        if self._engine.is_inert() or self._paused or self._last_new is not None:
            return
        with self.turn() as mine:
            if mine:
                self.take_no_passes()
                self._steps += 1
                self._end()

    def _passed(self, module: Module, outputs: list[torch.Tensor]) -> None:
        if self._engine.is_inert() or self._paused:
            return
        if all(output.device.type == "meta" for output in outputs):
            return  # it computed shapes alone, as Keras does when it builds a model
        with self.turn() as mine:
            if mine:
                self._end_with(module)

    def _end_with(self, module: Module) -> None:
        """End an iteration, if this is the module whose passes do: the first, then whichever comes again first."""
        if self.watch_roles:
            if self._engine.recorded_backward() or self._engine.has_instance(Optimizer):
                self.take_no_passes()  # this is an evaluation before a step, or beside training without an optimizer
                return
            self._note_model(module)
        if self._passed_modules and id(module) not in self._passed_modules:
            self._passed_modules.add(id(module))
            return
        self._passed_modules = {id(module)}
        self._steps += 1
        self._ends_of_passes += 1
        self._end(is_step=False)

    def _note_model(self, module: Module) -> None:
        self.roles.are_of_modules = True
        for tensor in chain(module.parameters(), module.buffers()):
            self.roles.parameters.update(self._ids(tensor))

    def _end(self, *, is_step: bool = True) -> None:
        self._engine.boundary(is_step)
        whole, self._open = self._open, True
        if whole:
            self._on_whole()
        self._on_end()

    def _note_roles(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.roles.parameters.update(self._ids(parameter))
                if parameter.grad is not None:
                    self.roles.gradients.update(self._ids(parameter.grad))
        for state in optimizer.state.values():
            for tensor in tensors_in(state):
                self.roles.optimizer_states.update(self._ids(tensor))

    def _ids(self, tensor: torch.Tensor) -> Iterator[int]:
        """Yield the blocks of the dense tensors of which one consists."""
        return map(self._engine.block_id, dense_parts(tensor))
