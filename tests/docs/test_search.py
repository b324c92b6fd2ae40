"""
The search of the built site finds each message first.

The site's own worker searches its own index in headless Chromium, as for a reader who types. The
queries are the titles of the entries: the words by which a message is recognised.
"""

import json
import re
from pathlib import Path

import pytest

from .browser import PATIENCE, ask_browser
from .messages import Entry, of_pages
from .test_site import module_of_docs

ROOT = Path(__file__).parents[2]
ENTRIES = of_pages(ROOT / "docs" / "troubleshooting")
PAGE = """<!doctype html><title>search</title><script>
(async () => {
  const index = await (await fetch("search/search_index.json")).json();
  const worker = new Worker("assets/javascripts/workers/WORKER");
  const answer = type => new Promise(done => {
    worker.onmessage = ({data}) => { if (data.type === type) done(data.data); };
  });
  const send = (type, data, wanted) => {
    const answered = answer(wanted);
    worker.postMessage({type, data});
    return answered;
  };
  await send(0, {config: index.config, docs: index.docs, options: {suggest: false}}, 1);
  const found = [];
  for (const query of QUERIES) {
    const {items} = await send(2, query, 3);
    found.push(items.length ? items[0][0].location : null);
  }
  await fetch("answer", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""

AS_THEY_COME = {
    "RedlockError: 'a' would never be free: this task itself holds 'a'; reentrant=True acquires it"
    " again, or set wait= if another task will release it [own-lock]": "acquire.html#own-lock",
    "QuorumUnavailableError: too few masters answered in 0 ms (localhost:6379: unreachable,"
    " Connection refused at 127.0.0.1:6379) [too-few-masters]": "acquire.html#too-few-masters",
    "localhost:6379: unreachable, Connection refused at 127.0.0.1:6379": (
        "votes.html#connection-refused"
    ),
    "'invoice:42': waiting for a majority of the masters": "votes.html#waiting-for-a-majority",
    "'invoice:42': waiting for a majority of the masters (localhost:6379: unreachable, Connection"
    " refused at 127.0.0.1:6379)": "votes.html#waiting-for-a-majority",
    "ValueError: masters[0] must be a redis://, rediss://, valkey://, valkeys://, unix://,"
    " redis+sentinel:// or rediss+sentinel:// URL, or one redis+cluster:// URL alone, not a text"
    " without '://'": "used-wrongly.html#url-scheme",
    "ValueError: ttl must be at least 50 ms, not 10 ms; times are milliseconds: ten seconds are"
    " ttl=10_000": "used-wrongly.html#times-are-milliseconds",
    "TypeError: ttl must be an int (milliseconds) or a timedelta, not float": (
        "used-wrongly.html#whole-milliseconds"
    ),
    "TypeError: lock() has no option 'timeout'; use ttl= (after how long without an extension the"
    " lock ends), in ms, or wait= (for how long to wait for the lock), in ms": (
        "used-wrongly.html#no-option"
    ),
    "TypeError: 'with' can't enter a Lock: use 'async with', or redlock_aio.sync.Redlock for"
    " threads": "used-wrongly.html#use-async-with",
    "TypeError: a Lock can't be awaited: use 'async with lock as lease', or 'await"
    " lock.acquire()'": "used-wrongly.html#use-async-with",
    "RuntimeWarning: coroutine 'Redlock.is_locked' was never awaited": (
        "used-wrongly.html#never-awaited"
    ),
    "redlock: the package 'typer' is missing: pip install '.[cli]' in the clone of redlock_aio": (
        "used-wrongly.html#package-is-missing"
    ),
}
"""The first mistakes of a newcomer, who copies the last line of the output into the search."""

OTHERS = {
    "fastapi": "how-to/fastapi.html",
    "semaphore": "reference/semaphore.html",
    "fencing token": "explanation/fencing.html",
    "managed redis": "how-to/managed-redis.html",
    "options": "reference/options.html",
    "guarantees": "explanation/guarantees.html",
    "waiting": "explanation/waiting.html",
    "LockWatch": "reference/election.html",
    "sigterm": "how-to/stop.html",
    "doctor": "reference/doctor.html",
}
"""Pages that are found first by their own words, whatever the messages contain."""


def query(entry: Entry) -> str:
    """Return the title of *entry* without holes, and without what means something to the search."""
    text = re.sub(r"\.\.\.|[()]|(?<!\S)-+", " ", entry.title)
    return " ".join(text.split()).strip(" :;,")


def search(site: Path, queries: list[str], profile: Path) -> list[str | None]:
    """Return the place that the search shows first for each query."""
    (worker,) = (site / "assets/javascripts/workers").glob("search.*.min.js")
    page = PAGE.replace("WORKER", worker.name).replace("QUERIES", json.dumps(queries))
    found: list[str | None] = ask_browser(site, page, profile)
    return found


@pytest.mark.timeout(2 * PATIENCE)
def test_the_search_finds_each_message_first(site: Path, tmp_path: Path) -> None:
    queries = ["too few masters answered", "never awaited", *AS_THEY_COME, *map(query, ENTRIES)]
    wanted = [
        "troubleshooting/acquire.html#too-few-masters",
        "troubleshooting/used-wrongly.html#never-awaited",
        *(f"troubleshooting/{place}" for place in AS_THEY_COME.values()),
        *(f"troubleshooting/{entry.page}.html#{entry.word}" for entry in ENTRIES),
    ]
    found = search(site, queries, tmp_path)
    missed = {q: f for q, w, f in zip(queries, wanted, found, strict=True) if w != f}
    assert missed == {}
    assert len(found) > 200


@pytest.mark.timeout(2 * PATIENCE)
def test_the_search_finds_pages_by_their_own_words(site: Path, tmp_path: Path) -> None:
    found = search(site, list(OTHERS), tmp_path)
    assert dict(zip(OTHERS, found, strict=True)) == OTHERS


def test_a_short_title_comes_before_a_longer_one_that_has_its_words() -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    hooks = module_of_docs("hooks")
    titles = ["no answer", "no answer of the masters", "the answers of masters"]
    docs = [
        {
            "location": f"troubleshooting/votes.html#{number}",
            "title": f"<code>{it}</code>",
            "text": "",
        }
        for number, it in enumerate(titles)
    ]
    page = {"location": "how-to/a.html#b", "title": "<code>no answer</code>", "text": ""}
    index = {"config": {"separator": r"\s+"}, "docs": [*docs, page]}
    hooks.weigh_entries(index)
    boosts = [doc["boost"] for doc in docs]
    assert boosts[0] > boosts[1]
    assert "boost" not in page
