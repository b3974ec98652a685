"""The report as a person sees it, in Chromium: numbers, keys, colours, widths, and that nothing is asked for."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from memfit.reporting.page import Page, to_html
from memfit.simulate import load_bytes
from reporting.page_samples import HOSTILE, MIB, page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.timeout(120),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]


@pytest.fixture(scope="module")
def sample() -> Page:
    return page()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def file(sample: Page, tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("report") / "report.html"
    written.write_text(to_html(sample), encoding="utf-8")
    return written


@pytest.fixture(params=[(1280, "light"), (400, "dark")], ids=["wide and light", "narrow and dark"])
def opened(request: pytest.FixtureRequest, browser: Any, file: Path) -> Iterator[Any]:
    """The report in a window; at the end nothing else was asked for, and nothing complained of."""
    width, scheme = request.param
    seen = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    asked: list[str] = []
    seen.on("console", lambda message: said.append(message.text))
    seen.on("pageerror", lambda error: said.append(str(error)))
    seen.on("request", lambda one: asked.append(one.url))
    seen.on("dialog", lambda dialog: said.append(dialog.message))
    seen.goto(file.as_uri())
    seen.wait_for_selector("body[data-ready]")
    yield seen
    assert said == [] and asked == [file.as_uri()]
    seen.close()


def test_what_is_told_of_an_op_is_the_traces(opened, sample):
    over = opened.locator("#memory .u-over")
    box = over.bounding_box()
    over.hover(position={"x": box["width"] * 0.6, "y": box["height"] / 2})
    told = opened.inner_text("#at-op")
    op = int(told.split()[1])
    alive = int(load_bytes(sample.trace)[op])
    assert f"({alive} bytes)" in told and sample.trace.ops[op].name in told
    assert told.count("\n") == 5  # the op, and the largest storages


def test_lines_of_a_script_stay_text(opened):
    opened.focus("#addresses")
    cards = set()
    for _ in range(30):
        opened.keyboard.press("ArrowRight")
        cards.add(opened.inner_text("#card"))
    assert any(HOSTILE in card for card in cards)
    assert opened.locator("img").count() == 0


def test_keys_and_clicks_choose_storages_and_say_what_becomes_of_them(opened, sample):
    opened.focus("#addresses")
    opened.keyboard.press("ArrowRight")
    first = opened.inner_text("#card")
    opened.keyboard.press("ArrowRight")
    second = opened.inner_text("#card")
    opened.keyboard.press("ArrowLeft")
    assert opened.inner_text("#card") == first != second
    fates = set()
    for _ in range(len(sample.boxes.storage)):
        opened.keyboard.press("ArrowRight")
        fates.add(opened.inner_text("#card").splitlines()[-1].split()[0])
    assert "kept" in fates and fates & {"swapped", "dropped"}
    assert "largest gap: " in first and any(gap.why in first for gap in sample.gaps.values())
    opened.evaluate("document.getElementById('card').textContent = ''")
    canvas = opened.locator("#addresses")
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] / 2, "y": box["height"] - 5})  # what lies lowest
    assert "at address" in opened.inner_text("#card")


def test_the_slider_changes_the_cost(opened, sample):
    def at(value: int) -> str:
        opened.evaluate(
            f"s = document.getElementById('slider'); s.value = {value}; s.dispatchEvent(new Event('input'))"
        )
        return opened.inner_text("#cost")

    assert "no plan" in at(0) and "+0.0 %" in at(1000)
    assert at(300) != at(700)


def test_two_peaks_are_drawn_one_over_the_other(opened, sample):
    over, curve = opened.locator("#against .u-over"), sample.changes.own_curve
    at = over.bounding_box()["width"] * curve.index(sample.changes.own_peak_bytes) / len(curve)
    over.hover(position={"x": at + 1, "y": 20})
    here = opened.locator("#against .u-series", has_text="here").inner_text()
    assert f"{sample.changes.own_peak_bytes / MIB:.2f} MiB" in here
    assert opened.locator("#changes tbody tr").count() == len(sample.changes.rows)


def test_owners_are_sorted_by_a_click(opened, sample):
    def largest() -> list[str]:
        return [row.split("\t")[0] for row in opened.locator("#owners tbody").inner_text().splitlines()]

    before = largest()
    opened.locator("#owners th button", has_text="bytes").click()
    opened.locator("#owners th button", has_text="bytes").click()
    assert largest() == before[::-1] and len(before) == len(sample.owners)


def test_pictures_are_drawn_and_nothing_is_wider_than_the_window(opened):
    for selector in ("#memory canvas", "#addresses", "#lanes", "#curve canvas", "#against canvas"):
        picture = Image.open(io.BytesIO(opened.locator(selector).screenshot())).convert("RGB")
        colours = np.unique(np.asarray(picture).reshape(-1, 3), axis=0)
        assert len(colours) > 8, selector
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_colours_follow_the_scheme(browser, file):
    found = {}
    for scheme in ("light", "dark"):
        seen = browser.new_page(color_scheme=scheme)
        seen.goto(file.as_uri())
        found[scheme] = seen.evaluate("getComputedStyle(document.body).backgroundColor")
        seen.close()
    assert found["light"] == "rgb(255, 255, 255)" and found["dark"] != found["light"]


def test_without_javascript_head_and_owners_are_there(browser, file, sample):
    context = browser.new_context(java_script_enabled=False)
    seen = context.new_page()
    seen.goto(file.as_uri())
    assert sample.head.verdict in seen.inner_text("#verdict")
    assert seen.locator("#owners tbody tr").count() == len(sample.owners)
    assert not seen.locator("#memory").is_visible() and not seen.locator("#against").is_visible()
    assert HOSTILE in seen.inner_text("#run")
    context.close()


def test_marks_of_an_axis_have_no_more_digits_than_say_something(opened):
    sizes = {0: "0 B", 510: "510 B", 100 * MIB: "100 MiB", MIB * 3 // 2: "1.5 MiB", 1 << 40: "1024 GiB"}
    assert opened.evaluate(f"{list(sizes)}.map(draw.mark)") == list(sizes.values())
