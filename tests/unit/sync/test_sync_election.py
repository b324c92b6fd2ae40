"""Elections and watches of threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from redlock_aio import LockLostError, LockNotHeldError, LockState, RedlockError
from redlock_aio.sync import Election, Redlock


def lead(election: Election, turns: int, led: list[int]) -> None:
    for term in election:
        with term:
            led.append(term.number)
            assert election.leading
            time.sleep(0.02)
        assert not election.leading
        if (turns := turns - 1) == 0:
            return


def test_threads_lead_one_after_the_other(redlock: Redlock, pool: ThreadPoolExecutor) -> None:
    led: list[int] = []
    leads = [pool.submit(lead, redlock.election("r"), 3, led) for _ in range(3)]
    for each in leads:
        each.result(20)
    assert len(led) == 9
    assert led == sorted(set(led))


def test_a_loss_that_the_body_notices_ends_its_block(redlock: Redlock) -> None:
    election, turns = redlock.election("r"), 0
    assert repr(election) == "<Election 'r', does not lead>"
    for term in election:
        with term:
            if (turns := turns + 1) == 2:
                break
            redlock.force_release("r")
            term.lease.lost.wait(20)
            term.ensure_valid()
            pytest.fail("the body goes on")
        assert turns == 1
    assert turns == 2


def test_a_term_that_can_not_be_ended_goes_on(redlock: Redlock) -> None:
    """As in the listener, which is called in the thread of the event loop."""
    election = redlock.election("r")
    term = next(election)

    async def refused() -> None:
        for use in (lambda: term.__exit__(None, None, None), lambda: next(election)):
            with pytest.raises(RedlockError, match="its own event loop"):
                use()

    with term:
        redlock._opener.opened().call(refused)
        assert term.lease.valid


@pytest.mark.parametrize("raises", [False, True])
def test_a_loss_or_an_error_of_the_body(redlock: Redlock, raises: bool) -> None:
    turns = 0
    with pytest.raises(KeyError if raises else ZeroDivisionError):
        for term in redlock.election("r"):
            with term:
                if (turns := turns + 1) == 2:
                    raise ZeroDivisionError
                redlock.force_release("r")
                assert term.lease.lost.wait(20)
                if raises:
                    raise KeyError
    assert turns == (1 if raises else 2)


def test_a_term_is_entered_once(redlock: Redlock) -> None:
    """The end of an inner block would stand down, and the outer one go on without the lock."""
    term = next(redlock.election("leader"))
    with term:
        with pytest.raises(RuntimeError, match="can be entered only once"), term:
            pytest.fail("the block began")
        assert term.lease.valid
    assert not term.lease.valid


def test_a_term_that_is_over_begins_no_block(redlock: Redlock) -> None:
    """Its host does not lead, and nothing in the block would say so."""
    election = redlock.election("leader")
    before, term = next(election), next(election)
    with pytest.raises(LockNotHeldError, match="released"), before:
        pytest.fail("the block began")
    with term:
        assert term.lease.valid


def test_a_turn_without_its_block_stands_down(redlock: Redlock) -> None:
    election = redlock.election("r")
    first, second = next(election), next(election)
    assert second.number > first.number
    assert not first.lease.valid
    second.lease.release()


def test_a_thread_watches_a_lock(redlock: Redlock) -> None:
    seen: list[LockState] = []
    watches, changed = threading.Event(), threading.Event()

    def watch() -> None:
        try:
            for state in redlock.watch("r"):
                seen.append(state)
                watches.set()
                if state.locked:
                    changed.set()
        except RedlockError:
            return

    thread = threading.Thread(target=watch)
    thread.start()
    assert watches.wait(20)
    with redlock.lock("r") as lease:
        assert changed.wait(20)
        assert seen[-1].holder is not None
        assert seen[-1].holder.fingerprint == lease.fingerprint
    redlock.close()
    thread.join(20)
    assert not thread.is_alive()


def test_their_arguments_are_checked_when_they_are_made(redlock: Redlock) -> None:
    with pytest.raises(ValueError, match="ttl"):
        redlock.election("r", ttl=1)
    with pytest.raises(ValueError, match="resource"):
        redlock.watch("")
    assert repr(redlock.watch("r")) == "<LockWatch 'r'>"


def test_a_loss_that_comes_out_of_a_group_is_no_error_either(redlock: Redlock) -> None:
    """As of several threads of the leader, whose errors are raised together."""
    terms = []
    for term in redlock.election("r"):
        terms.append(term.number)
        with term:
            if len(terms) == 2:
                break
            assert redlock.force_release("r")
            assert term.lease.lost.wait(20)
            with pytest.raises(LockLostError) as caught:
                term.ensure_valid()
            raise ExceptionGroup("threads", [caught.value])
    assert len(terms) == 2
