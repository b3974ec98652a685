"""Crafts memory snapshots by the schema of torch.cuda.memory._snapshot, and the allocator's side of their story."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

GRANULE = 512


def frame(filename: str = "/home/me/train.py", line: int = 3, name: str = "step") -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


def event(action: str, address: int = 0, size: int = 0, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": [], **more}


def freed(address: int, size: int, **more: Any) -> list[dict[str, Any]]:
    return [event("free_requested", address, size, **more), event("free_completed", address, size, **more)]


def block(size: int, requested: int | None = None, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    requested = size if requested is None else requested
    return {"size": size, "requested_size": requested, "state": state, "frames": [], **more}


def segment(address: int, *blocks: dict[str, Any], device: int = 0, **more: Any) -> dict[str, Any]:
    total = sum(b["size"] for b in blocks)
    placed, at = [], address
    for b in blocks:
        placed.append({"address": at} | b)
        at += b["size"]
    return {
        "device": device,
        "address": address,
        "total_size": total,
        "allocated_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
        "active_size": total,
        "requested_size": total,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": placed,
        **more,
    }


def snapshot(*traces: list[dict[str, Any]], segments: tuple[dict[str, Any], ...] = (), **more: Any) -> dict[str, Any]:
    return {
        "segments": list(segments),
        "device_traces": list(traces),
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False},
        "external_annotations": [{"stage": "START", "name": "x", "time_us": 0, "device": 0}],
        **more,
    }


def save(path: Path, value: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol))
    return path
