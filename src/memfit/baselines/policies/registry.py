"""Every swap policy by the name the command line uses."""

from __future__ import annotations

from memfit.baselines.policies.autoswap import BY_SCORE, autoswap, autoswap_bayes
from memfit.baselines.policies.capuchin import capuchin
from memfit.baselines.policies.geeps import geeps
from memfit.baselines.policies.memfit import memfit_policy
from memfit.baselines.policies.none import none
from memfit.baselines.policies.on_demand import on_demand_clairvoyant, on_demand_lru
from memfit.baselines.policies.policy import Policy
from memfit.baselines.policies.superneurons import superneurons_cache
from memfit.baselines.policies.swap_advisor import swap_advisor
from memfit.baselines.policies.tflms import tflms
from memfit.baselines.policies.vdnn import vdnn_all, vdnn_conv, vdnn_dyn

POLICIES: dict[str, Policy] = {
    "none": none,
    "on-demand-lru": on_demand_lru,
    "on-demand-clairvoyant": on_demand_clairvoyant,
    "vdnn-all": vdnn_all,
    "vdnn-conv": vdnn_conv,
    "vdnn-dyn": vdnn_dyn,
    "geeps": geeps,
    "superneurons": superneurons_cache,
    "tflms": tflms,
    "capuchin": capuchin,
    "swap-advisor": swap_advisor,
    "autoswap": autoswap,
    "memfit": memfit_policy,
}
"""The policies that `all` selects."""

OPTIONAL: dict[str, Policy] = {**BY_SCORE, "autoswap-bayes": autoswap_bayes}
"""AutoSwap by one score, and by the combination that needs a package of its own."""


def find_policy(name: str) -> Policy:
    """Return the policy `name`; raises KeyError for an unknown name."""
    return POLICIES[name] if name in POLICIES else OPTIONAL[name]
