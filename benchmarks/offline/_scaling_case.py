"""One case of the benchmark `scaling`, in a process of its own: prints its processor seconds and its peak memory."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from memfit.comparing.trace_info import describe_trace
from memfit.files import load_plan, load_trace, save_plan
from memfit.ir import Trace
from memfit.machine import profile
from memfit.planning.autoswap import plan_under_budget
from memfit.planning.packing import pack
from memfit.planning.packing.lifetimes import lifetimes_of
from memfit.simulate import load_bytes, simulate
from memfit.validate_plan import check_plan

MACHINE = profile("pcie4")
SHARE = 50  # of the peak: ops wait, so that the search spends its effort and the published plans are made too


class Case(NamedTuple):
    """Files of one size."""

    trace: Path
    plan: Path


def _load(case: Case) -> dict[str, object]:
    trace = load_trace(case.trace)
    return {"ops": len(trace.ops), "storages": len(trace.storages)}


def _info(trace: Trace, case: Case) -> dict[str, object]:
    return {"minimum_bytes": describe_trace(trace).minimum.budget_bytes}


def _plan(trace: Trace, case: Case) -> dict[str, object]:
    found = plan_under_budget(trace, MACHINE, int(load_bytes(trace).max()) * SHARE // 100)
    save_plan(found.plan, case.plan)
    return {"swaps": len(found.plan.swaps), "overhead": found.timeline.overhead}


def _simulate(trace: Trace, case: Case) -> dict[str, object]:
    return {"overhead": simulate(trace, MACHINE, load_plan(case.plan)).overhead}


def _validate(trace: Trace, case: Case) -> dict[str, object]:
    return {"valid": check_plan(trace, load_plan(case.plan)) is None}


def _pack(trace: Trace, case: Case) -> dict[str, object]:
    packed = pack(lifetimes_of(trace), effort=1.0)
    return {"gap": packed.gap, "proven": packed.proven}


CASES: Mapping[str, Callable[[Trace, Case], dict[str, object]]] = {
    "info": _info,
    "plan": _plan,
    "simulate": _simulate,
    "validate": _validate,
    "pack": _pack,
}


def main(name: str, trace_path: str, plan_path: str) -> None:
    """Run the case `name`; `load` is the loading of the trace, which does not count in the others."""
    case = Case(Path(trace_path), Path(plan_path))
    begin = time.process_time()
    if name == "load":
        found = _load(case)
    else:
        trace = load_trace(case.trace)
        begin = time.process_time()
        found = CASES[name](trace, case)
    seconds = time.process_time() - begin
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"cpu_seconds": seconds, "peak_bytes": peak_kib << 10, **found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
