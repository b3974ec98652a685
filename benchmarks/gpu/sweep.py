"""Budget sweep: each model inside shares of its plain peak, against the plain run: time, memory by the driver, bits.

The link's own time for the bytes that are moved stands beside the time of the passes that it can be hidden under:
copies out run during the forward pass, copies in during the backward pass.
"""

from __future__ import annotations

from typing import Any

from benchmarks.common.result import Row, Table, gib
from benchmarks.gpu.bench import Bench, measured
from benchmarks.gpu.models import SPECS

MODELS = ("llama", "resnet152", "gpt2_medium", "resnet50", "vgg16", "gpt2_xl")
PERCENTS = (100, 80, 60, 40, 30)
# The budgets where most is to be learnt first, of one model after another: what is measured is whole rows.
ROUNDS = ((60, 80, 40), (100, 30))
_CELL_S, _LINK_S = 60.0, 20.0
_PAGE = 2 << 20  # what the driver gives memory in
COLUMNS = ["model", "batch", "budget", "GiB", "driver", "held", "plain ms", "first step", "plan", "step", "by plan",
           "GiB out/in", "link ms", "of the pass", "bits", "remark"]  # fmt: skip


def steps_of(quick: bool) -> Row:
    """Return how many steps a run has."""
    return {"steps": 6, "most_steps": 24} if quick else {"steps": 12, "most_steps": 40}


def order(models: tuple[str, ...], percents: tuple[int, ...] | None = None) -> list[tuple[str, int]]:
    """Return (model, percent) by value: what comes first is measured even if there is no time for the rest."""
    rounds = ROUNDS if percents is None else (percents,)
    return [(model, percent) for each in rounds for model in models for percent in each]


def run_plain(
    bench: Bench, model: str, mode: str = "plain", batch: int | None = None, limit_s: float = _CELL_S, **more: Any
) -> Row | None:
    """Train the model without memfit, in a mode, at a batch that fills the wanted memory unless one is given."""
    quick = bench.options.quick
    return bench.run(f"{model}/{mode}", "benchmarks.gpu.work:plain", limit_s, model=model, mode=mode, batch=batch,
                     calibrate=batch is None and not quick, **steps_of(quick), **more)  # fmt: skip


def run_limited(bench: Bench, key: str, model: str, plain: Row, budget_bytes: int) -> None:
    """Train the model with memfit inside a budget, at the batch of a plain run and with its algorithms."""
    request = {
        "model": model,
        "batch": plain["batch"],
        "strict": plain.get("strict", False),
        "budget_bytes": budget_bytes,
    }
    request |= steps_of(bench.options.quick)
    bench.run(key, "benchmarks.gpu.work:limited", _CELL_S, memfit=True, **request)


def measure(bench: Bench) -> None:
    """Run the cells: each model plainly, at a batch that fills the wanted memory, and inside shares of that peak."""
    bench.run("link", "benchmarks.gpu.probe_link:rates", _LINK_S)
    for model, percent in order(bench.options.models or MODELS, bench.options.percents):
        plain = run_plain(bench, model, repeat=True)
        if plain is not None:
            run_limited(bench, f"{model}/{percent}", model, plain, plain["peak_bytes"] * percent // 100)


def bits(plain: Row, limited: Row) -> str:
    """Say whether losses and weights are those of the plain run, bit by bit."""
    if "losses" not in limited:
        return "-"
    pairs = zip(plain["losses"], limited["losses"], strict=False)
    wrong = next((step for step, (a, b) in enumerate(pairs, 1) if a != b), None)
    repeats = "" if plain.get("repeats", True) else " (plain differs too)"
    if wrong is not None:
        return f"loss {wrong} differs{repeats}"
    compared = [step for step in limited["fingerprints"] if step in plain["fingerprints"]]
    if not compared:
        return "losses equal, weights not compared"
    same = all(limited["fingerprints"][step] == plain["fingerprints"][step] for step in compared)
    return f"equal{repeats}" if same else f"weights differ{repeats}"


def held(limited: Row) -> tuple[int | None, str]:
    """Return the driver's peak without the context, and whether the budget held, to the driver's page."""
    driver = limited.get("driver") or {}
    if driver.get("peak_bytes") is None or driver.get("left_bytes") is None:
        return None, "-"
    own = driver["peak_bytes"] - driver["left_bytes"]
    return own, "yes" if own <= limited["budget_bytes"] + _PAGE else f"no, +{gib(own - limited['budget_bytes'])}"


def bound(plain: Row, limited: Row, link: Row | None) -> dict[str, float]:
    """Return the link's milliseconds each way, and as shares of the passes they can be hidden under."""
    sides = limited.get("moved") or {}
    if not link or not sides or not link.get("out_gb_per_s"):
        return {}
    ms = {way: sides[way] / link[f"{way}_gb_per_s"] / 1e6 for way in ("out", "in")}
    parts = plain["median_ms"]
    return {"out_ms": ms["out"], "in_ms": ms["in"], "out_share": ms["out"] / parts["forward"],
            "in_share": ms["in"] / parts["backward"]}  # fmt: skip


def remark(limited: Row) -> str:
    """Return what the figures do not say."""
    if "infeasible" in limited:
        needed = limited.get("required_bytes")
        return "infeasible" + (f", needs {gib(needed)}" if needed else "")
    if not limited.get("settled", True):
        return f"{limited.get('planned_steps', 0)} steps by plan"
    return ""


def kind(limited: Row) -> str:
    """Say what the last plan does, and what it is foreseen to add."""
    plan = limited.get("plan")
    if not plan:
        return "-"
    foreseen = f", {plan['foreseen_us'] / plan['compute_us'] - 1:+.1%}" if plan.get("foreseen_us") else ""
    return f"{plan['swaps']} swaps, {plan['drops']} re-runs{foreseen}"


def row(model: str, percent: int, plain: Row, limited: Row, link: Row | None) -> list[str]:
    """Return one line of the table."""
    driver, holds = held(limited)
    cells = [model, str(limited.get("batch", "")), f"{percent} %", gib(limited["budget_bytes"]), gib(driver), holds]
    whole = plain["median_ms"]["step"]
    if not limited.get("median_ms"):
        return [*cells, f"{whole:.1f}", *["-"] * 8, remark(limited)]
    times, sides, link_ms = limited["median_ms"], limited.get("moved") or {}, bound(plain, limited, link)
    cells += [f"{whole:.1f}", f"{limited['times_ms'][0]['step'] / whole:.1f}x", kind(limited)]
    cells += [f"{times['step'] / whole:.3f}x", f"{limited['planned_steps']}/{len(limited['rows'])}"]
    cells += [f"{gib(sides['out'])} / {gib(sides['in'])}" if sides else "-"]
    cells += [f"{link_ms['out_ms']:.0f} / {link_ms['in_ms']:.0f}" if link_ms else "-"]
    cells += [f"{link_ms['out_share']:.0%} / {link_ms['in_share']:.0%}" if link_ms else "-"]
    return [*cells, bits(plain, limited), remark(limited)]


def tables(cells: Row) -> list[Table]:
    """Return the tables of what there is."""
    done = measured(cells)
    rows = []
    for model in SPECS:
        plain = done.get(f"{model}/plain")
        found = [(p, done[f"{model}/{p}"]) for p in PERCENTS if f"{model}/{p}" in done]
        rows += [row(model, p, plain, limited, done.get("link")) for p, limited in found] if plain else []
    return [Table("Inside a share of the plain peak", COLUMNS, rows)] if rows else []
