"""Names on the command line: "all", or a choice of the known ones."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.errors import UsageError

_OPTIONS = {"allocator": "--allocators all", "policy": "--policies all"}


def choose(text: str, kind: str, *, all_: Sequence[str], more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names that `text`, "all" or "a,b,c", means: each once, in the order of `text`.

    "all" means `all_`; those of `more` have to be named. Raises UsageError for a name in neither, or for none at all.
    """
    if text.strip() == "all":
        return tuple(all_)
    known = (*all_, *more)
    wanted = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        what = f"there is no {kind} {unknown[0]!r}" if unknown else f"{_OPTIONS[kind].split()[0]} names no {kind}"
        raise UsageError(what, why=f"the known ones are {', '.join(known)}", remedy=_OPTIONS[kind])
    return wanted
