"""The tags of the masters of a Cluster, and the placeholder for them."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st
from redis.crc import key_slot

from redlock_aio._protocol import commands, replies, tags
from redlock_aio._protocol.primitives import Resources
from redlock_aio._protocol.tags import PLACEHOLDER, SLOTS

TAG = b"{0001}"
NAMES = st.text(min_size=1, max_size=40).filter(lambda name: name.isprintable())


def test_the_rule_is_fixed() -> None:
    """Programs that compute other tags would not exclude these, so they never change."""
    assert tags.default_tags(1) == (b"{8209}",)
    assert tags.default_tags(3) == (b"{0001}", b"{8209}", b"{8239}")
    assert tags.default_tags(5) == (b"{3636}", b"{6799}", b"{8209}", b"{9345}", b"{0011}")


@pytest.mark.parametrize("masters", range(1, 22, 2))
def test_each_master_has_a_primary_if_the_slots_are_shared_out_evenly(masters: int) -> None:
    made = tags.default_tags(masters)
    owners = {tags.slot(tag) * masters // SLOTS for tag in made}
    assert len(owners) == masters
    assert {len(tag) for tag in (*made, PLACEHOLDER)} == {6}


@pytest.mark.parametrize("tag", tags.default_tags(7))
def test_a_slot_is_that_of_the_server(tag: bytes) -> None:
    assert tags.slot(tag) == key_slot(tag + b"a{b}")


@given(NAMES, NAMES)
def test_all_keys_of_a_name_are_in_the_slot_of_the_tag(prefix: str, name: str) -> None:
    resources = Resources(prefix, tagged=True)
    try:
        key = resources.key(name)
    except ValueError:
        return  # too long
    permit = resources.permits(key, 5).permit(3)
    keys = [
        key, *commands.queue_keys(key), commands.shares_key(key), *commands.permit_keys(permit),
        commands.channels(key) + b"client", commands.MARKER + PLACEHOLDER,
        commands.DECLARED_SETS + resources.prefix,
    ]  # fmt: skip
    for each in keys:
        sent = each.replace(PLACEHOLDER, TAG)
        assert key_slot(sent) == tags.slot(TAG)
        assert tags.restored(sent, TAG) == each
    assert resources.name_of(key) == name
    # A scan names the permit: its semaphore is found.
    assert commands.semaphore_of(permit) == key
    # Names are UTF-8, and the placeholder is not.
    assert PLACEHOLDER not in (prefix + name).encode()
    assert tags.shown(key) == prefix + name


@pytest.mark.full
def test_it_is_no_text_and_no_pattern_and_new_in_each_process() -> None:
    with pytest.raises(UnicodeDecodeError):
        PLACEHOLDER.decode()
    assert min(PLACEHOLDER[1:-1]) >= 0x80
    code = "from redlock_aio._protocol.tags import PLACEHOLDER; print(PLACEHOLDER.hex())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert other.stdout.strip().decode() != PLACEHOLDER.hex()


def test_without_a_cluster_nothing_is_tagged() -> None:
    key = Resources("my:").key("r")
    assert key == b"my:r"
    assert commands.channels(key) == commands.CHANNEL


@pytest.mark.parametrize(
    ("push", "expected"),
    [
        ([b"invalidate", [TAG + b"r"]], [b"invalidate", [PLACEHOLDER + b"r"]]),
        ([b"invalidate", [b"x:" + TAG + TAG]], [b"invalidate", [b"x:" + PLACEHOLDER + TAG]]),
        ([b"invalidate", None], [b"invalidate", None]),
        ([b"message", b"c", b"a/1 p:" + TAG], [b"message", b"c", b"a/1 p:" + PLACEHOLDER]),
        ([b"message", b"c", b"a/1"], [b"message", b"c", b"a/1"]),
        ([b"subscribe", b"c" + TAG, 1], [b"subscribe", b"c" + TAG, 1]),
        (b"nonsense", b"nonsense"),
    ],
)
def test_a_push_names_keys_as_the_engine_knows_them(push: object, expected: object) -> None:
    assert replies.restored(push, TAG) == expected


def test_chosen_tags() -> None:
    assert tags.chosen_tags(["abcd", "0002", "Zz9Z"], 3) == (b"{abcd}", b"{0002}", b"{Zz9Z}")


@pytest.mark.parametrize(
    ("given_tags", "error", "text"),
    [
        ("0001", TypeError, "tags must be a list of str, not a str"),
        (7, TypeError, "tags must be a list of str, not an int"),
        ([1, 2, 3], TypeError, "tags must be a list of str, not with an int"),
        (["001", "0002", "0003"], ValueError, "tags must have 4 letters or digits each"),
        (["{0}1", "0002", "0003"], ValueError, "tags must have 4 letters or digits each"),
        (["0001", "0002"], ValueError, "tags must be one for each of the 3 masters, not 2"),
        (["0001", "0001", "0002"], ValueError, "tags must have different slots"),
    ],
)
def test_wrong_tags_are_refused(given_tags: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        tags.chosen_tags(given_tags, 3)
