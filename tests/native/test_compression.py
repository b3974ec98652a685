"""A tier's compression loses no bit, does as it is told, and says so where bytes are not those written."""

from __future__ import annotations

import ctypes
import itertools
import random
import statistics
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native.compression import PACKET, PAGE, Bytes, Failed, at, build, medium

pytestmark = pytest.mark.timeout(120)
RANDOM = np.random.default_rng(0)
SIZES = (2, 3, 31, 64, 65, 127, 4096, 10_001, 65_536, PACKET - 3, PACKET)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("probe"))


def floats(size: int, zeros: float = 0.0) -> Bytes:
    """Return `size` bytes of normal numbers, and that part of them zeros."""
    values = RANDOM.standard_normal(size // 4 + 1).astype(np.float32)
    values[RANDOM.random(len(values)) < zeros] = 0
    return values.view(np.uint8)[:size]


def odd_floats(size: int) -> Bytes:
    """Return signalling and quiet NaNs, both zeros, infinities and denormals."""
    patterns = [0x7F800001, 0x7FC0BEEF, 0xFFFFFFFF, 0x80000000, 0, 0x7F800000, 0x00000001, 0x807FFFFF]
    return RANDOM.choice(np.array(patterns, np.uint32), size // 4 + 1).view(np.uint8)[:size]


def high_halves(size: int) -> Bytes:
    """Return numbers as bf16 autocast leaves them: the low halves are zero."""
    return (floats(-(-size // 4) * 4).view(np.uint32) & 0xFFFF0000).view(np.uint8)[:size]


KINDS = {
    "zeros": lambda size: np.zeros(size, np.uint8),
    "one value": lambda size: np.full(size, 0x5A, np.uint8),
    "noise": lambda size: RANDOM.integers(0, 256, size, np.uint8),
    "dense": floats,
    "sparse": lambda size: floats(size, 0.6),
    "odd floats": odd_floats,
    "high halves": high_halves,
    "indices": lambda size: RANDOM.integers(0, 1000, size // 8 + 1).view(np.uint8)[:size],
    "mask": lambda size: (RANDOM.random(size) < 0.7).astype(np.uint8),
}


def packed(functions: ctypes.CDLL, codec: int, values: Bytes) -> Bytes:
    room = np.zeros(2 * values.nbytes + 256, np.uint8)
    size = ctypes.c_size_t(values.nbytes)
    return room[: functions.pack(codec, at(values), size, at(room))].copy()


def unpacked(functions: ctypes.CDLL, codec: int, stored: Bytes, size: int) -> Bytes | None:
    """Return the bytes; None if the codec refuses `stored`. What follows them is not touched, but for the slack."""
    room = np.full(size + 64 + 32, 0xCD, np.uint8)
    fits = functions.unpack(codec, at(stored), ctypes.c_size_t(stored.nbytes), at(room), ctypes.c_size_t(size))
    assert (room[size + 64 :] == 0xCD).all()
    return room[:size] if fits else None


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_codec_gives_back_the_bytes_it_was_given(functions, kind, size):
    values = np.ascontiguousarray(KINDS[kind](size))
    for codec in range(1, functions.codecs()):
        stored = packed(functions, codec, values)
        assert stored.nbytes < size
        if stored.nbytes:
            assert np.array_equal(unpacked(functions, codec, stored, size), values)


@pytest.mark.parametrize(("kind", "most"), [("zeros", 0.01), ("sparse", 0.45), ("high halves", 0.45), ("indices", 0.2),
                                            ("mask", 0.14), ("dense", 0.92), ("noise", 1.0)])  # fmt: skip
def test_the_best_codec_leaves_as_little_as_the_content_promises(functions, kind, most):
    values = np.ascontiguousarray(KINDS[kind](PACKET))
    sizes = [packed(functions, codec, values).nbytes or PACKET for codec in range(1, functions.codecs())]
    assert min(sizes) <= most * PACKET
    assert kind != "noise" or min(sizes) == PACKET


@pytest.mark.parametrize("codec", range(1, 8))
@pytest.mark.parametrize("kind", ["zeros", "sparse", "high halves", "mask"])
def test_what_no_codec_has_made_is_refused_or_gives_as_many_bytes(functions, kind, codec):
    """Whatever the bytes are: nothing is written beyond those asked for, and nothing crashes."""
    size = 10_001
    stored = packed(functions, codec, np.ascontiguousarray(KINDS[kind](size)))
    for seed in range(200):
        choose = random.Random(seed)
        wrong = stored.copy()
        for _ in range(choose.randrange(1, 8)):
            if wrong.nbytes:
                wrong[choose.randrange(wrong.nbytes)] = choose.randrange(256)
        wrong = wrong[: choose.choice([wrong.nbytes, wrong.nbytes, choose.randrange(wrong.nbytes + 1)])].copy()
        unpacked(functions, codec, wrong, size)
    assert unpacked(functions, codec, RANDOM.integers(0, 256, 5, np.uint8), size) is None


@pytest.mark.parametrize("target", range(3))
@pytest.mark.parametrize("size", [64, 4096, 100_032, PACKET])
def test_every_processors_instructions_make_the_same(functions, target, size):
    values = floats(size, 0.5)
    for width in (1, 2, 4, 8):
        for bits in (0, 1):
            made, back = (np.zeros(size, np.uint8) for _ in range(2))
            if not functions.shuffle(target, bits, at(values), ctypes.c_size_t(size), ctypes.c_size_t(width),
                                     at(made), at(back)):  # fmt: skip
                pytest.skip("this processor has no such instructions")
            assert np.array_equal(back, values)
            planes = values.reshape(-1, width).T
            if bits:
                planes = np.packbits(np.unpackbits(planes.reshape(width, -1, 8, 1), axis=3, bitorder="little"), axis=2,
                                     bitorder="little").transpose(0, 3, 1, 2)  # fmt: skip
            assert np.array_equal(made, planes.reshape(-1))


@pytest.mark.parametrize("target", range(3))
@pytest.mark.parametrize("share", [0.0, 0.3, 0.97, 1.0])
@pytest.mark.parametrize("size", [0, 4, 63, 64, 4099, 65_500])
def test_zeros_are_squeezed_alike_by_all_instructions(functions, target, share, size):
    values, made, back = floats(size, share), np.zeros(2 * size + 256, np.uint8), np.full(size + 64, 0xCD, np.uint8)
    stored = functions.squeeze(target, at(values), ctypes.c_size_t(size), at(made), at(back))
    if not stored and size:
        pytest.skip("this processor has no such instructions")
    words = values[: size // 4 * 4].view(np.uint32)
    masks = np.packbits(np.concatenate([words != 0, np.zeros(-len(words) % 16, bool)]), bitorder="little")
    expected = np.concatenate([masks, words[words != 0].view(np.uint8), values[size // 4 * 4 :]])
    assert np.array_equal(made[:stored], expected) and np.array_equal(back[:size], values)


# --- the medium


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 4095, 4097, 100_001, PACKET, PACKET + 1, 3 * PACKET - 5])
def test_what_was_written_is_read_and_no_more_than_its_place_is_touched(functions, kind, size):
    place = -(-size // PAGE) * PAGE
    with medium(functions, place + 2 * PAGE, ns_per_byte=1.0) as under_test:
        under_test.stored[:] = 0xEE
        values = np.ascontiguousarray(KINDS[kind](size))
        for _ in range(2):  # a place of a raw packet may then have a smaller one
            under_test.write(PAGE, values)
            assert np.array_equal(under_test.read(PAGE, size), values)
        assert (under_test.stored[:PAGE] == 0xEE).all() and (under_test.stored[PAGE + place :] == 0xEE).all()


def test_only_what_is_left_is_written_and_read(functions):
    with medium(functions) as under_test:
        under_test.write(0, floats(4 * PACKET, 0.8))
        stored = under_test.count("bytes_stored")
        assert 0.2 < stored / (4 * PACKET) < 0.27
        assert under_test.takes(0, 4 * PACKET) <= stored < under_test.takes(0, 4 * PACKET) + 4 * PAGE
        under_test.read(0, 4 * PACKET)
        assert under_test.count("bytes_loaded") == under_test.takes(0, 4 * PACKET)


def test_packets_that_are_raw_go_out_and_come_in_together(functions):
    with medium(functions) as under_test:
        values = RANDOM.integers(0, 256, 8 * PACKET, np.uint8)
        under_test.write(0, values)
        assert np.array_equal(under_test.read(0, 8 * PACKET), values)
        assert under_test.count("writes") == under_test.count("reads") == 1
        assert under_test.count("bytes_stored") == under_test.count("bytes_loaded") == values.nbytes
        values[: 2 * PACKET] = values[6 * PACKET :] = 0  # and beside those that are packed
        for _ in range(20):  # (the trial, of the middle, is repeated)
            under_test.write(0, values)
        assert np.array_equal(under_test.read(0, 8 * PACKET), values)


def test_where_the_medium_is_as_fast_as_memory_nothing_is_packed(functions):
    with medium(functions, 64 << 20, ns_per_byte=0.0) as under_test:
        values = floats(32 << 20)
        for _ in range(8):
            under_test.write(0, values)
            assert np.array_equal(under_test.read(0, values.nbytes), values)
        before = under_test.count("bytes_stored")
        under_test.write(0, values)
        assert under_test.count("bytes_stored") - before == values.nbytes


def test_what_changes_its_content_gets_another_codec(functions):
    with medium(functions) as under_test:
        for values in (floats(PACKET, 0.7), RANDOM.integers(0, 256, PACKET, np.uint8), np.zeros(PACKET, np.uint8)):
            for _ in range(70):
                under_test.write(0, values)
            assert np.array_equal(under_test.read(0, PACKET), values)
            best = under_test.takes(0, PACKET)
        assert best < PACKET // 16  # (of those that leave little of zeros, which is cheapest is a matter of moments)


def test_what_is_read_page_by_page_is_packed_no_more(functions):
    """A page that is wanted of a packet has all of it unpacked: page faults would read it some 64 times."""
    values = floats(4 * PACKET, 0.7)
    with medium(functions) as under_test:
        for _ in range(3):
            under_test.write(0, values)
            assert np.array_equal(under_test.read(0, values.nbytes), values)
        assert under_test.takes(0, values.nbytes) < values.nbytes
        for offset in 3 * list(range(0, values.nbytes, PAGE)):
            assert np.array_equal(under_test.read(offset, PAGE), values[offset : offset + PAGE])
        under_test.write(0, values)
        assert under_test.takes(0, values.nbytes) == values.nbytes
        before = under_test.count("bytes_loaded")
        under_test.read(0, PAGE)
        assert under_test.count("bytes_loaded") - before == PAGE


def test_what_is_read_whole_again_is_packed_again(functions):
    values = floats(4 * PACKET, 0.7)
    with medium(functions) as under_test:
        under_test.write(0, values)
        for offset in range(0, values.nbytes, 4 * PAGE):
            under_test.read(offset, PAGE)
        for _ in range(40):
            under_test.write(0, values)
            under_test.read(0, values.nbytes)
        assert under_test.takes(0, values.nbytes) < values.nbytes


def test_a_codec_that_pays_is_not_tried_again_and_again(functions):
    """A trial packs and unpacks a part with each codec: it would cost more than it saves."""
    with medium(functions, ns_per_byte=0.0) as under_test:
        values = floats(64 << 10)

        def taken(offset: int) -> int:
            began = under_test.count("time_ns")
            under_test.write(offset, values)
            return under_test.count("time_ns") - began

        first = [taken(place * values.nbytes) for place in range(20)]
        later = [taken(0) for _ in range(70)]
        assert statistics.median(later) < statistics.median(first) / 2


def test_what_is_always_new_is_tried_now_and_then(functions):
    """A trial is of use when the same storage leaves again: it takes a part of the time that the medium takes."""
    values = floats(64 << 10, 0.7)
    with medium(functions) as under_test:

        def is_packed(number: int) -> bool:
            before, size = under_test.count("bytes_stored"), values.nbytes - 4 * (number % 8192)
            offset = number // 8192 * PACKET
            under_test.discard(offset, values.nbytes)
            under_test.write(offset, values[:size].copy())
            return under_test.count("bytes_stored") - before < size

        lately = deque((is_packed(number) for number in range(50)), maxlen=200)
        assert all(lately)
        for number in range(50, 16 * 8192):
            lately.append(is_packed(number))
            if sum(lately) < 100 and len(lately) == 200:
                break
        assert sum(lately) < 100


def iteration(under_test, storages, waited_share):
    """Write and read each of the storages; ops have waited for so much of it. Return the share that was written."""
    before, began = under_test.count("bytes_stored"), under_test.count("time_ns")
    for place, values in enumerate(storages):
        under_test.write(place * PACKET, values)
        assert np.array_equal(under_test.read(place * PACKET, values.nbytes), values)
    took = under_test.count("time_ns") - began
    under_test.ends_iteration(int(waited_share * took), took)
    return (under_test.count("bytes_stored") - before) / (len(storages) * PACKET)


def mostly_noise(sparse=1):
    """Return eight storages; if one of them can be packed, that is no gain where copies are over in time anyway."""
    noise = [RANDOM.integers(0, 256, PACKET, np.uint8) for _ in range(8 - sparse)]
    return [*(floats(PACKET, 0.7) for _ in range(sparse)), *noise]


def test_where_no_op_waits_for_copies_and_little_is_saved_nothing_is_packed(functions):
    storages = mostly_noise()
    with medium(functions) as under_test:
        shares = [iteration(under_test, storages, 0.0) for _ in range(12)]
        assert shares[0] < 0.95 and shares[-4:] == [1.0] * 4


def test_where_ops_wait_for_copies_what_can_be_packed_is(functions):
    storages = mostly_noise(sparse=3)
    with medium(functions) as under_test:
        shares = [iteration(under_test, storages, 0.9) for _ in range(12)]
        assert shares[-1] < 0.8 and max(shares[:3]) < 0.8


def test_what_was_given_up_is_tried_again(functions):
    """Ops may come to wait: another plan, another disk."""
    storages = mostly_noise()
    with medium(functions) as under_test:
        while iteration(under_test, storages, 0.0) < 1.0:
            continue
        shares = [iteration(under_test, storages, 0.9) for _ in range(40)]
        assert shares[20] == 1.0 and min(shares[-6:]) < 0.95


def test_what_saves_much_of_the_copies_is_packed_though_no_op_waits_any_more(functions):
    """They wait no more since it is: otherwise it would come and go."""
    storages = [floats(PACKET, 0.7) for _ in range(8)]
    with medium(functions) as under_test:
        assert statistics.median(iteration(under_test, storages, 0.0) for _ in range(12)) < 0.4


Step = tuple[str, int, int, str]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "read", "discard"]),
        st.integers(0, 3 * PACKET // PAGE - 1),
        st.integers(1, 2 * PACKET // PAGE),
        st.sampled_from([*KINDS]),
    ),
    max_size=25,
)


@given(size=st.integers(1, 3 * PACKET), kind=st.sampled_from([*KINDS]), steps=STEPS)
def test_parts_read_and_written_in_any_order_agree_with_a_plain_array(functions, size, kind, steps):
    expected = np.ascontiguousarray(KINDS[kind](size)).copy()
    with medium(functions, ns_per_byte=0.5) as under_test:
        under_test.write(PAGE, expected)
        for what, page, pages, content in steps:
            begin = min(page * PAGE, (size - 1) // PAGE * PAGE)
            end = min(begin + pages * PAGE, size)
            if what == "write":
                expected[begin:end] = KINDS[content](end - begin)
                under_test.write(PAGE + begin, expected[begin:end].copy())
            elif what == "read":
                assert np.array_equal(under_test.read(PAGE + begin, end - begin), expected[begin:end])
            else:  # and the place is taken anew
                under_test.discard(PAGE, -(-size // PAGE) * PAGE)
                expected = np.ascontiguousarray(KINDS[content](size)).copy()
                under_test.write(PAGE, expected)
        assert np.array_equal(under_test.read(PAGE, size), expected)


EDGES = (0, 5 * PAGE, PACKET, PACKET + PAGE, 2 * PACKET - PAGE, 2 * PACKET, 2 * PACKET + 9 * PAGE, 3 * PACKET)


@pytest.mark.parametrize("kind", ["sparse", "noise"])
@pytest.mark.parametrize(("begin", "end"), [*itertools.combinations(EDGES, 2)])
def test_a_write_that_ends_within_packets_or_at_them_is_all_there(functions, kind, begin, end):
    expected = np.ascontiguousarray(KINDS[kind](3 * PACKET)).copy()
    with medium(functions, ns_per_byte=1.0) as under_test:
        under_test.write(0, expected)
        expected[begin:end] = KINDS["sparse"](end - begin)
        under_test.write(begin, expected[begin:end].copy())
        assert np.array_equal(under_test.read(begin, end - begin), expected[begin:end])
        assert np.array_equal(under_test.read(0, 3 * PACKET), expected)


def test_stretches_written_one_after_another_are_read_as_one(functions):
    values = floats(2 * PACKET + 100, 0.6)
    with medium(functions) as under_test:
        for begin in range(0, values.nbytes, 16 * PAGE):
            under_test.write(begin, values[begin : begin + 16 * PAGE].copy())
        assert np.array_equal(under_test.read(0, values.nbytes), values)
        under_test.write(0, values)
        assert np.array_equal(under_test.read(PAGE, PACKET), values[PAGE : PAGE + PACKET])


def test_what_was_never_written_or_was_discarded_cannot_be_read(functions):
    with medium(functions) as under_test:
        with pytest.raises(Failed, match="never written"):
            under_test.read(0, PAGE)
        under_test.write(0, floats(2 * PAGE, 0.5))
        with pytest.raises(Failed, match="never written"):
            under_test.read(0, 3 * PAGE)
        under_test.discard(0, 2 * PAGE)
        with pytest.raises(Failed, match="never written"):
            under_test.read(PAGE, PAGE)
        assert under_test.takes(0, 2 * PAGE) == 0


def test_what_is_claimed_is_what_the_medium_has_and_can_be_read_and_written_in_part(functions):
    size = 2 * PACKET + 3 * PAGE
    there = KINDS["noise"](size)
    with medium(functions) as tier:
        tier.stored[PACKET : PACKET + size] = there
        tier.claim(PACKET, size)
        assert (tier.read(PACKET, size) == there).all()
        part = KINDS["zeros"](3 * PAGE)
        tier.write(2 * PACKET - PAGE, part)  # in two packets
        there[PACKET - PAGE : PACKET + 2 * PAGE] = part
        assert (tier.read(PACKET, size) == there).all()
        assert tier.takes(PACKET, size) <= size
        with pytest.raises(Failed):
            tier.read(0, PAGE)  # nobody has claimed that


def test_what_was_written_outlives_a_claim(functions):
    there = KINDS["sparse"](2 * PACKET)
    with medium(functions) as tier:
        tier.write(0, there)
        tier.claim(0, there.nbytes)
        assert (tier.read(0, there.nbytes) == there).all()


def test_a_claim_that_the_medium_refuses_claims_nothing(functions):
    with medium(functions) as tier:
        tier.fills_up(True)
        with pytest.raises(Failed, match="there is no room"):
            tier.claim(0, PACKET)
        with pytest.raises(Failed):
            tier.read(0, PAGE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bit_that_changed_in_the_medium_is_found(functions, kind):
    values = np.ascontiguousarray(KINDS[kind](PACKET))
    with medium(functions) as under_test:
        under_test.write(0, values)
        under_test.write(PACKET, values)
        for _ in range(8):
            under_test.stored[RANDOM.integers(under_test.takes(0, PACKET))] ^= 1 << RANDOM.integers(8)
            with pytest.raises(Failed, match=r"plain differ from those written \(checksum\); choose another disk"):
                under_test.read(0, 2 * PACKET)
            under_test.write(0, values)
        assert np.array_equal(under_test.read(0, 2 * PACKET), np.tile(values, 2))


@pytest.mark.parametrize("kind", ["sparse", "noise"])
@pytest.mark.parametrize("part", [PAGE, PACKET])
def test_a_write_that_fails_leaves_what_was_there(functions, kind, part):
    values = np.ascontiguousarray(KINDS[kind](PACKET))
    with medium(functions) as under_test:
        under_test.write(0, values)
        under_test.fails(True)
        with pytest.raises(Failed, match="failed"):
            under_test.write(0, floats(part))
        with pytest.raises(Failed, match="read failed"):
            under_test.read(0, PACKET)
        under_test.fails(False)
        assert np.array_equal(under_test.read(0, PACKET), values)


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_that_write_parts_of_the_same_packets_do_not_lose_each_others(functions, threads):
    with medium(functions, ns_per_byte=0.2) as under_test:
        assert not functions.disturb(under_test.probe, ctypes.c_size_t(threads), ctypes.c_size_t(PACKET),
                                     ctypes.c_size_t(200))  # fmt: skip
