"""Every policy of managed memory by the name the command line uses."""

from __future__ import annotations

from memfit.baselines.paging.deepum import deepum
from memfit.baselines.paging.oc_dnn import oc_dnn
from memfit.baselines.paging.policy import PagingPolicy
from memfit.baselines.paging.um_naive import um_naive

PAGING: dict[str, PagingPolicy] = {"um-naive": um_naive, "oc-dnn": oc_dnn, "deepum": deepum}
