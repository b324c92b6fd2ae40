"""A page of a test in headless Chromium, beside the built site, which it can read and load."""

import functools
import json
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 300.0


def ask_browser(site: Path, page: str, profile: Path) -> Any:
    """Return the JSON that *page* sends to the address `answer`."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("chromium is not installed")
    answers: list[Any] = []
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

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
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
