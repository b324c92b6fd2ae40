"""
What `mkdocs build` does besides: it makes of pages that read well as they are a site.

- A summary of the API (docs/fill.py) becomes the whole reference, from the docstrings.
- A picture becomes a part of the page, so that it follows the colours that the reader has chosen.
  If there is a narrow one beside it, the page has both, and docs/extra.css shows one of them.
- Each cell of a table has the title of its column, because most tables are lists on a phone.
- The changelog is a page.
- The search prefers the entry whose message is closest to the words that are searched for.
- The build fails if a page would load anything from outside.
"""

import html
import inspect
import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from markdown.util import HTML_PLACEHOLDER_RE
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file by its path
import fill

ROOT = Path(__file__).parents[1]
API = re.compile(r"^<!-- api: (\S+)\s*(.*?)-->\n.*?^<!-- end -->$", flags=re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^ *<!-- (?:(?:file|options): \S+|end) -->\n", re.MULTILINE)
ANCHOR = re.compile(r'^(#+) <a id="([\w.-]+)"></a>(.*)$', re.MULTILINE)
PICTURE = re.compile(r"^!\[([^]]+)\]\(([^)]+\.svg)\)$", re.MULTILINE)
ENTRY = re.compile(r"troubleshooting/[\w-]+\.html#")
IN_HEADING = re.compile(r'(<span class="doc doc-object-name [\w-]+">)([\w.]+)(?=</span>)')
BOOST = 12.0
"""How much an entry counts in the search; the title of a page, which counts 1, has long words."""
LONGEST_NAME = 14
"""How many letters of code fit the first of two columns on a phone."""
FROM_OUTSIDE = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]+(?:src|href)=.?(?:https?:)?//")


def on_config(config: Any) -> Any:
    """Let tables be lists on a phone."""
    config.markdown_extensions.append(ListsOnPhones())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the changelog to the pages."""
    files.append(File.generated(config, "changelog.md", abs_src_path=str(ROOT / "CHANGELOG.md")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Replace what stands in a page for those who read it as it is."""
    if page.file.src_uri == "index.md":  # it is no part of a chapter, and may use the whole width
        page.meta.setdefault("hide", ["navigation", "toc"])
    elif not re.search(r"^##", markdown, re.MULTILINE):
        page.meta.setdefault("hide", ["toc"])  # it would be an empty column
    if page.file.src_uri.startswith("troubleshooting"):  # a message is searched for to be explained
        page.meta.setdefault("search", {"boost": 2})  # entries get another one, see `on_post_build`
    folder = Path(page.file.abs_src_path).parent
    markdown = API.sub(reference, markdown)
    markdown = COMMENT.sub("", markdown)
    markdown = ANCHOR.sub(r"\1 \3 {#\2}", markdown)
    markdown = re.sub(r"\]\((?:\.\./)*CHANGELOG\.md", changelog(page), markdown)
    return PICTURE.sub(lambda found: figure(folder / found[2], found[1]), markdown)


def reference(found: re.Match[str]) -> str:
    """Return what makes mkdocstrings write the reference of a class or a module."""
    options = "".join(f"      {line}\n" for line in found[2].splitlines())
    anchors = "".join(f'<a id="{name}"></a>' for name in fields(found[1]))
    before = f'<div class="fields">{anchors}</div>\n\n' if anchors else ""
    return f"{before}::: {found[1]}\n" + (f"    options:\n{options}" if options else "")


def fields(name: str) -> list[str]:
    """
    Return the full names of the fields of a class, or of the classes of a module.

    The reference lists them in the text about their class, without a place to which a link leads.
    """
    thing = fill.resolved(name)
    if inspect.ismodule(thing):
        return [
            field
            for member in thing.__all__
            if inspect.isclass(getattr(thing, member))
            for field in fields(f"{name}.{member}")
        ]
    listed = fill.entries(inspect.getdoc(thing) or "", "Attributes")
    return [f"{name}.{field}" for field in listed if field not in fill.public_members(thing)]


def changelog(page: Any) -> str:
    """Return the beginning of a link from *page* to the changelog's page."""
    up: str = "../" * page.file.src_uri.count("/")
    return f"]({up}changelog.md"


