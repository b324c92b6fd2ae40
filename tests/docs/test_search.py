"""
The search of the built site finds each message first.

The site's own worker searches its own index in headless Chromium, as for a reader who types. The
queries are the titles of the entries: the words by which a message is recognised.
"""

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from .messages import Entry, of_pages

ROOT = Path(__file__).parents[2]
ENTRIES = of_pages(ROOT / "docs" / "troubleshooting")
PATIENCE = 300.0

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
  await fetch("found", {method: "POST", body: JSON.stringify(found)});
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

COMMON = {
    "must-be", "plain-function", "drift-factor", "metadata", "resource-label", "not-a-master",
    "malformed-reply",  # "must", "not" and "a" are everywhere
    "lock-lost", "granted", "held-by-another", "not-used-yet",
    "no-answer", "masters-cant-run",  # these words begin other messages, or are the title of a page
}  # fmt: skip
"""Entries with messages of such common words that others may come before them."""


def query(entry: Entry) -> str:
    """Return the title of *entry* without holes, and without what means something to the search."""
    text = re.sub(r"\.\.\.|[()]|(?<!\S)-+", " ", entry.title)
    return " ".join(text.split()).strip(" :;,")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environ, check=True, timeout=PATIENCE)
    return folder


def search(site: Path, queries: list[str], profile: Path) -> list[str | None]:
    """Return the place that the search shows first for each query."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("chromium is not installed")
    (worker,) = (site / "assets/javascripts/workers").glob("search.*.min.js")
    page = PAGE.replace("WORKER", worker.name).replace("QUERIES", json.dumps(queries))
    answers: list[list[str | None]] = []
    answered = threading.Event()

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/ask.html":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page.encode())

        def do_POST(self) -> None:
            answers.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            answered.set()

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(site))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = subprocess.Popen(
            [
                *(chromium, "--headless", "--no-sandbox", "--disable-gpu"),
                *("--remote-debugging-port=0", f"--user-data-dir={profile}"),
                f"http://127.0.0.1:{server.server_port}/ask.html",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert answered.wait(PATIENCE), "the browser has not answered"
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
    return answers[0]


@pytest.mark.timeout(2 * PATIENCE)
def test_the_search_finds_each_message_first(site: Path, tmp_path: Path) -> None:
    entries = [entry for entry in ENTRIES if entry.word not in COMMON]
    queries = ["too few masters answered", "never awaited", *AS_THEY_COME, *map(query, entries)]
    wanted = [
        "troubleshooting/acquire.html#too-few-masters",
        "troubleshooting/used-wrongly.html#never-awaited",
        *(f"troubleshooting/{place}" for place in AS_THEY_COME.values()),
        *(f"troubleshooting/{entry.page}.html#{entry.word}" for entry in entries),
    ]
    found = search(site, queries, tmp_path)
    missed = {q: f for q, w, f in zip(queries, wanted, found, strict=True) if w != f}
    assert missed == {}
    assert len(found) > 200


def test_the_entries_of_common_words_exist() -> None:
    assert {entry.word for entry in ENTRIES} >= COMMON
