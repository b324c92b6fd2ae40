"""
What `mkdocs build` does besides: option tables, and a check that pages load nothing from outside.

``<!-- options: redlock_aio.Redlock.lock -->`` in a page becomes a table of the keyword options of
that function: name, type and default from its signature, meaning from the first sentence of its
docstring's ``Args:``.
"""

import importlib
import inspect
import re
from typing import Any

ANCHOR = re.compile(r'^(#+) <a id="([\w.-]+)"></a>(.*)$', re.MULTILINE)
OPTIONS = re.compile(r"<!-- options: ([\w.]+) -->")
FROM_OUTSIDE = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]+(?:src|href)=.?(?:https?:)?//")
NOT_FOR_USERS = {"self", "unknown", "masters", "resources"}


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill the option tables of a page, and give its headings their anchors."""
    markdown = ANCHOR.sub(r"\1 \3 {#\2}", markdown)
    begin, end = '<div class="names" markdown>\n\n', "\n\n</div>"
    return OPTIONS.sub(lambda found: begin + options_table(found[1]) + end, markdown)


def on_post_page(output: str, page: Any, **_: object) -> str:
    """Raise an error if the page loads anything from another host."""
    if found := FROM_OUTSIDE.search(output):
        from mkdocs.exceptions import PluginError

        raise PluginError(f"{page.file.src_uri} loads from outside: {found[0]}")
    return output


def options_table(name: str) -> str:
    """Return the table of the options of the function or class *name*, in Markdown."""
    module, _, attributes = name.partition(".")
    thing: Any = importlib.import_module(module)
    for attribute in attributes.split("."):
        thing = getattr(thing, attribute)
    meanings = arguments(inspect.getdoc(thing) or "")
    lines = ["| option | type | default | meaning |", "| --- | --- | --- | --- |"]
    for option in inspect.signature(thing).parameters.values():
        if option.name not in NOT_FOR_USERS:
            meaning = meanings[option.name]
            lines.append(f"| `{option.name}` | {kind(option)} | `{shown(option)}` | {meaning} |")
    return "\n".join(lines)


def kind(option: inspect.Parameter) -> str:
    """Return the type of an option as a reader writes it."""
    text = inspect.formatannotation(option.annotation)
    text = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text).replace("'", '"')
    literal = re.fullmatch(r"Literal\[(.*)\]", text)
    words = literal[1].split(", ") if literal else text.split(" | ")
    return " or ".join(f"`{word}`" for word in words)


def shown(option: inspect.Parameter) -> str:
    """Return the default of an option; long numbers with a separator."""
    default = option.default
    if isinstance(default, int) and not isinstance(default, bool):
        return f"{default:_}"
    if isinstance(default, str):
        return f'"{default}"'
    return re.sub(r"\(.*\)$", "()", str(default))


def arguments(docstring: str) -> dict[str, str]:
    """Return the first sentence about each argument of a docstring."""
    found = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", docstring, re.MULTILINE | re.DOTALL)
    if not found:
        return {}
    entries = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", found[1], re.MULTILINE | re.DOTALL)
    return {name: first_sentence(" ".join(text.split())) for name, text in entries}


def first_sentence(text: str) -> str:
    """Return the first sentence of *text*, with code in single backticks."""
    sentence = re.split(r"(?<=\.)\s", text, maxsplit=1)[0].rstrip(".")
    return sentence.replace("``", "`").replace("|", r"\|")
