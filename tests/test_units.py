import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import InputError
from memfit.units import Budget, format_bytes, format_share, format_us, parse_budget, parse_bytes


@pytest.mark.parametrize(
    ("value", "size_bytes"),
    [
        ("2GiB", 2 * 1024**3),
        ("512 MB", 512 * 1000**2),
        ("1KiB", 1024),
        ("1kb", 1000),
        ("1 K", 1024),
        ("1.5g", 3 * 1024**3 // 2),
        ("2t", 2 * 1024**4),
        ("1 TB", 1000**4),
        ("1e9", 10**9),
        ("1e3 kb", 10**6),
        ("100b", 100),
        (" 64 ", 64),
        (".5k", 512),
        (1024, 1024),
        (1e9, 10**9),
        ("0.3GiB", 322122547),  # 322122547.2: a budget is rounded down
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_parse_bytes(value, size_bytes):
    assert parse_bytes(value) == size_bytes


def test_bytes_are_exact_where_a_float_is_not():
    assert parse_bytes("9007199254740993") == 2**53 + 1


MALFORMED = [
    "",
    "GiB",
    "2 XB",
    "2 G i B",
    "1,5g",
    "--1",
    "1e",
    "nan",
    "inf",
    "1e9999",
    "60%",
    "0x10",
    "1_000",
]


@pytest.mark.parametrize(
    "value", [*MALFORMED, "-1", "-2GiB", "0", "0 MB", "0.4", float("nan"), float("inf"), -1, True, "9e18"]
)
def test_parse_bytes_refuses_and_says_how_to_write_it(value):
    if value == "9e18":
        assert parse_bytes(value) == 9 * 10**18
        value = "9.3e18"  # the first that does not fit 64 signed bits
    with pytest.raises(InputError) as caught:
        parse_bytes(value)
    assert repr(value) in str(caught.value)
    assert "2GiB" in caught.value.remedy


@pytest.mark.parametrize(
    ("value", "budget"),
    [
        ("60%", Budget(fraction=0.6)),
        (" 12.5 % ", Budget(fraction=0.125)),
        ("100%", Budget(fraction=1.0)),
        ("2GiB", Budget(bytes=2 * 1024**3)),
        (4096, Budget(bytes=4096)),
    ],
)
def test_parse_budget(value, budget):
    assert parse_budget(value) == budget


@pytest.mark.parametrize("value", ["0%", "-5%", "100.1%", "%", "nan%", "1e-999%", "6k%", "0", "-1", "big", 0])
def test_parse_budget_refuses(value):
    with pytest.raises(InputError) as caught:
        parse_budget(value)
    assert caught.value.remedy


def test_budget_resolves_against_the_peak():
    assert parse_budget("60%").resolve(1000) == 600
    assert parse_budget("50%").resolve(7) == 3
    assert parse_budget("2k").resolve(10) == 2048


@given(st.integers(1, 100))
def test_whole_percentages_resolve_exactly(percent):
    assert parse_budget(f"{percent}%").resolve(100) == percent


@pytest.mark.parametrize("fields", [{}, {"bytes": 1, "fraction": 0.5}])
def test_budget_is_either_bytes_or_fraction(fields):
    with pytest.raises(InputError):
        Budget(**fields)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (24 * 1024**3, "24.0 GiB"),
        (500 * 1024**2, "500 MiB"),
        (1024**2 - 1, "1.00 MiB"),
        (3000 * 1024**4, "3000 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_format_bytes(size_bytes, text):
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_us", "text"),
    [
        (0, "0.00 us"),
        (0.5, "0.50 us"),
        (850, "850 us"),
        (999.7, "1.00 ms"),
        (1200, "1.20 ms"),
        (3.4e6, "3.40 s"),
        (7.2e9, "7200 s"),
    ],
)
def test_format_us(duration_us, text):
    assert format_us(duration_us) == text


@given(st.integers(1, 2**60))
def test_printed_bytes_read_back_within_a_percent(size_bytes):
    assert parse_bytes(format_bytes(size_bytes)) == pytest.approx(size_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0.00 %"), (-1e-9, "0.00 %"), (0.0123, "+1.23 %"), (-0.5, "-50.00 %"), (5e-5, "+0.01 %")]
)
def test_shares_have_a_sign_unless_they_are_nothing(share, text):
    assert format_share(share) == text


@pytest.mark.parametrize(
    ("ranks", "size_bytes"), [(None, 12 << 30), ("1", 12 << 30), ("4", 3 << 30), ("7", (12 << 30) // 7)]
)
def test_a_node_s_budget_is_shared_by_its_ranks(monkeypatch, ranks, size_bytes):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert parse_budget("12GiB/node") == parse_budget(" 12 gib/NODE ") == Budget(bytes=size_bytes)
    assert parse_budget("12GiB") == Budget(bytes=12 << 30)


@pytest.mark.parametrize("value", ["60%/node", "auto/node", "/node", "12GiB/rank", "3/node"])
def test_a_node_s_budget_is_bytes_and_enough_of_them(monkeypatch, value):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(InputError):
        parse_budget(value)
