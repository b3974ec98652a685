"""The simulated GPU: built once, and put under a Python process of its own (docs/cuda-simulator.md)."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from memfit.files import save_machine
from memfit.machine import Link, Machine, profile
from memfit.running import engine
from memfit.running.machine.measure_cuda import cuda_machine_file
from memfit.shapes import parse_shapes
from memfit.tracing.roofline import Accelerator
from python_path import environment

MIB = 1 << 20
_HERE = Path(__file__).parent
_RUNTIME = ("fake_streams.cpp", "fake_memory.cpp", "fake_managed.cpp", "fake_runtime.cpp", "fake_driver.cpp")
_OPERATORS = ("simulated_ops.cpp", "simulated_draws.cpp", "simulated_libraries.cpp", "simulated_times.cpp")


@dataclass(frozen=True)
class Host:
    """What the host takes on the virtual clock, and what two ways of a link take from each other.

    Attributes:
        call_ns: A call of the runtime's.
        op_ns: An op, besides.
        session_op_ns: An op in a session, besides that.
        reading_bytes_per_s: What is copied to ordinary memory, to be read there by the thread that waits for it; 0: at
            once.
        locking_bytes_per_s: What is page-locked, one piece after another beside the program; 0: at once.
        both_factor: The part of its speed that the link has while the other direction is busy too.
        planning: Seconds that it takes for a second of this machine's processor, in which plans are made.
    """

    call_ns: int = 1000
    op_ns: int = 4000
    session_op_ns: int = 0
    reading_bytes_per_s: float = 0.0
    locking_bytes_per_s: float = 0.0
    both_factor: float = 1.0
    planning: float = 0.0


def missing() -> str:
    """Return what the simulator lacks here; empty if it can be built."""
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if engine.cuda_headers() is None:
        return "the CUDA headers are not there"
    return "" if engine.compiler() else "there is no C++ compiler"


def build() -> Path:
    """Return the folder with the two libraries, built if they are not there."""
    key = hashlib.sha256(torch.__version__.encode())
    for source in sorted(_HERE.glob("*.[ch]*")):
        key.update(source.read_bytes())
    folder = engine.cache_folder() / f"cuda-simulator-{key.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "operators.so").exists():
            _compile(folder)
    return folder


def _compile(folder: Path) -> None:
    home = Path(torch.__file__).parent
    includes = [f"-I{engine.cuda_headers()}", f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    compiler = [*engine.compiler(), "-std=c++20", "-O1", "-g", "-shared", "-fPIC", *includes]
    # They bear the names of the driver's libraries, so that who asks for these gets them.
    runtime = [*(str(_HERE / name) for name in _RUNTIME), "-Wl,-soname,libcuda.so.1", "-lpthread"]
    subprocess.run([*compiler, *runtime, "-o", str(folder / "runtime.so")], check=True)
    management = [str(_HERE / "fake_nvml.cpp"), "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([*compiler, *management, "-o", str(folder / "management.so")], check=True)
    links = [f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu", "-lc10_cuda", "-ltorch_cuda"]
    made = folder / "operators.so.part"
    subprocess.run([*compiler, *(str(_HERE / name) for name in _OPERATORS), *links, "-o", str(made)], check=True)
    os.replace(made, folder / "operators.so")


def run(
    arguments: list[str], gpu_bytes: int = 1 << 30, timeout: float = 600, gpus: int = 1, peers: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run Python with `arguments` on a simulated GPU of `gpu_bytes`, beside others; `peers`: they reach each other."""
    folder = build()
    engine.load()  # so that the other process finds it built
    variables = {
        "LD_PRELOAD": f"{folder / 'runtime.so'}:{folder / 'management.so'}",
        "SIMULATED_GPU": str(folder),
        "SIMULATED_GPU_BYTES": str(gpu_bytes),
        "SIMULATED_GPUS": str(gpus),
        "SIMULATED_PEERS": str(int(peers)),
        "OMP_NUM_THREADS": "1",  # of each stream's thread
    }
    within = environment(**variables)
    within.pop("CUDA_VISIBLE_DEVICES", None)  # the simulated one is to be seen
    return subprocess.run([sys.executable, *arguments], env=within, capture_output=True, text=True, timeout=timeout)


