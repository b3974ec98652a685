"""What every tier promises: the bytes that went out come back, slots are used again, nothing is left behind."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import memfit
from memfit.running import engine
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.engine.tiers import TierSpec

pytestmark = pytest.mark.timeout(60)
BUDGET = 12 << 20
PAGE = 4096
SIZES = (1, 63, 64, 65, 511, 4095, 4096, 4097, 8191, 100_001, (1 << 18) - 1, 1 << 20)
SEVERAL_MB = (3 << 20) + 1


@pytest.fixture(params=["ram", "disk", "ram, checked", "disk, checked", "disk, compress", "disk, checked, compress"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> TierSpec:
    kind, *options = request.param.split(", ")
    return TierSpec(kind, str(tmp_path) if kind == "disk" else "", **dict.fromkeys(options, True))


@pytest.fixture
def session(tier: TierSpec) -> Iterator[memfit.Session]:
    gc.collect()
    with memfit.session(BUDGET, tier) as session:
        yield session


def noise(size: int, seed: int = 0) -> torch.Tensor:
    """Return `size` random bytes, the same for the same seed."""
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def push_out(*tensors: torch.Tensor) -> None:
    """Need the whole arena for an op, so that everything else has to leave it."""
    torch.zeros(BUDGET, dtype=torch.uint8)
    assert not any(engine.load().is_resident(tensor) for tensor in tensors)


def test_bytes_of_any_size_come_back(tier):
    sizes = (*SIZES, SEVERAL_MB)
    expected = {size: bytes(noise(size, size).numpy()) for size in sizes}
    with memfit.session(BUDGET, tier) as session:
        tensors = {size: noise(size, size) for size in sizes}
        push_out(*tensors.values())
        for size, tensor in tensors.items():
            assert session.read_bytes(tensor.untyped_storage()) == expected[size]
        for size in reversed(sizes):
            assert torch.equal(tensors[size], noise(size, size))
        push_out(*tensors.values())
    assert {size: bytes(tensor.numpy()) for size, tensor in tensors.items()} == expected


def test_every_bit_pattern_of_a_float_survives(session):
    bits = torch.arange(1 << 16, dtype=torch.int32) << 16 | 0x1234  # signalling NaNs, denormals, both zeros
    floats = bits.view(torch.float32).clone()
    push_out(floats)
    assert torch.equal(floats.view(torch.int32), bits)


def test_thousands_of_small_ones_do_not_mix(session):
    sizes = [random.Random(1).randrange(1, 200) for _ in range(2000)]
    tensors = [noise(size, seed) for seed, size in enumerate(sizes)]
    push_out(*tensors)
    assert session.stats.tier_used_bytes >= sum(sizes)
    order = list(range(2000))
    random.Random(2).shuffle(order)
    assert all(torch.equal(tensors[i], noise(sizes[i], i)) for i in order)


def test_the_last_written_bytes_come_back(session):
    tensor = noise(100_001)
    for seed in range(1, 5):
        push_out(tensor)
        tensor.copy_(noise(100_001, seed))
        push_out(tensor)
        assert torch.equal(tensor, noise(100_001, seed))


def test_bytes_that_did_not_change_are_not_written_again(session):
    tensor = noise(1 << 20)
    push_out(tensor)
    written, drops = session.stats.bytes_out, session.stats.drops
    for _ in range(3):
        tensor.max()
        push_out(tensor)
    assert session.stats.bytes_out - written < 1 << 20  # nothing but small change
    assert session.stats.drops >= drops + 3
    assert torch.equal(tensor, noise(1 << 20))


def test_used_bytes_return_to_what_they_were_when_storages_die(session):
    push_out()
    before = session.stats.tier_used_bytes
    away = [noise(size) for size in SIZES]
    push_out(*away)
    clean = away[3]
    clean.max()  # resident, with a valid copy in the tier
    used = session.stats.tier_used_bytes
    assert used >= before + sum(SIZES)
    assert used <= before + sum(-(-size // PAGE) * PAGE for size in SIZES) + 16 * PAGE
    del away, clean
    push_out()
    assert session.stats.tier_used_bytes == before


def test_slots_are_used_again(session):
    def one_round(seed: int) -> int:
        tensors = [noise(size, seed + i) for i, size in enumerate(SIZES)]
        push_out(*tensors)
        assert all(torch.equal(t, noise(t.numel(), seed + i)) for i, t in enumerate(tensors))
        return session.stats.tier_footprint_bytes

    first = one_round(0)
    assert {one_round(100 * number) for number in range(1, 6)} == {first}


def test_a_big_slot_is_cut_and_joined_again(session):
    big = noise(3 << 20)
    push_out(big)
    footprint = session.stats.tier_footprint_bytes
    del big
    for number in range(2):
        small = [noise((1 << 19) - number * 100, seed) for seed in range(6)]
        push_out(*small)
        assert all(torch.equal(t, noise(t.numel(), seed)) for seed, t in enumerate(small))
        del small
        big = noise(3 << 20, number)
        push_out(big)
        assert torch.equal(big, noise(3 << 20, number))
        del big
    assert session.stats.tier_footprint_bytes <= footprint + (1 << 20)


@pytest.mark.parametrize("seed", range(2))
def test_random_use_agrees_with_a_dictionary(session, seed):
    choose = random.Random(seed)
    tensors: dict[int, tuple[torch.Tensor, int]] = {}
    for step in range(100):
        what = choose.random()
        if what < 0.4 or not tensors:
            tensors[step] = noise(size := choose.choice(SIZES), step), step
            assert tensors[step][0].numel() == size
        elif what < 0.55:
            del tensors[choose.choice(list(tensors))]
        elif what < 0.75:
            key = choose.choice(list(tensors))
            tensors[key][0].copy_(noise(tensors[key][0].numel(), step))
            tensors[key] = tensors[key][0], step
        elif what < 0.85:
            push_out()
        else:
            tensor, written = tensors[choose.choice(list(tensors))]
            assert session.read_bytes(tensor.untyped_storage()) == bytes(noise(tensor.numel(), written).numpy())
            assert torch.equal(tensor, noise(tensor.numel(), written))
    for tensor, written in tensors.values():
        assert torch.equal(tensor, noise(tensor.numel(), written))


def test_tensors_older_than_the_session_go_straight_to_the_tier(tier):
    older = [noise(1 << 20, seed) for seed in range(20)]
    with memfit.session(BUDGET, tier) as session:
        assert session.stats.tier_used_bytes >= 8 << 20
        assert all(torch.equal(t, noise(1 << 20, seed)) for seed, t in enumerate(older))
        older[5].add_(1)
    assert torch.equal(older[5], noise(1 << 20, 5) + 1) and torch.equal(older[6], noise(1 << 20, 6))


def test_sessions_one_after_another_share_nothing(tier):
    kept = []
    for seed in range(3):
        with memfit.session(BUDGET, tier) as session:
            assert session.stats.evictions == 0 and session.stats.bytes_in == 0
            kept += [noise(1 << 20, seed), noise(65, seed)]
            push_out(*kept)
        assert all(torch.equal(t, noise(t.numel(), i // 2)) for i, t in enumerate(kept))


def test_bytes_altered_on_the_way_back_are_refused_where_they_are_checked(tier):
    spec = DisturbedTier(**asdict(tier), corrupt_read=1)
    if not (tier.checked or tier.compress):
        pytest.skip("this tier cannot tell")
    with pytest.raises(memfit.TierError, match="checksum"), memfit.session(BUDGET, spec):
        tensor = noise(65)
        push_out(tensor)
        tensor.add_(1)


def open_files(folder: Path) -> list[str]:
    """Return /proc's names of this process's open files that lie in `folder`, deleted or not."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        if target.startswith(f"{folder}{os.sep}"):
            found.append(f"/proc/self/fd/{number}")
    return found


