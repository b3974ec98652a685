"""The arithmetic of each technique beside recordings of small models that it was applied to."""

import gc

import pytest

from memfit.comparing.compression import compressed, library_lines, parse_techniques
from memfit.errors import UsageError
from memfit.planning.autoswap import smallest_budget
from memfit.simulate import load_bytes
from planning.joint.test_transformed import layers

pytest.importorskip("torch")

from benchmarks.common.compressing import APPLIED, cnn, gpt, mlp, probe, with_lora  # noqa: E402
from memfit import record  # noqa: E402
from session_fixtures import few_visible_objects, one_thread  # noqa: E402, F401

MODELS = {
    "mlp": mlp, "wide": lambda: mlp(1024), "cnn": lambda: cnn(16, 32), "gpt": lambda: gpt(64, layers=2, words=128),
    "probe": lambda: probe(512), "adapted": lambda: with_lora(gpt(64, layers=2, words=128), 8),
}  # fmt: skip
# What is foreseen of a model, and the library that it is applied by.
CASES = [
    ("mlp", "channels:50%", "torch_pruning"), ("cnn", "channels:50%", "torch_pruning"), ("mlp", "prune", "torch"),
    ("cnn", "prune", "torch"), ("gpt", "prune", "torch"), ("mlp", "lowrank:32", "torch"), ("gpt", "lowrank:8", "torch"),
    ("mlp", "share:4", "sklearn"), ("mlp", "distil:64", "torch"), ("cnn", "distil:8", "torch"),
    ("gpt", "bf16", "torch"), ("mlp", "8bit-adam", "bitsandbytes"), ("gpt", "lora:8", "peft"),
    ("mlp", "lora:8", "peft"), ("probe", "int8-frozen", "torchao"), ("adapted", "int8-frozen", "torchao"),
    ("mlp", "lowrank:32,8bit-adam", "bitsandbytes"),
]  # fmt: skip


def recorded(training):
    gc.collect()
    return record(training.step)


@pytest.fixture(scope="module")
def trace_of():
    known = {}

    def find(model):
        if model not in known:
            known[model] = recorded(MODELS[model]())
        return known[model]

    return find


def peak(trace):
    return int(load_bytes(trace).max())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "words", "library"), CASES)
def test_the_foreseen_peak_is_the_recorded_one_within_3_percent(trace_of, model, words, library):
    pytest.importorskip(library)
    if model == "adapted":
        pytest.importorskip("peft")
    base, training = trace_of(model), MODELS[model]()
    for each in parse_techniques(words):
        training = APPLIED[each.technique.name](training, each.number)
    foreseen, real = compressed(base, parse_techniques(words)), recorded(training)
    assert peak(foreseen) == pytest.approx(peak(real), rel=0.03)
    most = 0.2 if (model, words) == ("gpt", "prune") else 0.08  # masks of all layers are taken to be there at once
    assert smallest_budget(foreseen)[0] == pytest.approx(smallest_budget(real)[0], rel=most)


@pytest.mark.parametrize("percent", [50, 75])
def test_fewer_channels_are_a_model_of_that_width(trace_of, percent):
    foreseen = compressed(trace_of("mlp"), parse_techniques(f"channels:{percent}%"))
    real = recorded(mlp(512 - 512 * percent // 100))
    assert peak(foreseen) == pytest.approx(peak(real), rel=0.02)


def test_sharing_and_quantising_what_is_trained_change_nothing(trace_of):
    base = trace_of("mlp")
    for words in ("share:16", "int8-frozen"):
        made = compressed(base, parse_techniques(words))
        assert made.storages == base.storages and made.ops == base.ops


def test_pruning_by_a_mask_takes_more(trace_of):
    assert peak(compressed(trace_of("mlp"), parse_techniques("prune"))) > peak(trace_of("mlp"))


def test_8_bits_need_moments():
    import torch

    model = mlp()
    model.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    base = recorded(model)
    made = compressed(base, parse_techniques("8bit-adam"))
    assert made.storages == base.storages


def test_the_order_of_words_does_not_matter(trace_of):
    one, other = (compressed(trace_of("gpt"), parse_techniques(words)) for words in ("lora:4,bf16", "bf16,lora:4"))
    assert one.storages == other.storages


def test_frozen_weights_that_gradients_pass_are_quantised_another_way(trace_of):
    (int8,) = parse_techniques("int8-frozen")
    alone = library_lines(trace_of("probe"), int8)
    assert "Int8WeightOnlyConfig" in alone[0]
    beside = library_lines(trace_of("gpt"), int8, parse_techniques("lora:8"))
    assert "quantized_training" in beside[0]


@pytest.mark.long
def test_every_technique_has_lines_that_fit_a_terminal_and_can_be_read(trace_of):
    every = "8bit-adam,lora:8,bf16,int8-frozen,channels:50%,prune,lowrank:32,share:16,distil:64"
    for each in parse_techniques(every):
        lines = library_lines(trace_of("gpt"), each, parse_techniques("lora:8"))
        assert lines and all(len(line) <= 76 for line in lines)
        compile("\n".join(lines), each.word, "exec")


def test_words_are_read_once_each():
    chosen = parse_techniques(" lora:8, channels:50% ,lora:8,channels:50%")
    assert [(each.technique.name, each.number) for each in chosen] == [("lora", 8), ("channels", 50)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no technique"), ("magic", "there is no technique 'magic'"), ("lora", "lora needs a number"),
        ("lora:x", "lora needs a number"), ("lora:0", "lora needs a number"), ("lora:8%", "lora needs a number"),
        ("channels:100%", "channels needs a number"), ("bf16:2", "bf16 takes no number"), ("bf16:", "takes no number"),
    ],
)  # fmt: skip
def test_words_that_mean_nothing_are_refused_with_what_there_is(text, says):
    with pytest.raises(UsageError, match=says) as caught:
        parse_techniques(text)
    assert caught.value.remedy


def test_a_trace_without_shapes_is_refused():
    with pytest.raises(UsageError, match="does not say what its tensors are"):
        compressed(layers(2)[0], parse_techniques("bf16"))
