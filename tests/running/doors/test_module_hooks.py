"""memfit's hooks on all modules: they come and go in any order, and the compiler sees none of them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch.nn.modules import module as modules

from memfit.running.doors import module_hooks


def state() -> tuple[object, ...]:
    """Return all that is exchanged while there are hooks."""
    from torch._dynamo.callback import CompilationCallbackHandler as handler

    functions = (handler.run_start_callbacks, handler.run_end_callbacks, modules._has_any_global_hook)
    return (*functions, len(modules._global_forward_pre_hooks), len(modules._global_forward_hooks))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_nothing_is_left_of_contexts_that_close_in_any_order(order):
    before, seen = state(), []
    contexts = [ExitStack(), ExitStack()]
    for number, context in enumerate(contexts):

        def begins(*_: object, number: int = number) -> None:
            seen.append(number)

        context.enter_context(module_hooks.installed(begins, lambda *_: None))
    torch.nn.Linear(2, 2)(torch.ones(2))
    assert seen == [0, 1]
    contexts[order[0]].close()
    torch.nn.Linear(2, 2)(torch.ones(2))
    assert seen == [0, 1, order[1]]
    contexts[order[1]].close()
    assert state() == before


@pytest.mark.filterwarnings("ignore")
def test_what_is_compiled_while_the_first_of_two_has_gone_sees_no_hooks():
    before, counts = state(), []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        counts.append(len(modules._global_forward_hooks))
        return graph

    first, second = ExitStack(), ExitStack()
    for context in (first, second):
        context.enter_context(module_hooks.installed(lambda *_: None, lambda *_: None))
    first.close()
    with second, torch.no_grad():
        torch.compile(torch.nn.Linear(2, 2), backend=backend)(torch.ones(2))
        assert len(modules._global_forward_hooks) == before[-1] + 1
    assert counts == [before[-1]] and state() == before
