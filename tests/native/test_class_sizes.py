"""A class of the native code is small, or its header says why it is not."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NATIVE = Path(__file__).parents[2] / "native"
MOST_METHODS, MOST_MEMBERS = 20, 12
REASON = re.compile(r"for each|plain data|its members are|an interface|it implements", re.IGNORECASE)
HEAD = re.compile(r"^(?:class|struct)\s+(\w+)(?:\s+final)?[^;{()]*\{", re.MULTILINE)
NO_METHOD = re.compile(r"^(using|friend|static constexpr|static_assert|enum|class|struct)\b")


class Shape(NamedTuple):
    name: str
    methods: int
    members: int
    has_reason: bool


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def body_after(text: str, at: int) -> str:
    """Return what is between the brace before `at` and the one that closes it."""
    depth, end = 1, at
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[at : end - 1]


def statements(body: str) -> Iterator[str]:
    """Yield a class's own declarations, without the bodies of functions and of classes in it."""
    flat, depth = "", 0
    for letter in body:
        depth -= letter == "}"
        if depth == 0:
            flat += ";" if letter == "}" else letter
        depth += letter == "{"
    flat = re.sub(r"\b(public|private|protected):", ";", flat).replace("{", " ")
    yield from (" ".join(part.split()) for part in flat.split(";") if part.strip())


def without_arguments(declaration: str) -> str:
    """Return it without what is between angle brackets."""
    while declaration != (shorter := re.sub(r"<[^<>]*>", "", declaration)):
        declaration = shorter
    return declaration.replace("template ", "").strip()


def shape_of(name: str, body: str, comments: str) -> Shape:
    own = [without_arguments(one) for one in statements(body)]
    own = [one for one in own if not NO_METHOD.match(one) and "= delete" not in one]
    calls = [one for one in own if re.search(r"\w\s*\(", one)]
    methods = [one for one in calls if not re.match(rf"(explicit )?~?{name}\s*\(", one)]
    members = [re.sub(r"=[^,]*", "", one) for one in own if one not in calls and re.search(r"[\w>*&]\s+\w", one)]
    return Shape(name, len(methods), sum(1 + one.count(",") for one in members), bool(REASON.search(comments)))


def shapes(header: str) -> list[Shape]:
    """Return the classes of a header; a reason stands in the file's first lines or right above the class."""
    found, first = [], re.match(r"(//[^\n]*\n)*", header)
    assert first is not None
    for head in HEAD.finditer(header):
        above = re.search(r"((//[^\n]*\n)*)\Z", header[: head.start()])
        assert above is not None
        body = without_comments(body_after(header, head.end()))
        found.append(shape_of(head[1], body, first[0] + above[0]))
    return found


def test_the_count_is_right():
    (one,) = shapes(
        """// Things.
class One final : public Base {
 public:
  One(int a) : a_(a) {}
  void first(int x) const { if (x) { y(); } }
  static size_t second(const std::function<void()>& call);
  template <typename T>
  T third();
  using Name = int;

 private:
  struct Inner { int hidden; };
  int a_ = 0, b_;  // with a comment (and brackets)
  std::vector<std::pair<int, int>> pairs_;
};
"""
    )
    assert one == ("One", 3, 3, False)


def test_a_class_is_small_or_its_header_says_why_not():
    found = [(header.name, s) for header in NATIVE.rglob("*.h") for s in shapes(header.read_text())]
    large = [(name, s) for name, s in found if s.methods > MOST_METHODS or s.members > MOST_MEMBERS]
    assert [(name, s) for name, s in large if not s.has_reason] == []


def test_the_rule_is_known_to_some_large_classes():
    found = [s for header in NATIVE.rglob("*.h") for s in shapes(header.read_text())]
    assert len(found) > 80
    assert {"Engine", "Block"} <= {s.name for s in found if s.methods > MOST_METHODS or s.members > MOST_MEMBERS}
