"""The index of messages has every message of the code and no other, and each says what to do."""

from __future__ import annotations

import pytest

from tools.make_errors import PAGE, Unlisted, page
from tools.messages import Message

FULL = Message("TierError", "the tier is full", "", "", "tiers.py")
LATE = Message("InputError", "... is `late` | lost", "it came *after*", "wait", "files/clock.py")
GROUPS = [{"title": "Tiers", "files": ["tiers.py"]}, {"title": "Files", "files": ["files/"]}]


def with_row(**row):
    return {"group": [GROUPS[0] | {"row": [row]}, GROUPS[1]]}


def test_the_index_is_up_to_date():
    assert PAGE.read_text() == page(), "python -m tools.make_errors"


def test_a_message_has_its_own_cause_and_remedy_or_those_of_the_notes():
    text = page([FULL, LATE], with_row(messages=["the tier is *"], means="No room.", do="Make some."))
    assert "\n| `the tier is full` | TierError, 1 | No room. | Make some. |" in text.split("## Tiers")[1]
    assert (
        "\n| `` ... is `late` \\| lost `` | InputError, 1 | it came \\*after\\* | wait |" in text.split("## Files")[1]
    )


def test_the_group_that_names_a_file_most_exactly_has_its_messages():
    groups = [{"title": "All", "files": ["files/"]}, {"title": "One", "files": ["files/clock.py"]}]
    assert "late" in page([LATE], {"group": groups}).split("## One")[1]


def test_a_notice_needs_no_remedy_but_a_warning_does():
    news = Message("notice", "the report is ready", "", "", "tiers.py")
    assert "| `the report is ready` | notice |  | Nothing. |" in page([news], {"group": GROUPS})
    warning = Message("notice", "warning: the tier is slow", "", "", "tiers.py")
    with pytest.raises(Unlisted, match="the tier is slow"):
        page([warning], {"group": GROUPS})


@pytest.mark.parametrize(
    ("found", "notes", "error"),
    [
        ([FULL], {"group": GROUPS}, "has no remedy.*the tier is full"),
        ([LATE], {"group": GROUPS[:1]}, "no group for the files.*\n.*late"),
        ([], with_row(messages=["the tier is empty"], do="Nothing."), "does not have: the tier is empty"),
    ],
    ids=["no remedy", "no group", "no such message"],
)
def test_a_gap_in_the_notes_is_an_error(found, notes, error):
    with pytest.raises(Unlisted, match=error):
        page(found, notes)
