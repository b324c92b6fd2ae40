"""The files for Compose and Kubernetes are valid, and servers with their settings are fit."""

import asyncio
import contextlib
import copy
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from redlock_aio import Redlock
from redlock_aio._protocol import commands
from redlock_aio._rules import timing
from redlock_aio._transport import master as transport
from redlock_aio.testing import EmbeddedMaster

from .test_readme import rows, section

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "compose.yaml").read_text())
KUBERNETES: dict[str, dict[str, Any]] = {
    document["kind"]: document
    for document in yaml.safe_load_all((ROOT / "examples" / "kubernetes.yaml").read_text())
}
SET = KUBERNETES["StatefulSet"]["spec"]
LEADER: dict[str, dict[str, Any]] = {
    document["kind"]: document
    for document in yaml.safe_load_all((ROOT / "examples" / "kubernetes-leader.yaml").read_text())
}
POD = SET["template"]["spec"]
CONTAINER = POD["containers"][0]
COMMANDS: dict[str, list[str]] = {
    "compose": COMPOSE["services"]["lock-1"]["command"],
    "kubernetes": CONTAINER["command"] + CONTAINER["args"],
}
USERS = KUBERNETES["Secret"]["stringData"]["users.acl"]

QUARANTINE = timing.forgetting(timing.MAX_TTL, factor=timing.DRIFT_FACTOR)
NAMES_KEPT = 30
"""The seconds for which the name servers of a cluster keep an address (CoreDNS as installed)."""


def settings(command: list[str]) -> dict[str, str]:
    """Return the settings of the command line of a server."""
    program, *flags = command
    assert program == "valkey-server"
    assert all(flag.startswith("--") for flag in flags[::2])
    return dict(zip([flag.removeprefix("--") for flag in flags[::2]], flags[1::2], strict=True))


def size(text: str) -> int:
    """Return a size such as 256mb, 512m or 1Gi in bytes; all of them are powers of 1,024."""
    number, unit = re.fullmatch(r"(\d+)(mb|m|Mi|Gi)", text).groups()  # type: ignore[union-attr]
    return int(number) << (30 if unit == "Gi" else 20)


# The schemas.


def test_the_file_for_compose_has_the_schema() -> None:
    compose_spec = pytest.importorskip("compose_spec", reason="the extra `lint` is not installed")

    def check(data: dict[str, Any]) -> None:  # as YAML without merge keys, which it can't read
        compose_spec.PyCompose.from_yaml(yaml.safe_dump(data)).validate()

    check(COMPOSE)
    for path in (("services", "lock-1", "helthcheck"), ("services", "lock-1", "mem_limits")):
        wrong: Any = copy.deepcopy(COMPOSE)
        wrong[path[0]][path[1]][path[2]] = "1m"
        with pytest.raises(ValueError, match=path[2]):
            check(wrong)


@pytest.mark.parametrize("version", ["1.25", "1.31", ""], ids=["oldest", "older", "newest"])
def test_the_file_for_kubernetes_has_the_schema(version: str) -> None:
    reason = "the extra `lint` is not installed"
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason=reason)
    version = version or kubernetes_validate.latest_version()
    for document in (*KUBERNETES.values(), *LEADER.values()):
        kubernetes_validate.validate(document, version, strict=True)
        wrong = {**document, "spec": {"minReadySecond": 65}}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, version, strict=True)


# What the schemas can't know.


def test_the_five_services_differ_only_in_port_and_volume(root: Path) -> None:
    services = COMPOSE["services"]
    assert len(services) == 5
    ports = []
    for name, service in services.items():
        (port,) = service["ports"]
        host, outside, inside = port.split(":")
        assert (host, inside) == ("127.0.0.1", "6379")
        ports.append(outside)
        assert service["volumes"] == [f"{name}:/data"]
        assert {**service, "ports": 0, "volumes": 0} == {
            **services["lock-1"], "ports": 0, "volumes": 0
        }  # fmt: skip
    assert set(COMPOSE["volumes"]) == set(services)
    urls = ",".join(f"redis://localhost:{port}" for port in ports)
    for page in ("how-to/running.md", "tutorial/first-lock.md"):
        assert f"export REDLOCK_MASTERS={urls}\n" in (root / "docs" / page).read_text()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_the_settings_of_a_server_are_those_of_the_page(root: Path, command: list[str]) -> None:
    page = section((root / "docs/how-to/running.md").read_text(), "Settings of a server")
    listed = [row[0].strip("`") for row in rows(page) if row[0].startswith("`")]
    given = settings(command)
    assert given.pop("dir") == "/data"
    given.pop("aclfile", None)
    assert set(listed) == {
        f"{name} {value}" if value else f'{name} ""' for name, value in given.items()
    }
    assert len(listed) == 6


