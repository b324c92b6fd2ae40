"""
The lines that programs write about their masters, and the votes that this program loses by them.

    join ──► read ──► write ──► vote        a master that was just reached
    look ──────────► write                  periodically, while all masters may vote
    look ──► read (──► write)               about every second, while one may not

`membership` has the rules: whoever comes second on a common master restricts itself. Hence a
program reads what others have written before it writes anything, and a master votes only
after it has confirmed that; an error confirms nothing. A program that is refused writes
nothing, so it can't restrict anybody. Nor does one that has not been connected to a majority of
its masters yet: it can get no lock. Each reply is evaluated when it arrives, even if the task that
awaited it was cancelled.
"""

import asyncio
import contextlib
import functools
import math
from collections.abc import Callable, Collection, Sequence

from redlock_aio._log import log
from redlock_aio._protocol import commands, replies, tags
from redlock_aio._protocol.commands import SetLine
from redlock_aio._protocol.request import NoReply
from redlock_aio._rules import membership
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.membership import LIVES, Addresses, Known, Line, Place, Restriction
from redlock_aio._rules.quorum import majority
from redlock_aio._rules.standing import Bar
from redlock_aio._transport.connection import Connection, MasterError, Question

DUE = 1 / 8
"""The share of the longest quarantine after which `look` writes again."""

SELDOM = 3 / 8
"""The share after which it has done so: `DUE` (1/8) and one look (1/4, `quarantine.LOOKS`)."""

PATIENCE = 0.5
"""
Seconds for which a new master waits until a majority is connected for the first time, and then once
more until the others have confirmed its server.
"""

TRIES = 3
"""The number of requests in a row to a master that lacks the scripts."""

UNDECLARED = "this program's set of masters is not declared there yet"
NO_MAJORITY = "it has no vote before a majority of the masters is connected"


class EvaluatedQuestion(Question):
    """A question whose reply is evaluated when it arrives, even if no task waits for it."""

    __slots__ = ("_on_reply",)

    def __init__(
        self,
        payload: bytes,
        loop: asyncio.AbstractEventLoop,
        on_reply: Callable[[int, object], None],
    ) -> None:
        super().__init__(payload, loop)
        self._on_reply = on_reply

    def on_reply(self, master: int, reply: object, /) -> None:
        self._on_reply(master, reply)
        super().on_reply(master, reply)


