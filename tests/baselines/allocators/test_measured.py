"""PyTorch's caching allocator on real lifetimes: the gaps measured beside the data."""

import pytest

from events_builder import DATA, needs_data
from memfit.baselines.allocators import run_allocator
from memfit.files import load_events

# Footprint over the peak of live bytes, in per cent, as shared/data/README.md has it.
GAPS = {
    "packing/resnet50": 11.4,
    "packing/hist_bert_base": 1.1,
    "packing/hist_pangu_13B": 5.9,
    "packing/S_1": 40.1,
    "packing/G_1": 2.3,
    "snapshots/lm_ctx128_fullstep": 11.2,
    "snapshots/lm_medium_512_training": 1.4,
    "snapshots/vision_small": 8.2,
}


@needs_data
@pytest.mark.parametrize("name", GAPS)
def test_the_measured_gap(name):
    outcome = run_allocator("pytorch", load_events(DATA / f"{name}.csv"))
    assert 100 * outcome.over_peak == pytest.approx(GAPS[name], abs=0.05)
