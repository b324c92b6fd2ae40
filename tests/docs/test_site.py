"""The pages of docs/ can be reached, and their links lead somewhere; the site is not built."""

import asyncio
import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest
from redis.asyncio import Redis

import redlock_aio
import redlock_aio.contrib.aiohttp
import redlock_aio.contrib.fastapi
import redlock_aio.contrib.opentelemetry
import redlock_aio.contrib.prometheus
import redlock_aio.events
import redlock_aio.fencing
import redlock_aio.requirements
import redlock_aio.sync
import redlock_aio.testing
from redlock_aio import Redlock, Retry
from redlock_aio._protocol import commands
from redlock_aio._rules import fair_ticket, fencing
from redlock_aio.testing import EmbeddedMaster

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
BY_NAME = pytest.mark.parametrize("name", PAGES)
GENERATED = re.compile(
    r"^ *<!-- (?:file|options|api): .*?^ *<!-- end -->$", re.MULTILINE | re.DOTALL
)
DOCUMENTED = (
    *(redlock_aio, redlock_aio.errors, redlock_aio.events),
    *(redlock_aio.fencing, redlock_aio.requirements, redlock_aio.sync, redlock_aio.testing),
    *(redlock_aio.contrib.aiohttp, redlock_aio.contrib.fastapi),
    *(redlock_aio.contrib.opentelemetry, redlock_aio.contrib.prometheus),
)


def module_of_docs(name: str) -> ModuleType:
    """Import a program from docs/, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:  # its programs import each other
        patch.syspath_prepend(DOCS)
        spec.loader.exec_module(module)
    return module


def prose(name: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(
        r"^( *)```.*?^\1```$", "", PAGES[name].read_text(), flags=re.MULTILINE | re.DOTALL
    )


def written(name: str) -> str:
    """Return a page without what docs/fill.py has filled in."""
    return GENERATED.sub("", PAGES[name].read_text())


def anchors(name: str) -> set[str]:
    """Return the anchors of a page: its own, and those that mkdocs makes of its headings."""
    found = set(re.findall(r'<a id="([^"]+)"></a>', prose(name)))
    for heading in re.findall(r"^#+ (.*)$", prose(name), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"<[^>]+>", "", heading))
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower()))
    return found


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    listed = re.findall(r"^ +- [^:]+: (\S+\.md)$", nav, re.MULTILINE)
    assert sorted(listed) == sorted([*PAGES, "changelog.md"])  # docs/hooks.py makes that one
    assert len(listed) > 15


@BY_NAME
def test_every_link_to_a_page_leads_somewhere(name: str) -> None:
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", prose(name)):
        path, _, anchor = target.partition("#")
        whole = (PAGES[name].parent / path).resolve() if path else PAGES[name]
        assert whole.is_file(), target
        if whole == ROOT / "CHANGELOG.md" or whole.suffix == ".svg":  # docs/hooks.py replaces both
            continue
        assert whole.is_relative_to(DOCS), f"{target} is not part of the site"
        if anchor:
            assert anchor in anchors(whole.relative_to(DOCS).as_posix()), target


@BY_NAME
def test_every_file_that_a_page_names_exists(name: str) -> None:
    named = re.findall(r"`((?:docs|examples|tests|benchmarks)/[\w./-]*)`", PAGES[name].read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def resolved(name: str) -> object:
    """Return the object with a dotted name."""
    module, _, attributes = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return getattr(resolved(module), attributes)


def test_every_public_name_has_its_place_in_the_reference() -> None:
    shown = set()
    for path in PAGES.values():
        for whole, options in re.findall(
            r"^<!-- api: (\S+)([^>]*)-->", path.read_text(), re.MULTILINE
        ):
            members = re.search(r"^members: \[(.*)\]", options, re.MULTILINE)
            thing = resolved(whole)
            if inspect.ismodule(thing):
                listed = members[1].split(", ") if members else list(thing.__all__)
                shown |= {f"{whole}.{member}" for member in listed}
            elif members:
                for member in members[1].split(", "):
                    assert hasattr(thing, member), f"{whole}.{member}"
            shown.add(whole)
    shown |= {f"redlock_aio.errors.{error}" for error in redlock_aio.errors.__all__}
    shown.add("redlock_aio.events.Event")  # a union, described by hand
    for module in DOCUMENTED:
        for name in module.__all__:
            assert f"{module.__name__}.{name}" in shown


def test_every_method_of_a_manager_has_its_place_in_the_reference() -> None:
    members = re.search(
        r"^members: \[(.*)\]", PAGES["reference/redlock.md"].read_text(), re.MULTILINE
    )
    assert members
    public = {name for name, _ in inspect.getmembers(Redlock) if not name.startswith("_")}
    assert set(members[1].split(", ")) == public


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("redlock_aio.Redlock", Redlock),
        ("redlock_aio.Redlock.lock", Redlock.lock),
        ("redlock_aio.Retry", Retry),
    ],
)
def test_the_option_tables_have_a_row_for_each_option(name: str, function: object) -> None:
    assert f"<!-- options: {name} -->" in PAGES["reference/options.md"].read_text()
    table = module_of_docs("fill").options_table(name).splitlines()[2:]
    rows = [re.split(r"(?<!\\)\|", line.strip("|")) for line in table]
    assert callable(function)
    parameters = inspect.signature(function).parameters
    options = [name for name, it in parameters.items() if it.default is not it.empty]
    assert [row[0].strip(" `") for row in rows] == options
    for option, _, default, meaning in rows:
        real = parameters[option.strip(" `")].default
        if real is None:  # the column says what happens then
            assert default.strip() not in {"", "`None`"}
        else:
            assert eval(default.strip(" `"), {"Retry": Retry}) == real
        assert len(meaning.split()) > 2, option


def keys_page() -> dict[str, tuple[str, str]]:
    """Return the type and the ttl of each key that the page lists, by the key's name."""
    lines = [line for line in prose("reference/keys.md").splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        name.partition(" ")[0].strip("`*"): (kind, ttl)
        for name, kind, _, _, ttl in rows
        if name not in ("key", "---")
    }


