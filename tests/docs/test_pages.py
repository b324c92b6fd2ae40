"""
The pages can be read unbuilt, rendered as a repository host renders them.

No page needs a step of the site to be whole: what it shows of other files is in it, its pictures
are images, and its links lead to files of the repository. `tests/docs/test_site.py` has what only
the site needs.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.docs.test_site import module_of_docs

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for folder in (ROOT, ROOT / "examples", ROOT / "benchmarks", *(ROOT / "docs").rglob("."))
    for path in sorted(folder.glob("*.md"))
}
BY_NAME = pytest.mark.parametrize("name", PAGES)
LEFTOVERS = {
    "an include": r"-{1,2}8<-{1,2}",
    "a block of mkdocstrings": r"^:::",
    "an attribute": r"\{[#.:][^}]*\}",
    "a definition": r"^:\s",
    "an admonition": r"^(?:!!!|\?\?\?\+?) ",
    "a tab": r'^=== "',
    "a reference without its link": r"\]\[|\[[^\]]+\]\(",
    "a table without its head": r"^\|",
    "the comment of a generated part": r"<!--|-->",
}


@dataclass(slots=True)
class Rendered(HTMLParser):
    """What a reader meets in a page: text outside of code, links, pictures and anchors."""

    lines: list[str] = field(default_factory=lambda: [""])
    links: list[str] = field(default_factory=list)
    pictures: list[tuple[str, str]] = field(default_factory=list)
    anchors: list[str] = field(default_factory=list)
    heading: str | None = None
    code: int = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if tag == "code":
            self.code += 1
            if self.heading is None:
                self.lines[-1] += "`"
        elif re.fullmatch(r"h\d", tag):
            self.heading = ""
        elif tag == "img":
            self.pictures.append((given["src"], given.get("alt", "")))
        elif tag in {"p", "li", "td", "th", "br"}:
            self.lines.append("")
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if "id" in given:
            self.anchors.append(given["id"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "code":
            self.code -= 1
        elif self.heading is not None and re.fullmatch(r"h\d", tag):
            slug = re.sub(r"[^\w\- ]", "", self.heading.lower()).replace(" ", "-")
            if self.anchors[-1:] != [slug]:  # else it is the heading's own anchor, the same place
                self.anchors.append(slug)
            self.lines += [self.heading, ""]
            self.heading = None

    def handle_data(self, data: str) -> None:
        if self.heading is not None:
            self.heading += data
        elif not self.code:
            first, *more = data.split("\n")
            self.lines[-1] += first
            self.lines += more


@cache
def rendered(name: str) -> Rendered:
    """Return a page as a repository host shows it."""
    return of_text(PAGES[name].read_text())


def of_text(text: str) -> Rendered:
    page = Rendered()
    HTMLParser.__init__(page)
    page.feed(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))
    page.close()
    return page


def leftovers(page: Rendered) -> list[str]:
    """Return what a reader sees of the Markdown that only the site understands."""
    return [
        f"{what}: {line}"
        for what, pattern in LEFTOVERS.items()
        for line in page.lines
        if re.search(pattern, line)
    ]


@BY_NAME
def test_nothing_is_left_of_what_only_the_site_understands(name: str) -> None:
    assert leftovers(rendered(name)) == []


@pytest.mark.parametrize(
    "text",
    [
        '--8<-- "examples/quickstart.py"',
        "    options:\n\n::: redlock_aio.Lock\n    options:\n      members: [acquire]",
        "## Fixtures {#fixtures}",
        "`too few masters answered`\n:   Look up the votes.",
        '!!! note "Read this"\n    Text.',
        '=== "Redis"\n\n    Text.',
        "See [`Lease`][redlock_aio.Lease].",
        "See [`Lease`] [here]( there ) or [there](a b).",
        "| option | type |\n| a | b |",
    ],
)
def test_what_only_the_site_understands_is_seen(text: str) -> None:
    assert leftovers(of_text(text))


@BY_NAME
def test_a_page_begins_with_its_title(name: str) -> None:
    """Options of the site would be shown above it; docs/hooks.py sets them instead."""
    assert PAGES[name].read_text().startswith("# ")


@BY_NAME
def test_every_picture_is_there_and_has_words(name: str) -> None:
    for source, words in rendered(name).pictures:
        if not source.startswith("https://"):
            assert (PAGES[name].parent / source).is_file(), source
        assert len(words.split()) > 2, f"{source} needs words for those who do not see it"


@BY_NAME
def test_every_link_leads_to_a_file_and_a_place_in_it(name: str) -> None:
    for link in rendered(name).links:
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        whole = (PAGES[name].parent / path).resolve() if path else PAGES[name]
        assert whole.exists(), link
        if anchor:
            target = whole.relative_to(ROOT).as_posix()
            assert rendered(target).anchors.count(anchor) == 1, link


@BY_NAME
def test_what_a_page_shows_of_other_files_is_what_they_say(name: str) -> None:
    fill, text = module_of_docs("fill"), PAGES[name].read_text()
    begun = re.findall(r"^ *<!-- (?:file|options|api): ", text, re.MULTILINE)
    ended = re.findall(r"^ *<!-- end -->$", text, re.MULTILINE)
    assert len(begun) == len(ended) == len(fill.GENERATED.findall(text))
    assert fill.filled(text) == text, "run python docs/fill.py"


def test_a_part_that_is_not_there_is_an_error() -> None:
    fill = module_of_docs("fill")
    assert fill.code("examples/work_in_a_thread.py:pattern").count("```") == 2
    with pytest.raises(ValueError, match=r"examples/work_in_a_thread\.py has no part 'nothing'"):
        fill.code("examples/work_in_a_thread.py:nothing")
