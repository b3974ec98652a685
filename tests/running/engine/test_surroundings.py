"""Whatever may change what an op computes, besides its inputs, is one record: the engine's surroundings.

Every setter that torch has either changes a row of it, or is named here with the reason why it need not.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from memfit.running import engine
from running.children import Child

C = torch._C
ADVICE = (
    "is a setter of torch that no list of this test has. If an op may compute other bits after it, add a row to kAll "
    "in native/engine/surroundings.cpp (and raise the number in kept_answers.py), and what sets another value to "
    "CHANGES; otherwise say in HARMLESS why it cannot"
)


def of_backend(path: str, value: object) -> Callable[[], object]:
    """Return what sets an attribute below `torch.backends`."""
    module, name = path.rsplit(".", 1)

    def change() -> None:
        target = torch.backends
        for part in module.split(".")[2:]:
            target = getattr(target, part)
        setattr(target, name, value)

    return change


def flipped(name: str) -> Callable[[], object]:
    """Return what turns a flag of `torch._C` over, or what is called with the other value."""

    def change() -> None:
        getter = name.replace("_set_sdp_use_", "_get_").replace("_set_", "_get_", 1)
        get = getattr(C, getter, None) or getattr(C, f"{getter}_sdp_enabled")
        getattr(C, name)(not get())

    return change


# Each changes what it names, from what it is in a process that has changed nothing.
CHANGES: dict[str, Callable[[], object]] = {
    "torch.set_autocast_cpu_dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "torch.set_autocast_cpu_enabled": lambda: torch.set_autocast_enabled("cpu", True),
    "torch.set_autocast_dtype": lambda: torch.set_autocast_dtype("cuda", torch.bfloat16),
    "torch.set_autocast_enabled": lambda: torch.set_autocast_enabled("cuda", True),
    "torch.set_autocast_gpu_dtype": lambda: torch.set_autocast_dtype("cuda", torch.float32),
    "torch.set_default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch.set_default_tensor_type": lambda: torch.set_default_tensor_type(torch.DoubleTensor),
    "torch.set_deterministic_debug_mode": lambda: torch.set_deterministic_debug_mode("warn"),
    "torch.set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision("medium"),
    "torch.set_flush_denormal": lambda: torch.set_flush_denormal(True),
    "torch.set_grad_enabled": lambda: C._set_grad_enabled(False),
    "torch.set_num_threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch.use_deterministic_algorithms": lambda: torch.use_deterministic_algorithms(True),
    "torch._C._cuda_set_cudnn_benchmark_limit": lambda: C._cuda_set_cudnn_benchmark_limit(7),
    "torch._C._set_cpu_allow_fp16_reduced_precision_reduction":
        flipped("_set_cpu_allow_fp16_reduced_precision_reduction"),
    "torch._C._set_cublas_allow_bf16_reduced_precision_reduction":
        lambda: C._set_cublas_allow_bf16_reduced_precision_reduction(False, False),
    "torch._C._set_cublas_allow_fp16_reduced_precision_reduction":
        lambda: C._set_cublas_allow_fp16_reduced_precision_reduction(False, True),
    "torch._C._set_cublas_allow_fp16_accumulation": flipped("_set_cublas_allow_fp16_accumulation"),
    "torch._C._set_cublaslt_prefer_grouped_gemm": lambda: C._set_cublaslt_prefer_grouped_gemm(True),
    "torch._C._set_cublas_allow_tf32": lambda: C._set_cublas_allow_tf32(True),
    "torch._C._set_cudnn_allow_tf32": lambda: C._set_cudnn_allow_tf32(False),
    "torch._C._set_cudnn_benchmark": flipped("_set_cudnn_benchmark"),
    "torch._C._set_cudnn_depthwise_kernel": lambda: C._set_cudnn_depthwise_kernel("native"),
    "torch._C._set_cudnn_deterministic": flipped("_set_cudnn_deterministic"),
    "torch._C._set_cudnn_enabled": flipped("_set_cudnn_enabled"),
    "torch._C._set_default_dtype": lambda: torch.set_default_dtype(torch.float16),
    "torch._C._set_default_tensor_type": lambda: torch.set_default_tensor_type(torch.HalfTensor),
    "torch._C._set_deterministic_algorithms": lambda: C._set_deterministic_algorithms(True, warn_only=True),
    "torch._C._set_deterministic_fill_uninitialized_memory": flipped("_set_deterministic_fill_uninitialized_memory"),
    "torch._C._set_float32_matmul_precision": lambda: C._set_float32_matmul_precision("high"),
    "torch._C._set_fp32_precision_setter": lambda: C._set_fp32_precision_setter("cuda", "rnn", "ieee"),
    "torch._C._set_grad_enabled": lambda: C._set_grad_enabled(False),
    "torch._C._set_math_sdp_allow_fp16_bf16_reduction": flipped("_set_math_sdp_allow_fp16_bf16_reduction"),
    "torch._C._set_miopen_immediate": flipped("_set_miopen_immediate"),
    "torch._C._set_mkldnn_deterministic": flipped("_set_mkldnn_deterministic"),
    "torch._C._set_mkldnn_enabled": flipped("_set_mkldnn_enabled"),
    "torch._C._set_native_aot_enabled": flipped("_set_native_aot_enabled"),
    "torch._C._set_native_aot_unconditional_masked": flipped("_set_native_aot_unconditional_masked"),
    "torch._C._set_nnpack_enabled": flipped("_set_nnpack_enabled"),
    "torch._C._set_qengine": lambda: C._set_qengine(({*C._supported_qengines()} - {0, C._get_qengine()}).pop()),
    "torch._C._set_sdp_priority_order": lambda: C._set_sdp_priority_order(C._get_sdp_priority_order()[::-1]),
    "torch._C._set_sdp_use_cudnn": flipped("_set_sdp_use_cudnn"),
    "torch._C._set_sdp_use_fa3": flipped("_set_sdp_use_fa3"),
    "torch._C._set_sdp_use_fa4": flipped("_set_sdp_use_fa4"),
    "torch._C._set_sdp_use_flash": flipped("_set_sdp_use_flash"),
    "torch._C._set_sdp_use_math": flipped("_set_sdp_use_math"),
    "torch._C._set_sdp_use_mem_efficient": flipped("_set_sdp_use_mem_efficient"),
    "torch._C._set_sdp_use_overrideable": flipped("_set_sdp_use_overrideable"),
    "torch._C._set_sm_carveout_experimental": lambda: C._set_sm_carveout_experimental(7),
    "torch.backends.fp32_precision": of_backend("torch.backends.fp32_precision", "ieee"),
    "torch.backends.cudnn.conv.fp32_precision": of_backend("torch.backends.cudnn.conv.fp32_precision", "ieee"),
    "torch.backends.cudnn.rnn.fp32_precision": of_backend("torch.backends.cudnn.rnn.fp32_precision", "ieee"),
    "torch.backends.cudnn.fp32_precision": of_backend("torch.backends.cudnn.fp32_precision", "ieee"),
    "torch.backends.mkldnn.conv.fp32_precision": of_backend("torch.backends.mkldnn.conv.fp32_precision", "bf16"),
    "torch.backends.mkldnn.fp32_precision": of_backend("torch.backends.mkldnn.fp32_precision", "bf16"),
    "torch.backends.mkldnn.matmul.fp32_precision": of_backend("torch.backends.mkldnn.matmul.fp32_precision", "tf32"),
    "torch.backends.mkldnn.rnn.fp32_precision": of_backend("torch.backends.mkldnn.rnn.fp32_precision", "bf16"),
    "torch.inference_mode": lambda: ENTERED.append(torch.inference_mode()) or ENTERED[-1].__enter__(),
}  # fmt: skip
ENTERED: list[Any] = []

GPU = "its setter asks for a GPU's library; the row is read and set on a GPU as others are"
BELOW = "only autograd, or what comes before it, reads it: a re-run and a slice run below"
SAYS = "it says more or less, and computes the same"
OTHER = "it is of another device than memfit's"
PYTHON = "only Python reads it: an op gets what follows as an argument"
SCRIPT = "of TorchScript, whose kernels are not torch's operators and never run again"
OBJECT = "it changes the object that it is given, or the process, and no op"
DISPATCH = "a key of the calling thread: a re-run sets all keys itself, and a call that others take over is not kept"

# A regular expression of names: why a setter cannot change what a re-run or a slice computes.
HARMLESS: dict[str, str] = {
    r"torch\.set_anomaly_enabled": BELOW,
    r"torch\.set_autocast_cache_enabled": "what is cast is the same with a cache and without; re-runs turn it off",
    r"torch\.set_autocast_(ipu|xla)_\w+": OTHER,
    r"torch\.set_default_device": PYTHON,
    r"torch\.set_num_interop_threads": "it says how many tasks run side by side, none of which is a part of an op",
    r"torch\.set_(printoptions|vital|warn_always)": SAYS,
    r"torch\.set_rng_state": "what a re-run draws is drawn from a copy of the generator as it was (draws.h)",
    r"torch\.utils\.set_module": OBJECT,
    r"torch\._C\._(jit|tracer)_\w*": SCRIPT,
    r"torch\._C\._(mps|mtia|accelerator)_\w+": OTHER,
    r"torch\._C\._cuda_set_sync_debug_mode": SAYS,
    r"torch\._C\._cuda_tunableop_set_\w+": "how a product not met before is tuned: a re-run's and a slice's have been",
    r"torch\._C\._cudnn_set_conv_benchmark_empty_cache": "whether torch's cache is emptied between two measurements",
    r"torch\._C\._dispatch_\w+": DISPATCH,
    r"torch\._C\._logging_set_logger": SAYS,
    r"torch\._C\._debug_set_\w+": SCRIPT,
    r"torch\._C\._set_autograd_fallback_mode": BELOW,
    r"torch\._C\._set_backcompat_\w+_warn": SAYS,
    r"torch\._C\._set_(blas|linalg)_preferred_backend": GPU,
    r"torch\._C\._set_rocm_fa_preferred_backend": GPU,
    r"torch\._C\._set_cached_tensors_enabled": "which Python objects are kept for graphs",
    r"torch\._C\._set_check_sparse_tensor_invariants": "it refuses tensors or takes them, and computes the same",
    r"torch\._C\._set_(conj|neg|tensor_metadata|thread_name|generator_metaclass|skip_next_torch_function)": OBJECT,
    r"torch\._C\._set_default_mobile_cpu_allocator": "memfit refuses to work beside another allocator of the host's",
    r"torch\._C\._set_dispatch_mode": DISPATCH,
    r"torch\._C\._set_meta_in_tls_dispatch_include": DISPATCH,
    r"torch\._C\._set_only_lift_cpu_tensors": PYTHON,
    r"torch\._C\._set_dtensor_allow_implicit_replication": PYTHON,
    r"torch\._C\._set_torch_function_state": PYTHON,
    r"torch\._C\._set_(fwd_grad|multithreading|view_replay|grad_layout_enforcement)_enabled": BELOW,
    r"torch\._C\._set_graph_exec_group": BELOW,
    r"torch\._C\._set_(graph_executor_optimize|tracing_state|value_trace|should_use_format_with_string_table)": SCRIPT,
    r"torch\._C\._set_override_stale_capture_stream": BELOW,
    r"torch\._C\._set_warn_on_accumulate_grad_stream_mismatch": SAYS,
    r"torch\._C\._set_(print_stack_traces_on_fatal_signal|warnAlways|warn_deprecated_on_mutable_data_ptr)": SAYS,
    r"torch\._C\._set_throw_on_mutable_data_ptr": OBJECT,
    r"torch\._C\._set_(storage_access|storage_data_ptr_access)_error_msg|torch\._C\._set_fake_constant": OBJECT,
    r"torch\._C\._set_worker_(pids|signal_handlers)": OBJECT,
    r"torch\.backends\.(mha|opt_einsum)\.\w+": PYTHON,
    r"torch\._C\._set_onednn_allow_tf32|torch\.backends\.mkldnn\.allow_tf32": OTHER,
    r"torch\.backends\.quantized\.supported_engines": "it cannot be set",
    r"torch\.backends\.python_native\.\w+": "it registers kernels, or takes them back, and sets nothing",
    r"torch\.backends\.cudnn\.benchmark_limit": GPU,
    r"torch\.backends\.cuda\.preferred_\w+": GPU,
}


def setters() -> Iterator[str]:
    """Yield the names of all functions that set something for more than one call, and of all such attributes."""
    for name in dir(torch):
        if re.match(r"(set|use)_|inference_mode$", name):
            yield f"torch.{name}"
    for name in dir(C):
        if re.search(r"(^|_)set_(?!.*(reset|emit))", name) and name not in dir(torch):
            yield f"torch._C.{name}"
    yield from backend_setters("torch.backends", torch.backends, set())


def backend_setters(path: str, module: Any, seen: set[int]) -> Iterator[str]:
    """Yield the attributes of a module of backends that are more than values, and the functions that set something."""
    seen.add(id(module))
    for name in sorted({*dir(module), *dir(type(module))}):
        attribute = type(module).__dict__.get(name)
        if hasattr(attribute, "__set__") and not name.startswith("_"):
            yield f"{path}.{name}"
        value = getattr(module, name, None)
        if (
            isinstance(value, types.ModuleType)
            and value.__name__.startswith("torch.backends")
            and id(value) not in seen
        ):
            yield from backend_setters(path if name == "m" else f"{path}.{name}", value, seen)
        elif type(value).__name__ == "_FP32Precision":
            yield f"{path}.{name}.fp32_precision"
        elif re.match(r"set_(?!flags)|preferred_", name):
            yield f"{path}.{name}"


# Attributes below torch.backends that are another name of one of torch._C's.
SYNONYMS = {
    "torch.backends.cudnn.enabled", "torch.backends.cudnn.deterministic", "torch.backends.cudnn.benchmark",
    "torch.backends.cudnn.allow_tf32", "torch.backends.cudnn.depthwise_kernel", "torch.backends.mkldnn.enabled",
    "torch.backends.mkldnn.deterministic", "torch.backends.quantized.engine",
    "torch.backends.miopen.immediate",
}  # fmt: skip


def is_harmless(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in HARMLESS)


def test_every_setter_of_torchs_is_known() -> None:
    unknown = [name for name in setters() if name not in {*CHANGES, *SYNONYMS} and not is_harmless(name)]
    assert not unknown, "\n".join(f"{name} {ADVICE}" for name in unknown)


def test_no_setter_is_both_a_part_of_the_record_and_harmless() -> None:
    assert not [name for name in CHANGES if is_harmless(name)]


def seen_around(change: Callable[[], object]) -> str:
    """Return what a change changes, what of that is still so within the surroundings of before, and after that."""
    native = engine.load()
    before = native.surroundings()
    try:
        change()
    except RuntimeError as error:
        return json.dumps(str(error))
    after = native.surroundings()
    inside = native.within(before, native.surroundings)
    states = (after, inside, native.surroundings())
    return json.dumps([{name: value for name, value in state.items() if value != before[name]} for state in states])


@pytest.mark.parametrize("name", [*filter({*setters()}.__contains__, CHANGES)])
def test_what_a_setter_changes_is_seen_and_set_for_a_while_as_it_was(name: str) -> None:
    engine.load()
    seen = json.loads(Child(lambda: seen_around(CHANGES[name])).answer())
    if isinstance(seen, str):
        pytest.skip(f"torch refuses it here: {seen}")
    changed, inside, left = seen
    assert changed, f"{name} {ADVICE}"
    assert not inside and left == changed


def test_precisions_that_inherit_go_on_inheriting_after_they_were_set_for_a_while() -> None:
    def inherited() -> str:
        native = engine.load()
        before = native.surroundings()
        torch.backends.fp32_precision = "tf32"
        native.within(before, lambda: None)
        torch.backends.fp32_precision = "ieee"
        return json.dumps([getattr(torch.backends.mkldnn, kind).fp32_precision for kind in ("matmul", "conv", "rnn")])

    assert json.loads(Child(inherited).answer()) == ["ieee"] * 3


def test_a_name_that_is_no_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="not among the surroundings"):
        engine.load().within({"phase of the moon": 1}, lambda: None)
