"""The report's file: what it says without a browser, and that nothing in it can do anything but draw."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from memfit.ir import Plan
from memfit.reporting.page import Page, to_html
from reporting.page_samples import HOSTILE, MIB, page


class Elements(HTMLParser):
    """The elements of a document, and the texts in scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.contents: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in self.contents and self.cdata_elem:
            self.contents[self.tags[-1][0]].append(data)


@pytest.fixture(scope="module")
def sample() -> Page:
    return page()


@pytest.fixture(scope="module")
def text(sample: Page) -> str:
    return to_html(sample)


def data_of(text: str) -> dict:
    packed = re.search(r'id="data">([^<]*)<', text)
    return json.loads(zlib.decompress(base64.b64decode(packed[1])))


def test_it_asks_for_nothing_and_lines_of_a_script_stay_text(text):
    elements = Elements(text)
    assert not {tag for tag, _ in elements.tags} & {"img", "link", "iframe", "object", "form", "base"}
    assert not any({"src", "href", "style"} & set(attributes) for _, attributes in elements.tags)
    assert not any(name.startswith("on") for _, attributes in elements.tags for name in attributes)
    assert "&lt;/script&gt;&lt;img src=x" in text and "<img" not in text
    assert HOSTILE in data_of(text)["texts"]


def test_its_policy_allows_what_is_in_it_and_nothing_else(text):
    elements = Elements(text)
    policy = next(each["content"] for tag, each in elements.tags if tag == "meta" and "http-equiv" in each)
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    scripts, styles = (re.search(rf"{kind}-src ([^;]*)", policy)[1].split() for kind in ("script", "style"))
    assert scripts == [hash_of(each) for each in elements.contents["script"][1:]]  # the first is the data
    assert styles == [hash_of(each) for each in elements.contents["style"]]


def hash_of(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def test_libraries_in_it_are_what_their_note_says():
    assets = files("memfit.reporting.page") / "assets"
    rows = re.findall(r"\| `(\S+)` \| `([0-9a-f]{64})` \|", (assets / "README.md").read_text())
    assert len(rows) == 2 and "MIT License" in (assets / "uPlot.LICENSE").read_text()
    for name, digest in rows:
        assert hashlib.sha256((assets / name).read_bytes()).hexdigest() == digest


def test_head_and_owners_are_there_without_javascript(sample, text):
    body = text.split("<script", 1)[0]
    assert sample.head.verdict in unescape(body) and "28.0 MiB" in body
    assert [row.size_bytes for row in sample.owners] == sorted((row.size_bytes for row in sample.owners), reverse=True)
    rows = [table.count("<tr>") for table in body.split("<table")[1:]]
    assert rows == [len(sample.run.rows), 1 + len(sample.owners), 1 + len(sample.changes.rows)]


def test_columns_are_the_traces(sample, text):
    data, trace = data_of(text), sample.trace
    assert data["storages"]["size"] == [each.size_bytes for each in trace.storages]
    assert [data["texts"][name] for name in data["ops"]["name"]] == [op.name for op in trace.ops]
    assert data["budget"] == 28 * MIB and data["peak"] == sample.head.peak_bytes
    assert max(map(sum, zip(*data["live"].values(), strict=True))) == sample.head.peak_bytes
    assert max(data["arena"]) <= 28 * MIB


def test_gaps_are_those_of_the_storages_with_their_reasons(sample, text):
    data = data_of(text)
    assert {int(storage) for storage in data["gaps"]} == set(sample.gaps)
    for storage, (after, before, us, why) in data["gaps"].items():
        gap = sample.gaps[int(storage)]
        assert (after, before, us) == (gap.after, gap.before, round(gap.duration_us, 1))
        assert data["texts"][why] == gap.why != ""


def test_absences_are_told_by_the_storages_of_the_trace(sample):
    plan, lane = sample.plan, sample.lanes[0]
    assert isinstance(plan, Plan)
    made = replace(lane.made, storage_of=lane.made.storage_of[::-1])  # others than those of the plan
    fates = data_of(to_html(replace(sample, lanes=(replace(lane, made=made),))))["fates"]
    assert set(fates["swapped"]) == {str(made.storage_of[swap.storage]) for swap in plan.swaps}
    assert set(fates["dropped"]) == {str(one.storage) for one in plan.recomputes}
    assert fates["swapped"] or fates["dropped"]