@pytest.mark.integration
async def test_the_keys_on_a_master_are_those_of_the_page(masters: list[EmbeddedMaster]) -> None:
    """A fenced and fair lock, a semaphore with a waiter, and a reader cause every kind of key."""
    urls = [master.url for master in masters]
    seen: dict[str, tuple[str, int]] = {}
    async with Redlock(urls) as redlock, Redis.from_url(urls[0], decode_responses=True) as client:
        async with redlock.lock("invoice:42", fair=True, fencing=True) as lease:
            fence = redlock_aio.fencing.RedisFence(client, "invoice:42")
            await fence.write(token=lease.fencing_token)
            other = redlock.lock("invoice:42", fair=True, fencing=True)
            waiter = asyncio.create_task(other.acquire())
            while not (await redlock.inspect("invoice:42")).waiters:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for key in await client.keys("*"):
                kind, left = str(await client.type(key)), await client.pttl(key)
                seen[str(key)] = (kind.replace("zset", "sorted set"), left)
            async with redlock.lock("invoice:42:read", shared=True):
                assert await client.get("invoice:42:read") == "redlock_aio:shared"
                shares = "redlock_aio:shares:{invoice:42:read}"
                kind, left = str(await client.type(shares)), await client.pttl(shares)
                assert left == pytest.approx(await client.pttl("invoice:42:read"), abs=500)
                seen[shares.replace(":read", "")] = (kind.replace("zset", "sorted set"), left)
            few = redlock.semaphore("invoice:42:few", permits=1)
            async with few:
                next_of_few = asyncio.create_task(few.acquire())
                index = "redlock_aio:waiting:{invoice:42:few}"
                while not await client.exists(index):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                for key in ("redlock_aio:permit:{invoice:42:few}#0", index):
                    kind, left = str(await client.type(key)), await client.pttl(key)
                    seen[key.replace(":few", "")] = (kind.replace("zset", "sorted set"), left)
            await (await next_of_few).release()
        await (await waiter).release()
    documented = keys_page()
    longest = {
        "key": 10_000,
        "redlock_aio:fence:{key}": fencing.KEPT,
        "redlock_aio:queue:{key}": fair_ticket.LIVES + 100,
        "redlock_aio:masters:": 108_000,
        "redlock_aio:shares:{key}": 10_000 + 10_000 // 8,
        "redlock_aio:permit:{key}#0": 10_000,
        "redlock_aio:waiting:{key}": 5_000,
    }
    assert len(seen) == len(documented)
    for key, (kind, left) in seen.items():
        name = key.replace("{invoice:42}", "{key}").replace("invoice:42", "key")
        name = name.replace("seen:{key}", "seen:{name}")
        assert documented[name][0] == kind, key
        if name in longest:
            assert 0 < left <= longest[name] + 1_000, key
        else:
            assert (left, documented[name][1]) == (-1, "none"), key
    assert documented["redlock_aio:fence:{key}"][1].startswith(f"{fencing.KEPT // 86_400_000} days")
    assert f"{(fair_ticket.LIVES + 100) / 1000} s" in documented["redlock_aio:queue:{key}"][1]


