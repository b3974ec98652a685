"""What does not go together with a budget, and the sentence that says so: one list for all libraries."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from memfit.errors import UsageError
from memfit.running.session import active_session


@dataclass(frozen=True)
class Conflict:
    """A setting that does not go together with a budget.

    Attributes:
        what: The setting.
        why: The reason.
        remedy: What to do instead.
        works: Whether training is right nevertheless: then it is a warning, otherwise an error.
    """

    what: str
    why: str
    remedy: str
    works: bool


DEEPSPEED = Conflict(
    "DeepSpeed does not work in a session",
    why="it moves and frees parameters by itself, through buffers and kernels that memfit does not see",
    remedy="leave DeepSpeed out: the session moves weights, gradients and optimizer states out; or leave memfit out",
    works=False,
)
OFFLOADED_WEIGHTS = Conflict(
    "this model's weights are offloaded by accelerate (device_map, cpu_offload or disk_offload) and cannot be trained",
    why="offloaded weights get no gradients, with memfit or without",
    remedy="load the model without device_map and offload: the session moves weights out by itself",
    works=False,
)
SEVERAL_DEVICES = Conflict(
    "this model's weights are spread over several devices, and the budget limits one of them",
    why="a session governs the memory of one device",
    remedy="load the model without device_map, onto the session's device",
    works=True,
)
OUTSIDE = Conflict(
    "weights of this model lie outside of the budget",
    why="their bytes are a file's mapping or a NumPy array's: on the CPU, transformers' from_pretrained maps the file",
    remedy="copy them once: for weight in model.parameters(): weight.data = weight.data.clone()",
    works=True,
)
FSDP_OFFLOAD = Conflict(
    "FSDP's CPU offload does again what the session does",
    why="it copies every parameter out and back in each step, also those that the budget has room for",
    remedy="turn cpu_offload off: the session moves out what does not fit",
    works=True,
)
PAGED_OPTIMIZER = Conflict(
    "a paged optimizer keeps its state outside of the budget",
    why="its pages are managed memory of the GPU's driver, which memfit neither counts nor moves",
    remedy="use the same optimizer without `paged_`: the session moves its state out between steps",
    works=True,
)
COMPILED = Conflict(
    "on a GPU each compiled kernel has to fit the budget",
    why="Triton's kernels are ops that neither run on mapped storages nor in slices, and were tried on one GPU",
    remedy="if a BudgetError names one, train without torch.compile (torch_compile=False, jit_compile=False)",
    works=True,
)
ACTIVATION_OFFLOAD = Conflict(
    "the offload of activations does again what the session does",
    why="it copies each activation out and back, also those that the budget has room for",
    remedy='leave "offload" out of the checkpointing arguments: the session moves out what does not fit',
    works=True,
)

CONFLICTS = (
    DEEPSPEED, OFFLOADED_WEIGHTS, SEVERAL_DEVICES, OUTSIDE, FSDP_OFFLOAD, PAGED_OPTIMIZER, COMPILED,
    ACTIVATION_OFFLOAD,
)  # fmt: skip
"""All of them; docs/trainers.md has the table."""


def answer(found: Iterable[Conflict]) -> None:
    """Say what does not go together with the session.

    Raises:
        UsageError: One of them does not work.
    """
    for conflict in found:
        error = UsageError(conflict.what, why=conflict.why, remedy=conflict.remedy)
        if not conflict.works:
            raise error
        warnings.warn(f"memfit: {error}", stacklevel=3)


def of_model(model: Any) -> Iterator[Conflict]:
    """Find what is amiss with a model in the active session, whichever library trains it."""
    session = active_session()
    if model is None or session is None:
        return
    if any(_offloads(getattr(module, "_hf_hook", None)) for module in model.modules()):
        yield OFFLOADED_WEIGHTS
    elif len({parameter.device for parameter in model.parameters()}) > 1:
        yield SEVERAL_DEVICES
    elif any(session.is_outside(parameter) for parameter in model.parameters()):
        yield OUTSIDE
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        yield COMPILED


def _offloads(hook: Any) -> bool:
    """Return whether a hook of accelerate, or one in a `SequentialHook`, takes weights away."""
    return bool(getattr(hook, "offload", False)) or any(map(_offloads, getattr(hook, "hooks", ())))
