import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import InputError, UsageError
from memfit.machine import MANAGED, Faults, Link, Machine, profile, profile_names


def test_the_papers_fit():
    machine = profile("paper-pcie3")
    assert machine.out.copy_us(10**6) == pytest.approx(47.2 + 75.6)
    assert machine.into.copy_us(10**6) == pytest.approx(9.7 + 82.3)


def test_every_profile_gets_slower_with_size():
    for name in profile_names():
        for link in (profile(name).out, profile(name).into):
            assert 0 < link.copy_us(1) < link.copy_us(1 << 20) < link.copy_us(1 << 40)
            assert link.copy_us(0) == 0


@given(st.integers(1, 500))
def test_a_measured_curve_is_linear_between_its_points(size):
    link = Link((100, 200, 400), (5.0, 10.0, 10.0))
    expected = 5.0 if size <= 100 else 5 + (size - 100) / 20 if size <= 200 else 10.0
    assert link.copy_us(size) == pytest.approx(expected)


def test_managed_memory_brings_a_stream_over_pcie3_at_five_gigabytes_a_second():
    group = MANAGED.chunks_per_fault * MANAGED.chunk_bytes
    us = MANAGED.fault_us + group / 12.6e3
    assert group / us / 1000 == pytest.approx(5, rel=0.05)


def test_reads_over_the_link_are_slower_than_copies():
    share = profile("pcie4").into.copy_us(1 << 30) / profile("zerocopy").into.copy_us(1 << 30)
    assert 0.85 <= share <= 0.9
    assert profile("uvm").into == profile("pcie4").into and profile("uvm").faults is MANAGED


@pytest.mark.parametrize(
    "figures",
    [
        {"chunk_bytes": 0, "block_bytes": 8}, {"chunk_bytes": 8, "block_bytes": 4},
        {"chunk_bytes": 8, "block_bytes": 12}, {"chunk_bytes": -8, "block_bytes": 8}, {"fault_us": -1.0},
        {"chunks_per_fault": 0}, {"sweeps": 0},
    ],
)  # fmt: skip
def test_faults_that_cannot_be_are_refused(figures):
    with pytest.raises(InputError):
        Faults(**({"fault_us": 1.0, "chunk_bytes": 4096, "block_bytes": 4096} | figures))


def test_a_slowed_machine_takes_longer_each_way():
    fast = profile("pcie4")
    slow = fast.slowed(2, 3)
    assert slow.out.copy_us(1 << 20) == pytest.approx(2 * fast.out.copy_us(1 << 20))
    assert slow.into.copy_us(1 << 20) == pytest.approx(3 * fast.into.copy_us(1 << 20))


def test_under_load_a_copy_takes_longer_by_the_loaded_factor_once():
    machine = Machine("m", Link.of_bandwidth(10), Link.of_bandwidth(20), loaded_factor=0.5)
    loaded = machine.under_load()
    assert loaded.out.copy_us(1 << 20) == pytest.approx(2 * machine.out.copy_us(1 << 20))
    assert loaded.into.copy_us(1 << 20) == pytest.approx(2 * machine.into.copy_us(1 << 20))
    assert loaded.under_load() == loaded
    with pytest.raises(InputError, match="loaded_factor"):
        Machine("m", machine.out, machine.into, loaded_factor=0)


def test_the_last_slope_goes_on():
    assert Link((100, 200), (5.0, 10.0)).copy_us(400) == pytest.approx(20)


@pytest.mark.parametrize(
    ("sizes", "times"), [((1,), (1.0,)), ((1, 2), (1.0,)), ((2, 1), (1.0, 2.0)), ((1, 2), (2.0, 1.0))]
)
def test_a_curve_that_does_not_ascend_is_refused(sizes, times):
    with pytest.raises(InputError):
        Link(sizes, times)


def test_impossible_machines_are_refused():
    link = Link.of_bandwidth(10)
    with pytest.raises(InputError):
        Machine("m", link, link, both_factor=0)
    with pytest.raises(InputError):
        Machine("m", link, link, alignment=0)
    with pytest.raises(UsageError, match="there is no machine 'x'"):
        profile("x")