def test_every_name_that_the_library_reserves_is_on_the_page_of_keys() -> None:
    page = prose("reference/keys.md")
    documented = set(re.findall(r"redlock_aio:[a-z]+", page))
    own = set()
    for path in (ROOT / "redlock_aio").rglob("*"):
        if path.suffix in {".py", ".lua"}:
            own |= set(re.findall(r"""b["'](redlock_aio:[a-z]+)""", path.read_text()))
    assert {name.decode().rstrip(":") for name in (commands.MARKER, commands.CHANNEL)} <= own
    assert commands.DECLARED_SETS.decode().rstrip(":") in own
    assert own | {"redlock_aio:seen"} == documented


def test_the_pictures_are_those_that_the_script_draws() -> None:
    drawn = {f"{it.name}.svg": it.svg() for it in module_of_docs("pictures").pictures()}
    kept = {path.name: path.read_text() for path in (DOCS / "pictures").iterdir()}
    assert kept == drawn, "run python docs/pictures.py"


def test_the_pictures_are_well_formed_and_load_nothing() -> None:
    for path in (DOCS / "pictures").iterdir():
        text = path.read_text()
        root = ET.fromstring(text)
        assert root.find("{http://www.w3.org/2000/svg}desc") is not None
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)|<script|@import|\burl\(", text) == []


def test_every_picture_is_on_a_page() -> None:
    shown = re.findall(r"^!\[[^]]+\]\(\S*pictures/([^)]+)\)$", "\n".join(pages()), re.MULTILINE)
    names = {path.name for path in (DOCS / "pictures").iterdir()}
    assert set(shown) == {name for name in names if not name.endswith("-narrow.svg")}


def test_pages_and_pictures_have_the_same_colours() -> None:
    drawing, css = module_of_docs("drawing"), (DOCS / "extra.css").read_text()
    for scheme, colours in (("default", drawing.LIGHT), ("slate", drawing.DARK)):
        block = css.partition(f'[data-md-color-scheme="{scheme}"] svg.picture {{')[2]
        assert dict(re.findall(r"--([\w-]+): (#\w+);", block.partition("}")[0])) == colours


def pages() -> list[str]:
    """Return the texts of all pages."""
    return [path.read_text() for path in PAGES.values()]


@pytest.mark.parametrize(
    ("name", "block"),
    [
        (name, block)
        for name in PAGES
        for block in re.findall(r"^```python\n(.*?)^```$", written(name), re.DOTALL | re.MULTILINE)
    ],
)
async def test_blocks_of_python_run(name: str, block: str) -> None:
    """Blocks that are not examples make a manager, and connect to nothing."""
    names: dict[str, object] = {}
    exec(compile(block, name, "exec"), names)
    assert isinstance(names["redlock"], Redlock | redlock_aio.sync.Redlock)
