"""What can be measured of the site's look: pictures, tables on a phone, and what a page needs."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from tests.docs.browser import PATIENCE, ask_browser
from tests.docs.test_site import DOCS, module_of_docs

SVG = "{http://www.w3.org/2000/svg}"
NARROW = sorted((DOCS / "pictures").glob("*-narrow.svg"))
WIDE = [path for path in sorted((DOCS / "pictures").glob("*.svg")) if path not in NARROW]
PHONE = 358
"""How many pixels a phone of 390 has for a picture."""


def texts(path: Path) -> list[ET.Element]:
    return list(ET.fromstring(path.read_text()).iter(f"{SVG}text"))


def words(path: Path) -> set[str]:
    """Return the words of all texts in a picture, without its numbers."""
    return set(re.findall(r"[^\W\d]{2,}", " ".join("".join(it.itertext()) for it in texts(path))))


def sizes() -> dict[str, float]:
    """Return the size of a letter of each class, as the pictures' style says."""
    style = module_of_docs("drawing").STYLE
    found = {
        name: float(size) for name, size in re.findall(r"\.(\w+)\{[^}]*size:([\d.]+)px", style)
    }
    return {"": float(re.findall(r"text\{font:([\d.]+)px", style)[0]), **found}


def test_every_picture_has_both_layouts() -> None:
    assert [path.stem for path in WIDE] == [path.stem.removesuffix("-narrow") for path in NARROW]
    assert len(WIDE) > 5


def test_every_picture_of_measurements_has_both_layouts() -> None:
    pages = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    shown = set(re.findall(r"\]\([./]*(benchmarks/results[\w-]*)\.svg\)", pages))
    assert len(shown) > 3
    for picture in shown:
        width = (
            ET.parse(DOCS.parent / f"{picture}-narrow.svg").getroot().attrib["viewBox"].split()[2]
        )
        assert float(width) <= 360


@pytest.mark.spread(0)
@pytest.mark.parametrize("path", NARROW, ids=lambda path: path.stem)
def test_letters_are_large_enough_on_a_phone(path: Path) -> None:
    width = float(ET.fromstring(path.read_text()).attrib["viewBox"].split()[2])
    for text in texts(path):
        classes = text.attrib["class"].split()
        size = min((sizes()[it] for it in classes if it in sizes()), default=sizes()[""])
        assert size * min(PHONE / width, 1) >= 11.9, "".join(text.itertext())


@pytest.mark.parametrize("path", NARROW, ids=lambda path: path.stem)
def test_texts_stay_in_the_picture(path: Path) -> None:
    """By the widths of letters that common fonts have."""
    for text in texts(path):
        content, classes = "".join(text.itertext()), text.attrib["class"]
        letter = 7.6 if "code" in classes else 7.1 if "name" in classes else 6.3
        if "title" in classes:
            letter = 8.6
        if text.attrib["text-anchor"] == "start" and "transform" not in text.attrib:
            assert float(text.attrib["x"]) + len(content) * letter <= 360, content


@pytest.mark.parametrize("path", WIDE, ids=lambda path: path.stem)
def test_both_layouts_say_the_same(path: Path) -> None:
    narrow = words(path.with_name(f"{path.stem}-narrow.svg"))
    assert words(path) - {"host"} == narrow - {"host"}


@pytest.mark.parametrize("path", NARROW, ids=lambda path: path.stem)
def test_numbers_do_not_cover_each_other(path: Path) -> None:
    root = ET.fromstring(path.read_text())
    places = [
        (float(it.attrib["cx"]), float(it.attrib["cy"]))
        for it in root.iter(f"{SVG}circle")
        if "cx" in it.attrib
    ]
    for number, (x, y) in enumerate(places):
        for other_x, other_y in places[:number]:
            assert (x - other_x) ** 2 + (y - other_y) ** 2 >= 15**2, (x, y)


def rendered(
    text: str,
    name: str = "how-to/page.md",
    meta: dict[str, object] | None = None,
    extensions: Sequence[str] = (),
) -> str:
    """Return the site's HTML of a page."""
    markdown = pytest.importorskip("markdown", reason="the extra `docs` is not installed")
    hooks = module_of_docs("hooks")
    file = SimpleNamespace(abs_src_path=str(DOCS / name), src_uri=name)
    page = SimpleNamespace(file=file, meta={} if meta is None else meta)
    used = ["attr_list", "md_in_html", "tables", *extensions, hooks.ListsOnPhones()]
    return str(markdown.markdown(hooks.on_page_markdown(text, page), extensions=used))


@pytest.mark.parametrize(
    ("name", "text", "hidden"),
    [
        ("index.md", "# Home\n\n## Part\n", ["navigation", "toc"]),
        ("reference/keys.md", "# Keys\n\nText.\n", ["toc"]),
        ("reference/options.md", "# Options\n\n## Retry\n", None),
    ],
)
def test_columns_that_would_be_empty_are_hidden(name: str, text: str, hidden: object) -> None:
    meta: dict[str, object] = {}
    rendered(text, name, meta)
    assert meta.get("hide") == hidden


def test_pages_about_messages_come_first_in_the_search() -> None:
    meta: dict[str, object] = {}
    page = rendered('### <a id="too-few-masters"></a>`too few`\n', "troubleshooting/a.md", meta)
    assert meta["search"] == {"boost": 2}
    assert page.startswith('<h3 id="too-few-masters">')


OPTIONS = "| option | default | meaning |\n|---|---|---|\n| `ttl` | `10` | how long |\n"


