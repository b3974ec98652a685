"""Settings: a session as it was asked for, before anything has begun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from memfit import ranks
from memfit._version import __version__
from memfit.ir import Plan
from memfit.machine import Machine
from memfit.planning.joint.program import Moves
from memfit.planning.partition import Speeds
from memfit.running.engine.plans import plans_folder
from memfit.running.engine.tiers import TierSpec
from memfit.running.machine.compute import speeds_to
from memfit.running.machine.measure_cuda import cuda_machine
from memfit.running.planned.claims import Claims
from memfit.running.planned.plan_cache import PlanCache
from memfit.running.session.kept_answers import KeptAnswers
from memfit.running.session.splits import KeptSplits
from memfit.running.session.tried_calls import KeptTriedCalls
from memfit.tracing.ghosts import Twins
from memfit.tracing.roofline import Accelerator
from memfit.units import Budget


class Mapping(StrEnum):
    """Which storages an op may see where they wait, instead of in the arena."""

    NEVER = "never"
    AUTO = "auto"
    """Some of those of an op that does not fit."""
    ALWAYS = "always"
    """Whatever may be."""


class Splitting(StrEnum):
    """Which ops may run in slices."""

    NEVER = "never"
    AUTO = "auto"
    """Those that do not fit."""
    TRY = "try"
    """Those that do not fit; large ones are tried beforehand, while there is no limit."""


class Partition(StrEnum):
    """Which values a forward pass that `torch.compile` makes keeps for its backward pass."""

    TORCH = "torch"
    """Those that torch would."""
    RECOMPUTE = "recompute"
    """Those that take longer to make again than to copy."""


@dataclass(frozen=True)
class Settings:
    """The settings of a session, given when it is made."""

    budget: Budget | None
    is_auto: bool
    """Whether the budget is what is free when the session begins."""
    tier: TierSpec
    device: torch.device
    splitting: Splitting
    """Whether ops that do not fit run in slices."""
    grow: bool
    """Whether an op that does not fit gets more than the budget."""
    mapping: Mapping
    """Which storages ops see where they wait, in the tier."""
    partition: Partition
    """What graphs keep that are compiled in the session."""
    plans: bool
    """Whether iterations that repeat are run by a plan."""
    patience: float
    """Seconds that training waits for its first plan before it goes on without."""
    moves: Moves
    """What plans may do with a storage that is not in use."""
    given: Plan | None
    """The plan to run them by, if one was passed."""
    measures: bool
    """Whether the session notes what iterations under a plan did."""
    keeps_plans: bool
    """Whether plans are kept on disk for other runs, and those of other runs are used."""
    record: bool
    notes_shapes: bool
    """Whether recordings have the types and shapes of every op's tensors."""
    script: str
    accelerator: Accelerator | None
    """With one, the session records storages of device meta, and those alone, as if it ran them."""
    twins: Twins | None
    """With them, it records those that they stand for as well."""
    on_trace: Callable[[], None] | None
    announce: Callable[[str], None] | None
    """A function that is told in a sentence when a share becomes a limit, and when a plan first comes into force."""

    @property
    def fixed_bytes(self) -> int | None:
        """The budget that holds from the first op; None for a share, or for none."""
        return None if self.budget is None else self.budget.bytes

    def speeds(self) -> Speeds | None:
        """Return the machine's speeds, if they decide what compiled graphs keep; not to be called inside a session."""
        return speeds_to(self.tier, self.device) if self.partition is Partition.RECOMPUTE else None

    def plan_cache(self) -> PlanCache | None:
        """Return the plans that are kept on disk for runs like this one; None if none are."""
        folder = plans_folder() if self.plans and self.keeps_plans else None
        if folder is None:
            return None
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        tier = f"{self.tier.kind}{'+disk' if self.tier.kind == 'ram' and self.tier.folder else ''}"
        tier += ",compress" if self.tier.compress else ""
        about = (__version__, torch.__version__, device, tier, self.moves, str(torch.get_num_threads()))
        return PlanCache(folder, about, Claims(folder) if ranks.local_world_size() > 1 else None)

    def kept_answers(self) -> list[KeptAnswers[Any]]:
        """Return what earlier runs on this machine have tried of calls, as far as this session asks for that."""
        kinds = (KeptTriedCalls, KeptSplits) if self.splitting is not Splitting.NEVER else (KeptTriedCalls,)
        found = [kind.of_this_machine(self.device) for kind in kinds if self.keeps_plans]
        return [kept for kept in found if kept is not None]

    def measured_machine(self) -> Machine | None:
        """Return the GPU's machine, whose link no session's first copies tell; None for the CPU and for a disk."""
        direct = self.device.type == "cuda" and self.tier.kind == "ram" and not self.tier.folder
        return cuda_machine(self.device) if direct and self.plans else None
