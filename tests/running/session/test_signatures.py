"""Signatures: one for each kind of iteration."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from running.helpers_training import PROGRAMS, STEPS, Log, Program, batches, cnn, gan, known, mlp, run_in_session

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("on_its_own")]


def test_equal_iterations_have_equal_signatures_and_the_first_differs():
    _, session = run_in_session(cnn, None, "ram")
    first, *rest = session.signatures
    assert len(session.signatures) == STEPS == session.stats.iterations
    assert len(set(rest[1:])) == 1
    assert first not in rest  # it builds the model and the optimizer's state


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_budget_does_not_change_signatures(name):
    program = PROGRAMS[name]
    unlimited = run_in_session(program, None, "ram")[1].signatures
    assert run_in_session(program, known(program).budget("bytes"), "disk")[1].signatures == unlimited


def epochs(log: Log) -> None:
    """Two epochs of three batches, the last one smaller, with an evaluation between them."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for epoch in range(3):
        for size in (32, 32, 32, 20):
            optimizer.zero_grad()
            model(torch.randn(size, 64)).square().mean().backward()
            optimizer.step()
        if epoch == 1:
            with torch.no_grad():
                model(torch.randn(32, 64))


def test_a_smaller_last_batch_and_an_evaluation_make_signatures_of_their_own():
    _, session = run_in_session(epochs, None, "ram")
    s = session.signatures
    assert len(s) == 12
    assert s[1] == s[2] == s[4] == s[5] == s[6] == s[9] == s[10]
    assert s[3] == s[7] == s[11]
    assert len({s[0], s[1], s[3], s[8]}) == 4


def accumulating(micro_batches: tuple[int, ...]) -> Program:
    def program(log: Log) -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for count in micro_batches:
            optimizer.zero_grad()
            for x in batches(count, 32, 64):
                model(x).square().mean().backward()
            optimizer.step()

    return program


def test_accumulation_over_more_batches_is_another_kind_of_iteration():
    s = run_in_session(accumulating((2, 2, 3, 2, 3)), None, "ram")[1].signatures
    assert len(s) == 5  # one for each optimizer step, not for each backward pass
    assert s[1] == s[3] and s[2] == s[4] and s[1] != s[2]


def test_an_iteration_of_a_gan_holds_a_step_of_each_optimizer():
    _, session = run_in_session(gan, None, "ram")
    optimizer_ops = [op for op in session.trace.ops if op.name == "aten::addcdiv_"]
    parameters = 6 + 4
    assert len(optimizer_ops) == parameters
    counts = Counter(session.signatures)
    assert counts.most_common(1)[0][1] >= STEPS - 2


def test_the_iterations_of_a_gan_take_turns_even_under_a_share():
    log, session = run_in_session(gan, known(gan).budget("percent"), "ram")
    assert log.rows == known(gan).rows
    assert len(set(session.signatures[2:])) == 1
