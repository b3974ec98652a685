"""The models that the GPU benchmarks train: on meta as they are, and tiny ones on the CPU."""

from importlib.util import find_spec

import pytest
import torch

from benchmarks.gpu.models import SPECS, blocks, spec_of, tiny
from benchmarks.gpu.training import Training, fingerprint

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")

CPU = torch.device("cpu")
EAGER = ("checkpoint", "selective", "save_on_cpu")


@pytest.mark.parametrize("name", SPECS)
def test_models_are_built_on_meta_with_the_blocks_that_repeat(name):
    with torch.device("meta"):
        model = SPECS[name].build()
    counts = {"vgg16": 5, "resnet50": 16, "resnet152": 50, "gpt2_medium": 24, "gpt2_xl": 48, "llama": 16}
    millions = {"vgg16": 138, "resnet50": 26, "resnet152": 60, "gpt2_medium": 355, "gpt2_xl": 1558, "llama": 1104}
    assert len(blocks(model)) == counts[name]
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == pytest.approx(millions[name], abs=1)


def test_a_model_can_be_deeper_and_its_batch_another():
    spec = spec_of({"model": "llama", "quick": True, "layers": 3, "batch": 2})
    assert len(blocks(spec.build())) == 3
    assert spec.batch == 2


def test_the_tiny_vgg_has_a_block_for_each_stage():
    assert len(blocks(tiny(SPECS["vgg16"]).build())) == 2


@pytest.mark.long
@pytest.mark.parametrize("mode", EAGER)
@pytest.mark.parametrize("name", ["vgg16", pytest.param("resnet50", marks=pytest.mark.slow), "gpt2_medium", "llama"])
def test_every_way_of_saving_memory_trains_and_gives_the_losses_of_the_plain_run(name, mode):
    losses = {}
    for each in ("plain", mode):
        losses[each] = Training(tiny(SPECS[name]), CPU, each).train(3).loss_bits()
    assert losses[mode] == losses["plain"]
    assert len(set(losses["plain"])) == 3


def test_a_fingerprint_sees_every_bit_and_no_difference_in_how_it_is_summed():
    tensors = [torch.randn(1000), torch.randn(30, 7).bfloat16(), torch.arange(5)]
    before = fingerprint(tensors)
    assert fingerprint(tensors, 64) == before == fingerprint([t.clone() for t in tensors])
    for tensor in tensors:
        other = tensor.clone()
        other.view(torch.uint8).view(-1)[9] ^= 1
        assert fingerprint([other if t is tensor else t for t in tensors]) != before
    swapped = tensors[0].clone()
    swapped[[3, 4]] = swapped[[4, 3]]
    assert fingerprint([swapped, *tensors[1:]]) != before
    assert fingerprint([]) == "0" * 32


def test_steps_are_timed_in_their_parts():
    times = Training(tiny(SPECS["vgg16"]), CPU).train(2).times_ms()
    assert len(times) == 2
    assert all(t["forward"] + t["backward"] + t["optimizer"] == pytest.approx(t["step"]) for t in times)