class DeclaredSets:
    """
    The lines on the masters of one manager, and the votes that it loses by those of others.

    Args:
        addresses: The names of the masters, without credentials.

        key: The key of the lines.

        quarantine: Returns the longest quarantine, in seconds.

        confirmed: Returns whether the server at which the master with this number is connected
            may get commands of locks, see `Route.is_confirmed`.

        reexamine: Called with the numbers of the masters that lose their votes, and of those on
            which `look` may write now.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        key: bytes,
        *,
        clock: Callable[[], float],
        quarantine: Callable[[], float],
        confirmed: Callable[[int], bool],
        reexamine: Callable[[Collection[int]], None],
    ) -> None:
        self.reading = commands.declare(key)
        self._key = key
        self._clock = clock
        self._quarantine = quarantine
        self._confirmed = confirmed
        self._reexamine = reexamine
        self._places = [Place(address) for address in addresses]
        self._names = membership.names_of(self._places)
        self._known = Known()
        self._restriction = Restriction()
        # By the number of a master: all lines in its last reply; this program's lines in the reply
        # to the last write; the run_id of its last server, also while it is away.
        self._shown: dict[int, list[Line]] = {}
        self._own: dict[int, list[Line]] = {}
        self._last: dict[int, str] = {}
        # The servers that have gone, with the instant of that. They are written for one more
        # quarantine, with their age, because leases that they granted may be valid.
        self._left: dict[Place, float] = {}
        # The same for servers that are connected, but not confirmed any more. One that was replaced
        # may answer this program for ever; otherwise its line would keep the vote from the new one
        # in all programs, because of this one, which can't get a lock itself.
        self._lapsed: dict[Place, float] = {}
        # The connections on which this program has sent its lines, with the instant of the last
        # time: the masters that may vote, as far as the sets are concerned.
        self._links: dict[int, tuple[Connection, float]] = {}
        # What the servers have said that could not save the lines.
        self._unsaved: dict[int, str] = {}
        self._told: set[Addresses] = set()
        # The connections to masters that were reached; and whether a majority was connected at one
        # time. From then on this program writes on each master, even if only one is left: while
        # the others are cut off, its leases may be valid.
        self._joined: dict[int, Connection] = {}
        self._begun = asyncio.Event()
        # The masters that have waited for a majority in vain.
        self._early: set[int] = set()

    def __repr__(self) -> str:
        refused = self._restriction.refused_by
        return f"<DeclaredSets, {'refused' if refused else self._restriction}>"

    @property
    def _is_restricted(self) -> bool:
        return self._restriction != Restriction()

    def bar(self, number: int) -> Bar | None:
        """Return why this master may not vote; ``None`` if it may."""
        restriction, ours, cause = self._restriction, self._names, NoVoteCause.SET_CONFLICT
        if restriction.refused_by is not None:
            # It is the same for all masters, and `_judge` has logged it once.
            text = membership.describe_refusal(ours, restriction, lives=self._quarantine() * LIVES)
            return Bar(cause, text, quiet=True)
        if number in restriction.moved:
            return Bar(cause, membership.describe_moved(lives=self._quarantine()))
        if number in restriction.strangers:
            return Bar(cause, membership.describe_stranger(ours, restriction.strangers[number]))
        if number in self._links:
            return None
        cause = cause if self._is_restricted else NoVoteCause.SET_UNDECLARED
        if number in self._unsaved:
            return Bar(cause, f"{UNDECLARED}: {self._unsaved[number]}")
        begun = self._begun.is_set()
        # Not known yet before that: it depends on the other masters, for which a program that has
        # just started waits anyway.
        return Bar(cause, UNDECLARED if begun else NO_MAJORITY, quiet=True, provisional=not begun)

    async def join(
        self, number: int, server: str, connection: Connection, reply: object
    ) -> list[asyncio.Future[object]]:
        """
        Write this program's lines on a master that was just reached.

        A server that was not known before is written on the other masters at once. Before a
        majority was connected for the first time this waits for it, for 0.5 s at most, and then
        writes nothing; `look` does it later.

        Args:
            server: Its run_id. In a Cluster a tag follows: two tags on one server are different
                masters, because a lock has a key under each.

            reply: The server's reply to the command `reading`.

        Returns:
            The replies to wait for, see `joined`.
        """
        self._check(reply)
        is_new = self._last.get(number) != server
        if is_new:
            self._own.pop(number, None)  # they were on another server
        self._places[number] = Place(self._places[number].address, server)
        self._shown.pop(number, None)
        # Read before the first write: what others wrote may refuse this program, and then `_write`
        # below only reads. If it wrote first, the lines of a refused program would restrict those
        # that come later.
        self._take(number, reply)
        if replies.has_no_script(reply):  # nothing was read: the scripts are being loaded
            await self._answered(self._read, number, connection)
        await self._begin(number, connection)
        if not self._begun.is_set() or self._waits(number, quarantined=True):
            return []
        # Here, after the wait: `_last` outlives the connection, and the same server is not written
        # on the others again.
        self._last[number] = server
        others = self._tell_others() if is_new and self._restriction.refused_by is None else []
        # All requests have left by now, before any reply is awaited: a master that hangs delays
        # the evaluation of no other reply. `joined` waits.
        return [self._write(number, connection, joins=True).reply, *others]

    async def _begin(self, number: int, connection: Connection) -> None:
        """Count a master that was reached, and wait for a majority, for 0.5 s at most."""
        # Its masters may be misspelt, or lead to one server, which counts once. This program gets
        # no lock then, and its lines would take the votes of all programs with the right masters.
        self._joined[number] = connection
        if self._begun.is_set():
            return
        connected = sum(not joined.reason for joined in self._joined.values())
        if connected >= majority(len(self._places)):
            self._begun.set()
            self._reexamine(self._early)
            return
        # When a program starts, its masters are reached within milliseconds of each other. Without
        # this wait the first ones would have to be examined once more.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._begun.wait()
        if connection.reason:  # it has ended
            raise ConnectionError(connection.reason)
        if not self._begun.is_set():
            self._early.add(number)

    async def joined(
        self, number: int, connection: Connection, answers: Sequence[asyncio.Future[object]]
    ) -> None:
        """
        Wait until this master, and for 0.5 s the others, have confirmed the new set.

        Afterwards `bar` has the result. Replies that arrive later are still evaluated.
        """
        if not answers:
            return
        own, *others = answers
        # The own reply first: it proves that this program's line is there before the vote counts,
        # so that the program that comes second is the one that restricts itself.
        reply = await own
        self._check(reply)
        if replies.has_no_script(reply):
            reply = await self._answered(self._write, number, connection)
        # A server without memory, or one that can't save, has written nothing. Without this
        # program's line, one that comes later would not learn of it. `look` tries again.
        if isinstance(reply, Exception) and not self._stands(number):
            self._links.pop(number, None)
            self._unsaved[number] = replies.harmless(str(reply))
        if others:
            await asyncio.wait(others, timeout=PATIENCE)

    async def look(self, number: int, connection: Connection, *, quarantined: bool) -> None:
        """Write the lines again if that is due; read them first while a master may not vote."""
        if self._is_restricted or number not in self._links:
            reply = await self._answered(self._read, number, connection)
            if isinstance(reply, Exception):
                return  # who has not read what others wrote must not write
            # The reply has been evaluated, maybe by a reply to another master's question, too.
            if self._restriction.refused_by is not None or not self._begun.is_set():
                return
            if self._waits(number, quarantined=quarantined):
                return
        if (
            number in self._links
            and self._clock() < self._links[number][1] + self._quarantine() * DUE
        ):
            return
        voted = number in self._links
        reply = await self._answered(self._write, number, connection)
        if not isinstance(reply, Exception):
            self._unsaved.pop(number, None)
        elif not voted and number in self._links:
            del self._links[number]
            self._unsaved[number] = replies.harmless(str(reply))

    def gone(self, number: int, *, closing: bool) -> None:
        """Called when the connection to a master has ended; *closing* if this manager ends."""
        # First: `_tell_others` writes on all `_links`, and this one has ended.
        self._links.pop(number, None)
        self._joined.pop(number, None)
        self._early.discard(number)
        self._unsaved.pop(number, None)
        if self._places[number].run_id:
            # Leases that this server has granted may be valid for a while. So its line counts
            # from now on, and not from when it was written last. If no other master is connected
            # now, the line is written there with the others as soon as one is.
            self._left[self._places[number]] = self._clock()
            if not closing and self._restriction.refused_by is None:
                self._tell_others()
            self._places[number] = Place(self._places[number].address)

    def _waits(self, number: int, *, quarantined: bool) -> bool:
        """
        Return whether not to write on this master before the programs with an older set.

        It has just come back empty. If this program came first there, programs with the older
        set, which have not reconnected yet, would be restricted by it.
        """
        restriction = self._restriction
        if restriction.refused_by is not None:
            return False  # nothing is written anyway
        older = set(restriction.strangers.values())
        if not older or not quarantined:
            return False
        there = {line.names for line in self._shown.get(number, []) if not line.run_id}
        place, until = self._places[number], self._until
        return self._names not in there and any(
            theirs not in there and membership.is_surely_in(place, theirs, self._known, until=until)
            for theirs in older
        )

    def _tell_others(self) -> list[asyncio.Future[object]]:
        """Write the lines on all masters that have them, because a server has come or gone."""
        # Over a copy: a connection that has ended answers at once, and `_judge` may clear `_links`.
        return [self._write(other, link).reply for other, (link, _) in [*self._links.items()]]

    def _stands(self, number: int) -> bool:
        """Return whether this program's set stands on a master for one more quarantine."""
        until = self._clock() + self._quarantine()
        return any(
            line.names == self._names and not line.run_id and line.until > until
            for line in self._shown.get(number, [])
        )

    async def _answered(
        self, ask: Callable[[int, Connection], Question], number: int, connection: Connection
    ) -> object:
        # A server without the scripts has got them by the time of the second request: the
        # connection loads them at the first NOSCRIPT, and commands are executed in order.
        reply: object = None
        for _ in range(TRIES):
            reply = await ask(number, connection).reply
            self._check(reply)
            if not replies.has_no_script(reply):
                break
        return reply

    def _read(self, number: int, connection: Connection) -> Question:
        return self._ask(number, connection, self.reading, self._take)

    def _write(self, number: int, connection: Connection, *, joins: bool = False) -> Question:
        """Write the lines on a master, or only read them if this program is refused."""
        if self._restriction.refused_by is not None:
            return self._read(number, connection)
        texts = self._texts(number)
        # After a flush, the restart guard says what has happened.
        expected = 0 if joins else sum(text.since > 0 for text in texts)
        # When it is sent, not when it is answered: `bar` has no objection then, but the
        # master votes only after `joined` has seen the reply, and a restriction in that
        # reply ends the vote by `_judge`.
        self._links[number] = connection, self._clock()
        on_reply = functools.partial(self._take, expected=expected)
        return self._ask(number, connection, commands.declare(self._key, texts), on_reply)

    def _ask(
        self,
        number: int,
        connection: Connection,
        command: bytes,
        on_reply: Callable[[int, object], None],
    ) -> Question:
        question = EvaluatedQuestion(command, asyncio.get_running_loop(), on_reply)
        refused = connection.send(command, [question])
        # Without this answer the task that awaits the reply would wait for ever.
        if refused is not None:
            question.on_reply(number, refused)
        # This request is in no round, so nothing times it out: from here on the connection ends if
        # no data comes. Without that a master that hangs could keep the task that awaits the reply
        # for ever.
        connection.overdue()
        return question

    def _deleted(self, number: int, shown: Sequence[Line], now: float) -> list[Line]:
        """Return this program's lines on a master that are missing though they count there."""
        there = {(line.names, line.run_id) for line in shown}
        return [
            line
            for line in self._own.get(number, [])
            if line.until > now and (line.names, line.run_id) not in there
        ]

    def _texts(self, number: int) -> list[SetLine]:
        now = self._clock()
        since = {(line.names, line.run_id): line.since for line in self._deleted(number, [], now)}
        length = math.ceil(self._quarantine() * LIVES * 1000)
        names = membership.write_set(self._names)
        texts = [SetLine(names, length, since=since.get((self._names, ""), 0))]
        shown = self._shown.get(number, [])
        self._left = {
            place: at for place, at in self._left.items() if now < at + self._quarantine()
        }
        used = [
            place if self._confirmed(other) else Place(place.address)
            for other, place in enumerate(self._places)
        ]
        self._lapsed = {
            place: self._lapsed.get(place, now)
            for place in self._places
            if place.run_id and place not in used
        }
        ago = {place: int((now - at) * 1000) for place, at in self._left.items()}
        ago |= {
            place: int((now - at) * 1000)
            for place, at in self._lapsed.items()
            if now < at + self._quarantine()
        }
        ago |= dict.fromkeys(membership.other_names(used, self._known), 0)
        ago |= {place: 0 for place in used if place.run_id}
        for place, ms in ago.items():
            # Behind the server that stood first at the address, or not at all: on a master
            # that has forgotten that one, this one would come first.
            if membership.has_moved(place, self._known) and not any(
                line.run_id and line.names == (place.address,) for line in shown
            ):
                continue
            begun = since.get(((place.address,), place.run_id), 0)
            texts.append(SetLine(membership.write(place), length, ms, begun))
        return texts

    def _check(self, reply: object) -> None:
        if isinstance(reply, NoReply):
            raise ConnectionError(reply.detail)
        if replies.is_forbidden(reply):
            raise MasterError(
                NoVoteCause.FORBIDDEN,
                f"the restart guard must run scripts on the key {tags.shown(self._key)!r}, with"
                f' GET, SET and TIME, or be off (restart_guard="off"):'
                f" NOPERM {str(reply).removeprefix('NOPERM ')}",
            )

    @property
    def _until(self) -> float:
        """The instant until which a fact must count for which `look` asks `SELDOM`."""
        return self._clock() + self._quarantine() * SELDOM

    def _take(self, number: int, reply: object, expected: int | None = None) -> None:
        """
        Judge the masters by the lines in *reply*; a malformed reply has none.

        Args:
            expected: How many of this program's lines must have been there when they were
                written; ``None`` if they were not written.
        """
        now = self._clock()
        answer = replies.declared(reply, now)
        if answer is None:
            if expected is not None and number in self._links:
                # The lines were not written. If the master votes already, it keeps its vote, and
                # the next `look` writes them.
                self._links[number] = self._links[number][0], -math.inf
            return
        lines = answer.lines
        # Before `_own` is replaced: what was deleted is known from what was there after the last
        # write.
        deleted = self._deleted(number, lines, now)
        if expected is not None:
            ours = {
                (self._names, ""),
                *(((place.address,), place.run_id) for place in self._places),
            }
            self._own[number] = [line for line in lines if (line.names, line.run_id) in ours]
            if answer.found < expected:
                log.warning("%s", membership.describe_deleted(self._places[number].address))
        self._shown[number] = lines
        self._known = membership.learn(self._known, self._names, [*lines, *deleted], now)
        # Here, and not in a task: the votes end in the same step in which the reply came, before
        # any reply behind it counts.
        self._judge(lines)

    def _judge(self, lines: Sequence[Line]) -> None:
        """Take the votes of the masters that may not vote any more, and report what is new."""
        before = self._restriction
        after = membership.restriction(self._places, self._known, until=self._until)
        # Before `_reexamine`, by which the sentries end connections and read `bar` for the
        # reason. Only votes that end are reported there. One that comes back is found by the next
        # `look`.
        self._restriction = after
        lost = self._barred(after) - self._barred(before)
        texts: dict[Addresses, str] = {}
        if after.refused_by is not None:
            text = membership.describe_refusal(self._names, after, lives=self._quarantine() * LIVES)
            texts[after.refused_by] = f"{text}; {membership.ADVICE}"
            # Nothing is written any more: who is refused must not restrict anybody.
            self._links.clear()
        for line in lines:
            if line.run_id or line.names == self._names or line.names in self._known.older:
                continue
            if strangers := membership.strangers_of(line.names, self._places, self._known):
                texts[line.names] = membership.describe_later(line.names, strangers)
        for names in texts.keys() - self._told:
            log.warning("%s", texts[names])
        self._told |= texts.keys()
        if lost:
            self._reexamine(lost)

    def _barred(self, restriction: Restriction) -> set[int]:
        if restriction.refused_by is not None:
            return set(range(len(self._places)))
        return {*restriction.moved, *restriction.strangers}
