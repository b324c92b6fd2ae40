"""What `Redlock.of_cluster` takes: URLs, clients, tags and options."""

import re
from typing import Any

import pytest
from redis.asyncio import RedisCluster

from redlock_aio import Redlock
from redlock_aio._rules import urls
from redlock_aio._transport.address import ClusterAddress, ClusterMaster, addresses, masters_of

THREE = ["{0001}", "{8209}", "{8239}"]


def names(redlock: Redlock) -> list[str]:
    return [master.name for master in redlock.statistics().masters]


def cluster_of(url: str, **options: Any) -> ClusterAddress:
    cluster = masters_of(url, **options)[0].cluster
    assert isinstance(cluster, ClusterAddress)
    return cluster


@pytest.mark.parametrize(
    ("url", "seeds", "tls"),
    [
        ("redis://host", [("host", 6379)], False),
        ("valkey://host:7000", [("host", 7000)], False),
        # The default of redis-py has changed, from false to true.
        ("rediss://conf.example:6379?ssl_check_hostname=true", [("conf.example", 6379)], True),
        ("valkeys+cluster://host?ssl_check_hostname=true", [("host", 6379)], True),
        ("redis+cluster://a:1,b,[::1]:3/0?masters=3", [("a", 1), ("b", 6379), ("::1", 3)], False),
        ("REDISS+CLUSTER://u:p@a,b:2/?ssl_check_hostname=false", [("a", 6379), ("b", 2)], True),
    ],
)
def test_urls(url: str, seeds: list[tuple[str, int]], tls: bool) -> None:
    redlock = Redlock.of_cluster(url, masters=3)
    assert [name.partition(" ")[0] for name in names(redlock)] == THREE
    found = cluster_of(url)
    assert list(found.seeds) == seeds
    assert ("ssl" in found._class.__mro__[1].__mro__[1].__name__.lower()) == tls
    assert found.prefers_names == (tls and "check_hostname=false" not in url)


def test_login_and_options_are_those_of_all_nodes() -> None:
    found = cluster_of("redis+cluster://me:s%2Fcret@a,b:2?masters=5&client_name=billing")
    assert (found._kwargs["username"], found._kwargs["password"]) == ("me", "s/cret")
    assert found.client_name == "billing"
    assert found.secrets == ("s/cret",)
    assert "cret" not in f"{found!r} {found} {masters_of('redis://:cret@h')!r}"


@pytest.mark.parametrize(
    ("url", "options", "tags"),
    [
        ("redis://h", {}, THREE),
        ("redis+cluster://h?masters=1", {}, ["{8209}"]),
        ("redis+cluster://h?masters=1", {"masters": 3}, THREE),
        ("redis+cluster://h?tags=aaaa,bbbb,cccc", {}, ["{aaaa}", "{bbbb}", "{cccc}"]),
        ("redis://h", {"tags": ["aaaa"]}, ["{aaaa}"]),
        ("redis://h", {"masters": 5}, ["{3636}", "{6799}", "{8209}", "{9345}", "{0011}"]),
    ],
)
def test_the_number_of_masters(url: str, options: Any, tags: list[str]) -> None:
    redlock = Redlock.of_cluster(url, **options)
    assert names(redlock) == [f"{tag} (by Cluster h:6379)" for tag in tags]


@pytest.mark.parametrize("masters", ["redis+cluster://h?masters=3", ["rediss+cluster://h:6379"]])
def test_such_a_url_alone_names_all_masters(masters: Any) -> None:
    assert names(Redlock(masters)) == [f"{tag} (by Cluster h:6379)" for tag in THREE]


async def test_a_client() -> None:
    client = RedisCluster.from_url("rediss://me:pw@h:7000", ssl_cert_reqs="none", client_name="x")
    masters = masters_of(client)
    found = masters[0].cluster
    assert isinstance(found, ClusterAddress)
    assert found.seeds == (("h", 7000),)
    assert (found._kwargs["username"], found._kwargs["password"]) == ("me", "pw")
    assert found.client_name == "x"
    assert not found.prefers_names
    assert names(Redlock.of_cluster(client)) == [f"{tag} (by Cluster h:7000)" for tag in THREE]


