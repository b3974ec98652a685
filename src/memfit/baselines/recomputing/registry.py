"""Every policy that recomputes, by its name."""

from __future__ import annotations

from memfit.baselines.policies import Policy
from memfit.baselines.recomputing.capuchin import capuchin_whole
from memfit.baselines.recomputing.checkmate import checkmate
from memfit.baselines.recomputing.dtr import dtr
from memfit.baselines.recomputing.hybrid import hybrid
from memfit.baselines.recomputing.knapsack import torch_knapsack
from memfit.baselines.recomputing.memfit import memfit_joint
from memfit.baselines.recomputing.memonger import memonger_budget, memonger_sqrt
from memfit.baselines.recomputing.superneurons import SUPERNEURONS

RECOMPUTE_POLICIES: dict[str, Policy] = {
    "memonger-sqrt": memonger_sqrt,
    "memonger-budget": memonger_budget,
    **SUPERNEURONS,
    "swap-convolutions": hybrid,
    "dtr": dtr,
    "capuchin-whole": capuchin_whole,
    "torch-knapsack": torch_knapsack,
    "memfit-joint": memfit_joint,
}
"""The policies for any trace."""

SMALL_GRAPHS: dict[str, Policy] = {"checkmate": checkmate}
"""Those for some tens of ops only."""


def find_recompute_policy(name: str) -> Policy:
    """Return the policy `name`; raises KeyError for an unknown name."""
    return RECOMPUTE_POLICIES[name] if name in RECOMPUTE_POLICIES else SMALL_GRAPHS[name]