@pytest.mark.parametrize("checked", [False, True])
def test_the_disk_tier_s_file_has_no_name_and_goes_with_the_session(checked, tmp_path):
    with memfit.session(BUDGET, TierSpec("disk", str(tmp_path), checked=checked)):
        push_out(noise(1 << 20))
        assert len(open_files(tmp_path)) == 1 and not list(tmp_path.iterdir())
    assert not open_files(tmp_path) and not list(tmp_path.iterdir())


def test_the_disk_tier_gives_space_back(tmp_path):
    with memfit.session(BUDGET, TierSpec("disk", str(tmp_path))):
        tensors = [noise(3 << 20, seed) for seed in range(6)]
        push_out(*tensors)
        (file,) = open_files(tmp_path)
        full = os.stat(file).st_blocks * 512
        del tensors
        assert full - os.stat(file).st_blocks * 512 >= 18 << 20


@pytest.mark.parametrize("option", ["checked", "compress"])
@pytest.mark.parametrize("make", [noise, torch.zeros])
def test_a_file_altered_from_outside_is_noticed_by_a_tier_that_keeps_checksums(make, option, tmp_path):
    with pytest.raises(memfit.TierError, match="checksum"), \
            memfit.session(BUDGET, TierSpec("disk", str(tmp_path), **{option: True})):  # fmt: skip
        tensor = make(100_000)
        push_out(tensor)
        (file,) = open_files(tmp_path)
        with open(file, "r+b") as opened:
            opened.write(b"\x01" * os.stat(file).st_size)
        tensor.max()