def figure(path: Path, caption: str) -> str:
    """Return the picture *path*, and a narrow one if there is one, as parts of a page."""
    narrow = path.with_name(f"{path.stem}-narrow.svg")
    if not narrow.exists():
        return f'<figure class="scrolls">\n{inline(path, caption)}</figure>'
    return (
        f'<figure class="wide">\n{inline(path, caption)}</figure>\n'
        f'<figure class="narrow">\n{inline(narrow, caption)}</figure>'
    )


def inline(path: Path, caption: str) -> str:
    """Return the element of a picture, which has a name for those who do not see it."""
    picture = path.read_text(encoding="utf-8")
    picture = picture[picture.index("<svg") :].rstrip() + "\n"
    if "aria-label" not in picture:
        picture = picture.replace("<svg", f'<svg role="img" aria-label="{caption}"', 1)
    return re.sub(r"\n\s*\n", "\n", picture)


class ListsOnPhones(Extension):  # type: ignore[misc]  # Markdown has no types
    """Python-Markdown that says in a table what docs/extra.css needs to show it as a list."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name is Markdown's
        md.treeprocessors.register(TitledCells(md), "lists-on-phones", 0)


class TitledCells(Treeprocessor):  # type: ignore[misc]  # Markdown has no types
    """What `ListsOnPhones` does: `data-list` on a table, `data-title` on each of its cells."""

    def run(self, root: Element) -> None:
        of_figures = {
            table
            for part in root.iter("div")
            if is_for_figures(part)
            for table in part.iter("table")
        }
        for table in root.iter("table"):
            heads = list(table.iter("th"))
            numbers = any("right" in head.get("style", "") for head in heads)
            narrow = len(heads) < 3 and not self._has_long_names(table)
            if narrow or numbers or table in of_figures:
                continue
            table.set("data-list", "")
            titles = [self._plain("".join(head.itertext())) for head in heads]
            for row in table.iter("tr"):
                for cell, title in zip(row.iter("td"), titles, strict=False):
                    cell.set("data-title", title)

    def _has_long_names(self, table: Element) -> bool:
        """Return whether code in the first column is too long for a column on a phone."""
        first = [cell for row in table.iter("tr") for cell in list(row)[:1]]
        texts = [self._plain(code.text or "") for cell in first for code in cell.iter("code")]
        return any(len(word) > LONGEST_NAME for text in texts for word in re.split(r"[ -]", text))

    def _plain(self, text: str) -> str:
        """Return *text* with the code that other extensions have put aside."""
        aside = self.md.htmlStash.rawHtmlBlocks
        return str(HTML_PLACEHOLDER_RE.sub(lambda found: html.unescape(aside[int(found[1])]), text))


def is_for_figures(part: Element) -> bool:
    """Return whether tables in this part of a page are compared down their columns."""
    return bool({"figures", "matrix"} & set(part.get("class", "").split()))


def on_post_page(output: str, page: Any, **_: object) -> str:
    """Let long names in headings break at dots; raise an error if a page loads from elsewhere."""
    if found := FROM_OUTSIDE.search(output):
        raise PluginError(f"{page.file.src_uri} loads from outside: {found[0]}")
    return IN_HEADING.sub(lambda found: found[1] + found[2].replace(".", ".<wbr>"), output)


def on_post_build(config: Any) -> None:
    """Write into the index of the search how much each entry about a message counts."""
    path = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    weigh_entries(index)
    path.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")


def weigh_entries(index: dict[str, Any]) -> None:
    """
    Let the title that is closest to the query come first, among those of Troubleshooting.

    The search adds up the weights of all words of a title that are in the query. So a long title
    would come before a short one that has no other words. With a weight of 1 for each title (the
    length of the vector of its words' weights), the title that is the query comes first.
    """
    separator = re.compile(index["config"]["separator"])

    def words(text: str) -> set[str]:
        plain = html.unescape(re.sub("<[^>]+>", " ", text)).lower()
        return {word for word in separator.split(plain) if word}

    docs = index["docs"]
    known = Counter(word for doc in docs for it in ("title", "text") for word in words(doc[it]))

    def weight(word: str) -> float:  # as lunr.idf has it
        return math.log(1 + abs((len(docs) - known[word] + 0.5) / (known[word] + 0.5)))

    for doc in docs:
        if ENTRY.match(doc["location"]) and doc["title"].endswith("</code>"):
            length = math.hypot(*map(weight, words(doc["title"])))
            doc["boost"] = round(BOOST / length, 4)
