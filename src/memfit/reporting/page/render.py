"""The report as one HTML file: no request to anywhere, and nothing in it that came from a script is markup."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from importlib.resources import files

from jinja2 import Environment
from markupsafe import Markup

from memfit.reporting.names import full_op, short_line
from memfit.reporting.page.columns import columns_of
from memfit.reporting.page.data import Page
from memfit.units import format_bytes, format_share, format_us

_ASSETS = "memfit.reporting.page"
_SCRIPTS = ("uPlot.iife.min.js", "draw.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")


def to_html(page: Page) -> str:
    """Return the file's text.

    Its data is compressed and in base 64, so that no text of the trace's can end the element that it stands in; what is
    shown without JavaScript is escaped. Its policy (CSP) allows the scripts and styles in it by their hashes, and
    nothing else.
    """
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "bytes": format_bytes,
        "us": format_us,
        "share": format_share,
        "line": short_line,
        "op": full_op,
    }
    scripts, styles = [_asset(name) for name in _SCRIPTS], [_asset(name) for name in _STYLES]
    columns = json.dumps(columns_of(page), separators=(",", ":"))
    return environment.from_string(_asset("page.html.jinja")).render(
        page=page,
        head=page.head,
        trace=page.trace,
        us=sum(op.duration_us for op in page.trace.ops),
        data=base64.b64encode(zlib.compress(columns.encode(), 9)).decode(),
        scripts=[Markup(text) for text in scripts],  # noqa: S704 (the package's own files)
        styles=[Markup(text) for text in styles],  # noqa: S704
        policy=f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}",
    )


def _asset(name: str) -> str:
    return (files(_ASSETS) / "assets" / name).read_text(encoding="utf-8")


def _hashes(texts: list[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