class Gpu:
    """The simulated GPU that this process runs on."""

    def __init__(self) -> None:
        folder = Path(os.environ["SIMULATED_GPU"])
        self.operators = ctypes.PyDLL(str(folder / "operators.so"))
        self.operators.simulate_operators()
        engine.load().trust_registered_kernels(True)  # they stand for those that torch has for a GPU
        self.runtime = ctypes.CDLL(None)
        for name in (
            "in_use",
            "peak",
            "locked",
            "to_host",
            "events",
            "streams",
            "waits",
            "calls",
            "now",
            "pieces",
            "managed",
            "prefetched",
        ):
            getattr(self.runtime, f"simulated_{name}").restype = ctypes.c_int64
        self.runtime.cudaMemcpyAsync.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                                                 ctypes.c_void_p]  # fmt: skip
        self.runtime.cudaMemsetAsync.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
        self.runtime.cudaMalloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.runtime.cudaFree.argtypes = [ctypes.c_void_p]
        # What a session would measure is this host, for minutes.
        save_machine(profile("pcie5"), cuda_machine_file(torch.device("cuda", 0)))

    def count(self, what: str) -> int:
        """Return a number: of bytes `in_use`, their `peak`, `locked` ones, those copied `to_host`, `events`, `streams`,
        `waits` of the host.

        Or of `calls` of the runtime's functions, of nanoseconds until `now` on the virtual clock, or of `pieces` that
        are mapped; of bytes of `managed` memory, and of those `prefetched` to the GPU so far.
        """
        return int(getattr(self.runtime, f"simulated_{what}")())

    def reset_peak(self) -> None:
        self.runtime.simulated_reset_peak()

    def delay(self, longest_us: int, seed: int = 0) -> None:
        """Let every copy and op take a random while from here on; some streams are slower than others."""
        self.runtime.simulated_delays(ctypes.c_int64(longest_us), ctypes.c_uint64(seed))

    def link(self, bytes_per_second: float, latency_us: float = 0.0) -> None:
        """Let copies between the GPU and locked memory take their time from here on (0: as long as they take)."""
        self.runtime.simulated_link(ctypes.c_double(bytes_per_second), ctypes.c_int64(int(1000 * latency_us)))

    def keep_time(self, accelerator: Accelerator, link: Link, host: Host = Host()) -> None:  # noqa: B008 (frozen)
        """Model all times from here on: of ops by `accelerator`, of copies by `link` each way, of the rest by `host`.

        They are those of a virtual clock, which real time does not touch: what was measured once is measured again.
        """
        self._host = host

        def op_ns(op: bytes, shapes: bytes) -> int:
            found = parse_shapes(shapes.decode())
            return int(1000 * accelerator.duration_us(op.decode(), found, found.size_bytes, 0))

        self._op_ns = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p)(op_ns)
        self.operators.simulated_times(self._op_ns)
        self.in_session(False)
        memory = accelerator.bytes_per_second * accelerator.bandwidth_efficiency
        self.runtime.simulated_memory(ctypes.c_double(memory))
        latency_us = link.copy_us(1)
        self.link(1e15 / (link.copy_us(10**9) - latency_us), latency_us)
        self.runtime.simulated_link_both_ways(ctypes.c_double(1 / host.both_factor - 1))
        self.runtime.simulated_pageable(ctypes.c_double(host.reading_bytes_per_s))
        self.lock_slowly(host.locking_bytes_per_s)
        self.runtime.simulated_clock(ctypes.c_int64(host.call_ns))
        machine = Machine(torch.cuda.get_device_name(), link, link, host.both_factor, memory_bytes_per_s=memory)
        save_machine(machine, cuda_machine_file(torch.device("cuda", 0)))

    def in_session(self, whether: bool) -> None:
        """Let ops take the host from here on what they take in a session, or else what they take without one."""
        ns = self._host.op_ns + whether * self._host.session_op_ns
        self.operators.simulated_dispatch(ctypes.c_int64(ns))

    def host_takes(self, seconds: float) -> None:
        """Let the host do something else for so long, on the virtual clock."""
        self.runtime.simulated_host_takes(ctypes.c_int64(int(1e9 * seconds)))

    def wait_until(self, ns: int) -> None:
        """Let the host wait until that moment of the virtual clock."""
        self.runtime.simulated_host_waits_until(ctypes.c_int64(ns))

    def forget_values(self) -> None:
        """Let ops and copies move no bytes from here on: a model of any size trains, to nothing, in no time."""
        self.runtime.simulated_forget_values()

    def refuse_registering(self) -> None:
        """Let the host lock no memory from here on but what the driver allocates."""
        self.runtime.simulated_refuse_registering()

    def refuse_managed(self) -> None:
        """Let the GPU have no managed memory from here on."""
        self.runtime.simulated_refuse_managed()

    def lock_slowly(self, bytes_per_second: float) -> None:
        """Let the host lock memory at this rate from here on."""
        self.runtime.simulated_locking(ctypes.c_double(bytes_per_second))

    def pause(self, stream: torch.cuda.Stream, milliseconds: int) -> None:
        """Let what `stream` is given from now on come later."""
        self.runtime.simulated_pause(ctypes.c_void_p(stream.cuda_stream), ctypes.c_int64(1000 * milliseconds))

    def copy(self, to: int, source: int, size: int, stream: torch.cuda.Stream) -> None:
        """Copy in `stream`, unseen by torch."""
        assert self.runtime.cudaMemcpyAsync(to, source, size, 4, stream.cuda_stream) == 0

    def fill(self, to: int, byte: int, size: int, stream: torch.cuda.Stream) -> None:
        """Write in `stream`, unseen by torch."""
        assert self.runtime.cudaMemsetAsync(to, byte, size, stream.cuda_stream) == 0

    @contextmanager
    def workspaces(self, size: int) -> Iterator[None]:
        """Let each thread's products have a workspace of `size` bytes that stays, until torch is told to free them."""
        free = torch._C._cuda_clearCublasWorkspaces
        self.operators.simulated_workspaces(ctypes.c_int64(size))
        torch._C._cuda_clearCublasWorkspaces = self.operators.simulated_free_workspaces
        try:
            yield
        finally:
            self.operators.simulated_workspaces(ctypes.c_int64(0))
            torch._C._cuda_clearCublasWorkspaces = free

    def take(self, size: int) -> ctypes.c_void_p:
        """Allocate device memory beside torch, as another process does."""
        memory = ctypes.c_void_p()
        assert self.runtime.cudaMalloc(ctypes.byref(memory), size) == 0
        return memory

    def give_back(self, memory: ctypes.c_void_p) -> None:
        assert self.runtime.cudaFree(memory) == 0

    def allow_pieces(self, most: int) -> None:
        """Let the driver give memory for so many more pieces of an arena, and then be out of it (-1: never)."""
        self.runtime.simulated_pieces_left(ctypes.c_int64(most))

    def allow_locking(self, most_bytes: int) -> None:
        """Let the host lock at most so many bytes from now on (-1: any number)."""
        self.runtime.simulated_lock_limit(ctypes.c_int64(most_bytes))


def main() -> int:
    """Run Python on a simulated GPU: `python -m cuda_sim.simulator BYTES ARGUMENT ...`."""
    done = run(sys.argv[2:], int(sys.argv[1]), timeout=3600)
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
