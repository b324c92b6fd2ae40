"""What a Redis Cluster does by itself, on which its use as masters relies."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from evidence.clusters import Cluster, slot_of, tags, why_no_cluster
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from .clusters import cluster
from .helpers import RealMaster

pytestmark = pytest.mark.integration

KEY = "{0001}r"
SLOT = slot_of(KEY)
LASTS = 60_000


@pytest.fixture(scope="module")
def nodes(kind: str) -> Iterator[Cluster]:
    with cluster(kind) as made:
        yield made


@pytest.fixture
def up(nodes: Cluster) -> Iterator[Cluster]:
    """Return the cluster, with all nodes running, in agreement and in sync, and without keys."""
    for node in nodes.nodes:
        node.resume()
    nodes.wait_until(nodes.is_up, "it is up")
    for node in nodes.running:
        if node.is_primary:
            node.flush()
    yield nodes
    for node in nodes.nodes:
        node.resume()


def lock(node: RealMaster, key: str = KEY, by: str = "P") -> object:
    """Return the reply of a node that is asked for a lock, whatever it is."""
    with contextlib.closing(node.client()) as client:
        try:
            return client.set(key, by, nx=True, px=LASTS)
        except redis.ResponseError as error:
            return error


def epochs(up: Cluster) -> set[int]:
    """Return the epochs of the owner of the slot by the words of all nodes."""
    return {epoch for node in up.running for span, (_, epoch) in up.owners_by(node).items()
            if SLOT in span}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("how", ["", "FORCE", "TAKEOVER"])
def test_each_failover_raises_the_epoch_and_keeps_the_run_ids(up: Cluster, how: str) -> None:
    """There and back again: only the epoch shows it. The marker is back, too."""
    first = up.owner(SLOT)
    run_ids = {node.name: node.facts("server")["run_id"] for node in up.nodes}
    before = max(epochs(up))
    first.call("SET", KEY, "marker")
    with contextlib.closing(first.client()) as client:
        client.ping()
        second = up.fail_over(first, how)
        between = max(epochs(up))
        up.wait_until(up.is_up, "it is up")
        assert up.fail_over(second, how) is first
        assert client.get(KEY) == "marker"  # on the old connection
    assert before < between < max(epochs(up))
    assert run_ids == {node.name: node.facts("server")["run_id"] for node in up.nodes}


def test_a_slot_that_moves_keeps_its_keys_and_their_ttl(up: Cluster) -> None:
    old = up.owner(SLOT)
    new = next(node for node in up.nodes if node.is_primary and node is not old)
    assert lock(old) is True
    before = max(epochs(up))
    up.begin_move(SLOT, new)
    absent = lock(old, "{0001}absent")
    assert isinstance(absent, AskError)
    with contextlib.closing(old.client()) as client, pytest.raises(TryAgainError):
        client.eval("return 1", 2, KEY, "{0001}absent")
    assert up.move_keys(SLOT, new) == 1
    assert isinstance(lock(old), AskError)
    assert isinstance(lock(new), MovedError)  # it is not the owner yet
    up.end_move(SLOT, new)
    assert isinstance(lock(old), MovedError)
    assert lock(new) is None
    assert LASTS - 5_000 < new.call("PTTL", KEY) <= LASTS
    # It may be that of the new owner already, which is another epoch too.
    assert max(epochs(up)) != before
    up.move(SLOT, old)


def test_a_slot_that_is_taken_loses_its_keys(up: Cluster) -> None:
    """No run_id, uptime or connection shows it: only the owner, and its epoch."""
    old = up.owner(SLOT)
    new = next(node for node in up.nodes if node.is_primary and node is not old)
    assert lock(old) is True
    before = max(epochs(up))
    up.take(SLOT, new)
    assert lock(new, by="Q") is True
    assert max(epochs(up)) > before
    assert isinstance(lock(old), MovedError)
    up.take(SLOT, old)


@pytest.mark.full
def test_a_failover_loses_a_grant_and_the_paused_one_grants_once_more(up: Cluster) -> None:
    """Its vote counts twice, unless somebody asks the other nodes first."""
    old = up.owner(SLOT)
    with contextlib.closing(redis.Redis(port=old.port, socket_timeout=20)) as early:
        early.ping()
        old.pause()
        new = up.wait_for_promotion(old, SLOT)
        assert lock(new, by="Q") is True
        # In the socket of the server when it wakes up. By now all others name the new owner.
        assert old not in {up.owner(SLOT, node) for node in up.running}
        connection = early.connection_pool.get_connection()
        connection.send_command("SET", KEY, "P", "NX", "PX", LASTS)
        old.resume()
        try:
            answer = connection.read_response()
        except MovedError as error:  # it had time to hear of it, on a busy machine
            answer = error
        connection.disconnect()
    assert answer == b"OK" or isinstance(answer, MovedError)


@pytest.mark.full
def test_a_node_that_restarts_does_not_go_back(up: Cluster) -> None:
    """Its file keeps the epochs: no answer of it is older than one it gave before."""
    first = up.owner(SLOT)
    witness = next(node for node in up.nodes if node.is_primary and node is not first)
    second = up.fail_over(first, "TAKEOVER")
    known = up.owners_by(witness)
    up.wait_until(up.is_up, "it is up")
    witness.kill()
    witness.start()
    after = up.owners_by(witness)
    for span, (owner, epoch) in known.items():
        if SLOT in span:
            assert (owner, after[span]) == (second.id, (second.id, epoch))


@pytest.mark.full
def test_a_node_that_is_added_or_removed_is_known_to_all(up: Cluster) -> None:
    number = len(up.nodes)
    node = up.add()
    assert isinstance(lock(node), MovedError)
    assert all(len(other.views()) == number + 1 for other in up.running)
    up.forget(node)
    assert all(len(other.views()) == number for other in up.running)
    up.nodes.remove(node)
    node.stop()


@pytest.mark.full
@pytest.mark.parametrize("required", ["yes", "no"])
def test_full_coverage_decides_whether_all_primaries_stop(up: Cluster, required: str) -> None:
    """With "yes" they refuse from the failure of one until its replica is promoted."""
    up.require_full_coverage(required)
    one = up.owner(SLOT)
    other = next(node for node in up.nodes if node.is_primary and node is not one)
    key = f"{{{next(tags([other]))}}}r"
    refused = 0
    one.pause()
    while up.owner(SLOT, other) is one:
        refused += isinstance(lock(other, key, by=str(time.monotonic())), ClusterDownError)
        time.sleep(0.02)
    assert bool(refused) == (required == "yes")
    up.require_full_coverage("no")


def test_two_clusters_have_ports_of_their_own(nodes: Cluster) -> None:
    """The tests run in several processes."""
    used = {port for node in nodes.nodes for port in (node.port, node.bus)}
    assert len(used) == 2 * len(nodes.nodes)


def test_an_old_server_is_no_node(tmp_path: Path) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=00000000:0'\n")
    old.chmod(0o755)
    assert "is no server of version 7 or later" in why_no_cluster(str(old))