def test_the_tables_of_options_are_lists_on_a_phone() -> None:
    page = rendered((DOCS / "reference" / "options.md").read_text())
    assert page.count("<table") == page.count('<table data-list=""') == 3
    assert '<td data-title="default">' in page
    css = (DOCS / "extra.css").read_text()
    on_phones = re.findall(
        r"^@media[^{]*max-width: 44\.9844em\) \{(.*?)^\}", css, re.DOTALL | re.MULTILINE
    )
    assert any("[data-list] tr" in rules and "attr(data-title)" in rules for rules in on_phones)
    assert any("figure.wide" in rules and "figure.narrow" in rules for rules in on_phones)


@pytest.mark.parametrize(
    "table",
    [
        f'<div class="figures" markdown>\n\n{OPTIONS}\n</div>\n',
        f'<div class="matrix" markdown>\n\n{OPTIONS}\n</div>\n',
        OPTIONS.replace("|---|---|---|", "|---|---:|---|"),
        "| what | why |\n|---|---|\n| a | b |\n",
        "| what | why |\n|---|---|\n| `cluster-node-timeout` | breaks at hyphens |\n",
    ],
)
def test_tables_of_figures_and_narrow_ones_stay_tables(table: str) -> None:
    page = rendered(table)
    assert "<table>" in page
    assert "data-title" not in page


def test_two_columns_are_a_list_where_names_in_the_first_would_break() -> None:
    page = rendered(
        "| there | here |\n|---|---|\n| `acquire(blocking=False)` | `try_acquire()` |\n"
    )
    assert '<td data-title="here">' in page


def test_titles_of_columns_are_whole_where_an_extension_puts_code_aside() -> None:
    pytest.importorskip("pymdownx", reason="the extra `docs` is not installed")
    table = '| a | `x="1"` | b |\n|---|---|---|\n| 1 | 2 | 3 |\n'
    page = rendered(table, extensions=["pymdownx.inlinehilite"])
    assert '<td data-title="x=&quot;1&quot;">' in page


def test_long_names_in_headings_break_at_dots() -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    name = '<span class="doc doc-object-name doc-attribute-name">redlock_aio.a.LONG</span>'
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/a.md"))
    shown = module_of_docs("hooks").on_post_page(name, page)
    assert ">redlock_aio.<wbr>a.<wbr>LONG<" in shown


def test_a_picture_is_in_the_page_in_both_layouts() -> None:
    page = rendered("![One acquisition](../pictures/acquisition.svg)\n")
    assert page.count("<svg") == 2
    assert '<figure class="wide">' in page
    assert '<figure class="narrow">' in page
    names = re.findall(r' id="([^"]+)"', page)
    assert len(names) == len(set(names)) == 4


def test_a_summary_of_the_api_becomes_the_reference() -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    hooks = module_of_docs("hooks")
    vote = hooks.API.sub(hooks.reference, "<!-- api: redlock_aio.Vote -->\n\n<!-- end -->\n")
    assert '<a id="redlock_aio.Vote.detail"></a>' in vote
    text = "<!-- api: redlock_aio.Lock\nmembers: [acquire]\n-->\n\n## Old\n\n<!-- end -->\n"
    assert hooks.API.sub(hooks.reference, text) == (
        "::: redlock_aio.Lock\n    options:\n      members: [acquire]\n\n"
    )


def test_a_page_that_loads_from_outside_fails_the_build() -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    hooks = module_of_docs("hooks")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    assert hooks.on_post_page('<img src="a.png">', page) == '<img src="a.png">'
    with pytest.raises(hooks.PluginError, match="loads from outside"):
        hooks.on_post_page('<img src="https://example.com/a.png">', page)


MEASURED = """<!doctype html><title>look</title><body><script>
const seen = (frame, path, width) => {
  const inside = frame.contentDocument, found = [];
  if (inside.scrollingElement.scrollWidth > width) found.push("the page scrolls sideways");
  for (const part of inside.querySelectorAll(".md-content *")) {
    const style = frame.contentWindow.getComputedStyle(part);
    if (!part.getClientRects().length || part.closest("svg")) continue;
    const own = [...part.childNodes].some(it => it.nodeType === 3 && it.data.trim());
    if (own && parseFloat(style.fontSize) < 10) found.push("small: " + part.textContent);
    if (part.clientWidth > 1 && part.scrollWidth > part.clientWidth + 2) {
      if (style.overflowX === "hidden") found.push("cut: " + part.textContent);
      if (style.overflowX === "auto" && !style.backgroundImage.includes("gradient")
          && part.tagName !== "TABLE") found.push("no hint: " + part.textContent);
    }
  }
  return found.map(it => `${path} at ${width}: ${it.slice(0, 60)}`);
};
(async () => {
  const found = [];
  for (const width of [390, 1300]) {
    for (const path of PATHS) {
      const frame = document.createElement("iframe");
      frame.style = `width:${width}px;height:800px;border:0`;
      frame.src = path;
      const loaded = new Promise(done => { frame.onload = done; });
      document.body.append(frame);
      await loaded;
      found.push(...seen(frame, path, width));
      frame.remove();
    }
  }
  await fetch("answer", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


@pytest.mark.timeout(2 * PATIENCE)
def test_nothing_is_cut_or_small_or_scrolls_without_a_hint(site: Path, tmp_path: Path) -> None:
    paths = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    assert len(paths) > 50
    assert ask_browser(site, MEASURED.replace("PATHS", json.dumps(paths)), tmp_path) == []
