"""A row whose spans change and are searched in a tree, against a plain list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit import _native

BYTES = st.integers(-30, 30)


@given(st.lists(BYTES, min_size=1, max_size=40), st.data())
def test_it_finds_what_a_list_has(values, data):
    row, plain = _native.Headroom(np.array(values, dtype=np.int64)), list(values)
    for _ in range(data.draw(st.integers(0, 12))):
        begin, end = (data.draw(st.integers(0, len(plain))) for _ in range(2))
        if data.draw(st.booleans()):
            more = data.draw(BYTES)
            row.add(begin, end, more)
            plain[begin:end] = [value + more for value in plain[begin:end]]
        bound = data.draw(BYTES)
        below = [at for at in range(begin, end) if plain[at] < bound]
        assert row.first_below(begin, end, bound) == (below[0] if below else -1)
        assert row.last_below(begin, end, bound) == (below[-1] if below else -1)


def test_spans_beyond_the_row_are_refused():
    row = _native.Headroom(np.zeros(3, dtype=np.int64))
    for begin, end in ((-1, 2), (0, 4)):
        with pytest.raises(ValueError, match="beyond the row"):
            row.add(begin, end, 1)
    with pytest.raises(ValueError, match="one op or more"):
        _native.Headroom(np.zeros(0, dtype=np.int64))