def test_a_container_may_use_twice_the_memory_of_its_server() -> None:
    most = {name: size(settings(command)["maxmemory"]) for name, command in COMMANDS.items()}
    for service in COMPOSE["services"].values():
        assert size(service["mem_limit"]) == 2 * most["compose"]
    asked, limits = CONTAINER["resources"]["requests"], CONTAINER["resources"]["limits"]
    assert size(asked["memory"]) == size(limits["memory"]) == 2 * most["kubernetes"]
    assert limits.keys() == {"memory"}, "a limit of cpu delays replies"
    (claim,) = SET["volumeClaimTemplates"]
    # The append-only file is rewritten when it is twice as long; both are there until it is done.
    assert size(claim["spec"]["resources"]["requests"]["storage"]) > 3 * most["kubernetes"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_the_pods_are_found_by_service_budget_and_spreading() -> None:
    labels = SET["template"]["metadata"]["labels"]
    service, budget = KUBERNETES["Service"]["spec"], KUBERNETES["PodDisruptionBudget"]["spec"]
    rules = POD["affinity"]["podAntiAffinity"]
    (apart,) = rules["requiredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = POD["topologySpreadConstraints"]
    assert service["selector"] == labels
    for selects in (SET, budget, apart, spread):
        selector = selects.get("selector") or selects["labelSelector"]
        assert selector == {"matchLabels": labels}
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert (spread["maxSkew"], spread["whenUnsatisfiable"]) == (1, "DoNotSchedule")
    assert SET["replicas"] == 5
    assert SET["podManagementPolicy"] == "Parallel"
    assert SET["serviceName"] == KUBERNETES["Service"]["metadata"]["name"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert service["ports"][0]["port"] == CONTAINER["ports"][0]["containerPort"] == 6379


def test_kubernetes_waits_for_the_quarantine() -> None:
    """A roll-out leaves four votes, and draining one node after the other leaves three."""
    assert KUBERNETES["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    probe = CONTAINER["readinessProbe"]
    ready, available = probe["initialDelaySeconds"], SET["minReadySeconds"]
    assert ready > QUARANTINE
    assert available > QUARANTINE
    # A program's quarantine begins when it connects to the new address of the pod.
    late = NAMES_KEPT + transport.LONGEST_DIAL + transport.LONGEST_DELAY
    assert QUARANTINE + late < ready + available, "a roll-out restarts the next one"
    assert QUARANTINE + late < 2 * ready, "two that were drained before have no vote yet"
    assert "livenessProbe" not in CONTAINER


def test_the_files_are_mounted_where_the_server_looks_for_them() -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    given = settings(COMMANDS["kubernetes"])
    (users,) = POD["volumes"]
    assert users["secret"]["secretName"] == KUBERNETES["Secret"]["metadata"]["name"]
    assert given["aclfile"] == f"{mounts[users['name']]}/users.acl"
    (claim,) = SET["volumeClaimTemplates"]
    assert given["dir"] == mounts[claim["metadata"]["name"]]


def test_the_user_has_the_documented_permissions(root: Path) -> None:
    page = (root / "docs/reference/acl.md").read_text()
    block = page.partition("<!-- acl:begin -->")[2].partition("<!-- acl:end -->")[0]
    *_, most = re.findall(r"^ACL SETUSER redlock (.*)$", block, re.MULTILINE)
    default, user, *more = USERS.splitlines()
    assert user == f"user redlock {most.replace('~KEYS', '~lock:*')} +delifeq"
    assert default == "user default on nopass resetkeys resetchannels -@all +ping"
    assert not more


def leaders() -> dict[str, Any]:
    """Return the container of the file with the leader."""
    (container,) = LEADER["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_the_leader_names_the_masters_of_the_file() -> None:
    given = {it["name"]: it for it in leaders()["env"]}
    where = given["REDLOCK_MASTERS"]["valueFrom"]["secretKeyRef"]
    assert where["name"] == LEADER["Secret"]["metadata"]["name"]
    name, pods = SET["serviceName"], range(SET["replicas"])
    assert LEADER["Secret"]["stringData"][where["key"]].split(",") == [
        f"redis://redlock:PASSWORD@{name}-{pod}.{name}" for pod in pods
    ]


def test_the_replicas_are_selected_and_told_what_the_example_reads() -> None:
    spec = LEADER["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    assert spec["selector"] == spread["labelSelector"] == {"matchLabels": labels}
    assert spec["replicas"] > 1
    assert leaders()["command"] == ["python", "leader.py"], "it gets SIGTERM itself"
    read = re.findall(r'environ\.get\("(\w+)"', (ROOT / "examples" / "leader.py").read_text())
    assert {it["name"] for it in leaders()["env"]} == set(read)


# Real servers.


@contextlib.contextmanager
def servers(name: str, folder: Path, *more: str) -> Iterator[list[EmbeddedMaster]]:
    """Run five servers with the command line of a file, and *more*; only paths are replaced."""
    users = folder / "users.acl"
    users.write_text(f"{USERS}user admin on nopass ~* &* +@all\n")
    with contextlib.ExitStack() as stack:
        masters = []
        for number in range(5):
            (data := folder / f"{number}").mkdir()
            places = {"/data": str(data), "/etc/valkey/users.acl": str(users)}
            options = [places.get(word, word) for word in COMMANDS[name][1:]]
            masters.append(stack.enter_context(EmbeddedMaster(options=[*options, *more])))
        yield masters


def admin(name: str, master: EmbeddedMaster) -> redis.Redis:
    user, password = ("admin", "x") if name == "kubernetes" else (None, None)
    return redis.Redis(port=master.port, username=user, password=password, decode_responses=True)


def urls(name: str, masters: list[EmbeddedMaster]) -> list[str]:
    """Return the URLs of the masters, with the user of the file."""
    user = "redlock:PASSWORD@" if name == "kubernetes" else ""
    return [master.url.replace("redis://", f"redis://{user}") for master in masters]


def manager(name: str, masters: list[EmbeddedMaster]) -> Redlock:
    """Return a manager with the user of the file; on a busy machine no master is too slow."""
    return Redlock(urls(name, masters), key_prefix="lock:", master_timeout=5_000)


async def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends
        await asyncio.sleep(0.01)


async def all_vote(redlock: Redlock) -> None:
    """
    Wait until all masters vote.

    A new set votes when all of them are reached. On a busy machine a program that begins earlier
    may tell meanwhile that it waits for a majority.
    """
    await until(lambda: all(it.votes for it in redlock.statistics().masters))


@pytest.mark.integration
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.full
async def test_servers_with_these_settings_are_fit(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They grant every kind of lock without a warning, and a restart keeps markers and counters."""
    caplog.set_level(logging.INFO, logger="redlock_aio")
    with servers(name, tmp_path) as masters, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(admin(name, master)) for master in masters]
        for client in clients:
            check_configuration(client, settings(COMMANDS[name]))
        async with manager(name, masters) as redlock:
            await all_vote(redlock)
            kinds: list[dict[str, Any]] = [{}, {"fencing": True}, {"fair": True}]
            for options in kinds:
                async with redlock.lock("invoice:42", ttl=60_000, wait=10_000, **options):
                    assert (await redlock.inspect("invoice:42")).holder is not None
            assert not [it.getMessage() for it in caplog.records if it.levelno > logging.INFO]
        await until(lambda: not any(client.exists("lock:invoice:42") for client in clients))
        counter = "redlock_aio:fence:{lock:invoice:42}"
        before = [clients[0].get(key) for key in (commands.MARKER, counter)]
        assert None not in before
        with contextlib.suppress(redis.ConnectionError):
            clients[0].shutdown()  # as by SIGTERM, which containers get
        masters[0].restart()
        assert [clients[0].get(key) for key in (commands.MARKER, counter)] == before
        redlock = manager(name, masters)
        async with redlock, redlock.lock("invoice:42", wait=10_000):
            await until(lambda: "it restarted" in redlock.statistics().masters[0].reason)


@pytest.mark.integration
@pytest.mark.parametrize("name", COMMANDS)
def test_redlock_doctor_finds_nothing_serious_about_them(
    name: str, root: Path, tmp_path: Path
) -> None:
    """By the command of the page. Here all of them are on one machine, which may be busy."""
    page = (root / "docs/how-to/running.md").read_text()
    (command,) = re.findall(r"`redlock (doctor --key-prefix [^`]*)`", page)
    assert "`--ignore one-host`" in page
    with servers(name, tmp_path) as masters:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "redlock_aio", *command.split(), "--ignore", "one-host"),
                *("--master-timeout", "10s", "--timeout", "100s"),
            ],
            env={**os.environ, "REDLOCK_MASTERS": ",".join(urls(name, masters))},
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nmasters: 5, 0 serious, " in done.stdout


def check_configuration(client: redis.Redis, given: dict[str, str]) -> None:
    """Check that the server has these settings, and the version of the files."""
    given.pop("aclfile", None)
    given.pop("dir")
    for name, value in given.items():
        expected = str(size(value)) if name == "maxmemory" else value
        assert client.config_get(name) == {name: expected}
    if version := client.info("server").get("valkey_version"):
        images = {CONTAINER["image"], COMPOSE["services"]["lock-1"]["image"]}
        major = str(version).partition(".")[0]
        assert [re.match(r"valkey/valkey:(\d+)\.\d+-alpine$", it)[1] for it in images] == [major]  # type: ignore[index]


@pytest.mark.integration
async def test_the_user_of_the_file_may_lead_and_watch(tmp_path: Path) -> None:
    with servers("kubernetes", tmp_path) as masters:
        async with manager("kubernetes", masters) as redlock:
            await all_vote(redlock)
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-W", "error", str(ROOT / "examples" / "leader.py")],
            env={**os.environ, "REDLOCK_MASTERS": ",".join(urls("kubernetes", masters))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count(" leads, term ") == 3
        async with manager("kubernetes", masters) as redlock, asyncio.timeout(30):
            watch = redlock.watch("leader")
            assert (await anext(watch)).holder is None
            async for term in redlock.election("leader"):
                async with term:
                    state = await anext(watch)
                    assert state.holder is not None
                    assert state.fencing_counter == term.number
                    break


PROBES = {
    "compose": COMPOSE["services"]["lock-1"]["healthcheck"]["test"][1:],
    "kubernetes": CONTAINER["readinessProbe"]["exec"]["command"],
}


@pytest.mark.integration
@pytest.mark.parametrize("name", PROBES)
def test_the_probe_tells_a_server_that_answers(name: str, tmp_path: Path) -> None:
    program, *arguments = PROBES[name]
    assert program == "valkey-cli"
    found = shutil.which("valkey-cli") or shutil.which("redis-cli")
    if found is None:
        pytest.skip("no valkey-cli or redis-cli in the PATH")

    def probe() -> int:
        command = [found, "-p", str(masters[0].port), *arguments]
        return subprocess.run(command, capture_output=True, timeout=50, check=False).returncode

    with servers(name, tmp_path) as masters:
        assert probe() == 0
        with admin(name, masters[0]) as client:
            client.execute_command("ACL", "SETUSER", "default", "-ping")
            assert probe() != 0, "an error of the server"
        masters[0].kill()
        assert probe() != 0


@pytest.mark.integration
@pytest.mark.parametrize("name", COMMANDS)
def test_clients_outside_of_the_container_are_served(name: str, tmp_path: Path) -> None:
    """They come from another address; the default user has no password, and the image no say."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has only its loopback address")
        mine = asked.getsockname()[0]
    with (
        servers(name, tmp_path, "--bind", "127.0.0.1", mine) as masters,
        redis.Redis(host=mine, port=masters[0].port) as client,
    ):
        assert client.ping()


@pytest.mark.integration
def test_the_default_user_may_only_ping(tmp_path: Path) -> None:
    with servers("kubernetes", tmp_path) as masters, masters[0].client() as client:
        assert client.ping()
        for command in (("GET", "lock:a"), ("FLUSHALL",), ("INFO",), ("EVAL", "return 1", "0")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)