async def test_a_client_with_tls_that_checks_names() -> None:
    client = RedisCluster("h", 7000, ssl=True, ssl_check_hostname=True)
    found = masters_of(client)[0].cluster
    assert found.prefers_names


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        ("", "cluster must be a redis://"),
        ("unix:///run/redis.sock", "cluster must be a redis://, rediss://"),
        ("redis+sentinel://h/mine", "cluster must be a redis://, rediss://"),
        ("h:6379", "cluster must be a redis://, rediss://"),
        ("redis://h/3", "cluster has a path: a Redis Cluster has the database 0 only"),
        ("redis+cluster://", "cluster names no node"),
        ("redis+cluster://a,,b", "cluster has a comma without a node"),
        ("redis+cluster://u@a,b@c", "cluster has"),
        ("redis+cluster://u:p@@a", "cluster has two '@' before the path"),
        ("redis://a,redis://b", "cluster holds two URLs; a Cluster is named alone, its nodes in"),
        ("redis+cluster://a,redis+cluster://b?masters=3", "cluster holds two URLs; a Cluster is"),
        ("redis+cluster://h?db=1", "cluster has an option 'db'"),
        ("redis+cluster://h?masters=x", "cluster has an option 'masters' that is not a number"),
        ("redis+cluster://h?masters=2", "masters must be an odd number from 1 to 21, not 2"),
        ("redis+cluster://h?masters=99999", "an odd number from 1 to 21, not 99999"),
        (f"redis+cluster://h?masters={'9' * 5_000}", "that is not a number from 1 to 21"),
        ("redis+cluster://h?tags=1", "tags must have 4 letters or digits"),
        ("redis://h?nonsense=1", "cluster has an option 'nonsense' that is unknown"),
        ("redis://h?ssl_cert_reqs=none", "which is for rediss:// URLs"),
        ("redis+cluster://h?ssl_cert_reqs=none", "which is for rediss+cluster:// URLs"),
        ("redis+cluster://:s3cret#x@h", "cluster has a '#'"),
    ],
)
def test_urls_that_are_refused(cluster: str, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        Redlock.of_cluster(cluster)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"masters": 0}, ValueError, "masters must be an odd number from 1 to 21, not 0"),
        ({"masters": 4}, ValueError, "an even number survives the loss of no more"),
        ({"masters": 23}, ValueError, "masters must be an odd number from 1 to 21, not 23"),
        ({"masters": "3"}, TypeError, "masters must be an int, not a str"),
        ({"masters": True}, TypeError, "masters must be an int, not a bool"),
        ({"tags": ["0001"], "masters": 3}, ValueError, "one for each of the 3 masters, not 1"),
        ({"nonsense": 1}, TypeError, "nonsense"),
        ({"restart_guard": "fsync-always"}, ValueError, "restart_guard must be 'auto' or 'strict'"),
    ],
)
def test_options_that_are_refused(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Redlock.of_cluster("redis://h", **options)


@pytest.mark.parametrize("cluster", [7, None, ["redis://h"], b"redis://h"])
def test_other_kinds_are_refused(cluster: Any) -> None:
    with pytest.raises(TypeError, match=r"cluster must be a URL or a redis\.asyncio\.RedisCluster"):
        Redlock.of_cluster(cluster)


async def test_one_of_several_masters_can_not_be_a_cluster() -> None:
    client = RedisCluster("h", 7000)
    for masters in (client, [client], ["redis://a", client]):
        with pytest.raises(TypeError, match=r"can't be a Redis Cluster: Redlock\.of_cluster\(\)"):
            Redlock(masters)  # type: ignore[arg-type]
    for urls_ in (["redis://a", "redis+cluster://h"], ["redis+cluster://h", "redis+cluster://i"]):
        with pytest.raises(ValueError, match=r"is a Redis Cluster beside other masters"):
            Redlock(urls_)
    other = [*masters_of("redis://h"), *addresses("redis://a")]
    with pytest.raises(ValueError, match="masters must be of one Redis Cluster, or of none"):
        Redlock(other)


def test_options_are_those_of_redlock() -> None:
    redlock = Redlock.of_cluster("redis://h", key_prefix="p:", max_ttl=5_000, name="me")
    assert redlock._opener.settings.max_ttl == 5_000
    assert redlock._opener.settings.key_prefix.endswith(b"}p:")


def test_a_list_of_urls_is_split_behind_a_cluster() -> None:
    text = "redis+cluster://a,b:2?masters=3&tags=0001,8209,8239"
    assert urls.split(text) == [text]
    assert all(isinstance(each, ClusterMaster) for each in addresses(text))
