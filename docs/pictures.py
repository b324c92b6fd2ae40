"""
Draws the pictures of docs/pictures/: `python docs/pictures.py` writes them.

Each picture is drawn twice by one function, in the wide and in the narrow layout of drawing.py. A
test compares the files with what this script draws.
"""

from pathlib import Path

from drawing import HALF, LEFT, RIGHT, Narrow, Picture, Text

FOLDER = Path(__file__).parent / "pictures"


def acquisition(layout: type[Picture]) -> Picture:
    """Draw one acquisition on five masters, one of which hangs and one of which is slow."""
    picture = layout(
        "acquisition",
        "One acquisition on five masters",
        "A program sends the same SET command to five masters at once. Three grant it, which is"
        " a majority: the lease begins. One master hangs and one answers late; nobody waits for"
        " them. The lease ends before the key expires on any master.",
        420,
    )
    client, sent, won, ttl = 88, 190, 392, 560
    masters = {"A": (170, 232, 300), "B": (215, 240, 338), "C": (260, 248, won)}
    masters |= {"D": (305, 256, 0), "E": (350, 264, 610)}
    end = sent + ttl - 28
    picture.lane(client, "your program")
    picture.bar(client, won, end, "the lease is valid: your code runs", ink="other")
    for name, (y, arrives, _) in masters.items():
        picture.lane(y, f"master {name}")
        picture.arrow(sent, client, (arrives, y - (0 if name == "D" else HALF)), ink="line")
    for name, (y, arrives, _) in masters.items():
        if name == "D":
            picture.bar(y, arrives, RIGHT, "hangs: no vote, and nobody waits", ink="bad")
            continue
        late = name == "E"
        text = "granted late: released with the others" if late else "lock:invoice:42 = token"
        picture.bar(y, arrives, arrives + ttl, ink="good")
        picture.label(500 if late else 624, y, text, "small" if late else "code", "good")
    for name, (y, arrives, replied) in masters.items():
        if replied:
            top, ink = (client + HALF, "wait") if name == "E" else (client + 2, "good")
            picture.arrow(arrives + 14, y - HALF, (replied, top), ink=ink)
    picture.text((sent + 6, client - 10), "SET … NX PX 10000", kind="code", ink="soft",
                 about=(sent, client))  # fmt: skip
    picture.mark(won, client, good=True)
    picture.text((won - 10, client - 22), "3 of 5 have granted it",
                 about=(won - 34, client))  # fmt: skip
    picture.line(end, client + HALF, (end, 372), ink="other", dashed=True)
    picture.text((end + 8, client - 1), "ends before any\nmaster's key does",
                 ink="other", about=(end, client + 42))  # fmt: skip
    picture.time()
    return picture


def lost(layout: type[Picture]) -> Picture:
    """Draw a lease that can't be extended any more."""
    picture = layout(
        "lost-lease",
        "A lease that is lost",
        "A lease is extended every third of its ttl. When a majority of the masters can't be"
        " reached, extensions fail. At the deadline your code is cancelled and LockLostError is"
        " raised. The key expires on the masters after that, and only then another holder gets"
        " the lock.",
        400,
    )
    begin, third, cut, deadline, expires = 175, 90, 400, 625, 665
    code, validity, key, other = 88, 205, 265, 320
    picture.lane(code, "your code")
    picture.bar(code, begin, deadline, "async with redlock.lock(…): it runs", ink="good")
    picture.mark(deadline, code, good=False)
    picture.text((deadline + 16, code + 5), "cancelled, LockLostError", ink="bad",
                 kind="name small", about=(deadline + 34, code))  # fmt: skip
    full = 75.0
    picture.lane(validity, "validity", "of the lease")
    points: list[tuple[float, float]] = [(begin, validity), (begin, validity - full)]
    for number in (1, 2):
        x = begin + number * third
        points += [(x, validity - full * 0.66), (x, validity - full)]
    points.append((deadline, validity))
    picture.area(points, "good")
    for number in (1, 2):
        picture.mark(begin + number * third, validity - full - 2, good=True)
    for x in (begin + 3 * third, begin + 3 * third + 55, begin + 3 * third + 110):
        fallen = (x - begin - 2 * third) / (deadline - begin - 2 * third)
        picture.mark(x, validity - full * (1 - fallen), good=False)
    picture.line(LEFT, validity, (RIGHT, validity))
    picture.text((begin + 3 * third + 22, validity - 58), "extensions fail",
                 ink="bad", about=(begin + 3 * third + 28, validity + 24))  # fmt: skip
    picture.text((begin + 12, validity - 8), "extended every third of its ttl", kind="small plain",
                 ink="good", about=(begin + 45, validity - 30))  # fmt: skip
    picture.lane(key, "the key", "on a majority")
    picture.bar(key, begin, expires, ink="good")
    picture.label(288, key, "token", "code", "good")
    picture.bar(key, cut, expires, ink="bad", dashed=True)
    picture.label(514, key, "the masters can't be reached", ink="bad")
    picture.lane(other, "another holder")
    picture.bar(other, 470, expires, "waits", ink="wait")
    picture.bar(other, expires, RIGHT, "has the lock", ink="other")
    picture.line(deadline, code + HALF, (deadline, 350), ink="bad", dashed=True)
    picture.line(expires, key + HALF, (expires, other - HALF), ink="soft", dashed=True)
    picture.text((deadline - 6, 355), "deadline", ink="bad", at="end",
                 about=(deadline, 284))  # fmt: skip
    picture.text((expires + 4, 355), "the key expires", ink="soft",
                 about=(expires, 284))  # fmt: skip
    picture.time()
    return picture


def quarantine(layout: type[Picture]) -> Picture:
    """Draw a master that restarts without memory."""
    picture = layout(
        "quarantine",
        "A master that restarts empty",
        "A lock is held on masters B and C. Master C restarts and has forgotten it. Without a"
        " quarantine a second program would get a majority of A and C. In quarantine, C has no"
        " vote until every lease that it may have forgotten is over, so the second program is"
        " refused.",
        440,
    )
    rows = {"A": 150, "B": 200, "C": 250}
    begin, killed, back, over, votes = 170, 330, 365, 560, 690
    picture.lane(88, "program 1")
    picture.bar(88, begin + 12, over - 16, "its lease is valid: granted by B and C", ink="other")
    for name, y in rows.items():
        picture.lane(y, f"master {name}")
    program = 345
    picture.lane(program, "program 2")
    for x in (455, 740):  # behind the bars of the masters
        picture.arrow(x, program, (x, rows["A"] + HALF), ink="soft")
    picture.bar(rows["B"], begin, over, "key of program 1", ink="other")
    picture.bar(rows["C"], begin, killed, "key of program 1", ink="other")
    picture.mark(killed, rows["C"], good=False)
    picture.text(((killed + back) / 2, rows["C"] - 22), "restarts, empty", ink="bad",
                 at="middle", about=(killed, 292))  # fmt: skip
    picture.bar(rows["C"], back, votes, "quarantine: its vote does not count", ink="wait")
    picture.text((467, rows["C"] + 31), "max_ttl and a little more: 62 s by default",
                 ink="wait", about=(560, 292))  # fmt: skip
    picture.mark(455, program, good=False)
    picture.mark(740, program, good=True)
    picture.text((455, program + 28), "A grants, B refuses, C has no vote:\n1 of 3, no lock",
                 ink="bad", at="middle", about=(492, program))  # fmt: skip
    picture.text((740, program + 28), "all three grant:\nit has the lock", ink="good",
                 at="middle", about=(777, program))  # fmt: skip
    for y in rows.values():
        picture.bar(y, 740, RIGHT, "key of program 2", ink="good")
    picture.bar(rows["A"], 455, 481, "", ink="wait")
    picture.text((490, rows["A"] - 5), "taken back at once", ink="soft",
                 about=(500, rows["A"]))  # fmt: skip
    picture.time()
    return picture


def fenced(layout: type[Picture]) -> Picture:
    """Draw a write that comes too late, and is refused by its token."""
    picture = layout(
        "fenced-write",
        "A late write is refused",
        "Holder 1 gets the lock with token 33 and is stopped before it writes. Its lease ends,"
        " holder 2 gets the lock with token 34 and writes. Holder 1 wakes up and writes with"
        " token 33. The storage has seen 34 and refuses the write.",
        400,
    )
    one, two, store = 105, 195, 300
    stopped, wakes, ends, wrote, late = 300, 690, 440, 560, 730
    picture.lane(one, "holder 1", "token 33")
    picture.lane(two, "holder 2", "token 34")
    picture.lane(store, "the storage", "keeps the highest")
    picture.bar(one, 170, stopped, "works", ink="other")
    picture.bar(one, stopped, wakes, "its process is stopped", ink="wait", dashed=True)
    picture.bar(one, wakes, late + 30, "works on", ink="other")
    picture.line(ends, one + HALF, (ends, two - HALF), ink="soft", dashed=True)
    picture.text((ends + 8, one + 45), "the lease of holder 1 ends on the masters",
                 ink="soft", about=(ends, 150))  # fmt: skip
    picture.bar(two, 215, ends, "waits", ink="wait")
    picture.bar(two, ends, 650, "has the lock", ink="good")
    picture.arrow(wrote, two + HALF, (wrote, store - HALF - 1), ink="good")
    picture.text((wrote - 8, 252), "write, token 34", at="end", ink="good",
                 about=(wrote, 246))  # fmt: skip
    picture.bar(store, 170, wrote, "highest token: 32", ink="other")
    picture.bar(store, wrote, RIGHT, "highest token: 34", ink="good")
    picture.arrow(late, one + HALF, (late, store - HALF - 17), ink="bad")
    picture.mark(late, store - HALF - 9, good=False)
    picture.text((late + 10, 240), "write, token 33", ink="bad", about=(late, 150))
    picture.text((late + 16, store - HALF - 9), "refused: 33 < 34", kind="name small", ink="bad",
                 about=(late + 34, store - HALF - 9))  # fmt: skip
    picture.caption(LEFT, "The comparison and the write are one step in the storage.")
    picture.time()
    return picture


def fair(layout: type[Picture]) -> Picture:
    """Draw the fair queue, with a waiter that dies."""
    picture = layout(
        "fair-queue",
        "The fair queue",
        "Five tasks of different programs ask for a lock one after the other. Each release wakes"
        " the next in the order of arrival. One waiter dies; the queue passes over it after four"
        " seconds at most.",
        400,
    )
    lanes = [90, 145, 200, 255, 310]
    asked = [170, 190, 215, 240, 265]
    turns = [(170, 330), (330, 470), (0, 0), (610, 740), (740, RIGHT)]
    for number, (y, came) in enumerate(zip(lanes, asked, strict=True), 1):
        picture.lane(y, f"task {number}", f"host {'abacb'[number - 1]}")
        begin, end = turns[number - 1]
        if number == 3:
            picture.bar(y, came, 400, "waits", ink="wait")
            picture.mark(400, y, good=False)
            picture.text((400, y + 28), "its process dies", ink="bad", at="middle",
                         about=(433, y))  # fmt: skip
            continue
        if begin > came:
            picture.bar(y, came, begin, "waits", ink="wait")
        picture.bar(y, begin, end, "has the lock", ink="good")
    picture.arrow(330, lanes[0] + HALF, (330, lanes[1] - HALF), ink="good")
    picture.arrow(470, lanes[1] + HALF, (470, lanes[2] - 1), ink="good", dashed=True)
    picture.text((480, lanes[1] + 32), "next in the queue: no answer", ink="soft",
                 about=(500, lanes[2]))  # fmt: skip
    picture.line(470, lanes[2], (610, lanes[2]), ink="bad", dashed=True)
    picture.text((540, lanes[2] + 20), "4 s at most", ink="bad", at="middle",
                 about=(560, lanes[2]))  # fmt: skip
    picture.arrow(610, lanes[2], (610, lanes[3] - HALF), ink="good", dashed=True)
    picture.arrow(740, lanes[3] + HALF, (740, lanes[4] - HALF), ink="good")
    picture.text((338, lanes[0] + 32), "a release wakes the next", ink="good",
                 about=(330, 46))  # fmt: skip
    picture.caption(asked[0] - 15, "served in the order in which they came, on whatever host")
    picture.time()
    return picture


def readers(layout: type[Picture]) -> Picture:
    """Draw readers that share a lock, and a writer between them."""
    picture = layout(
        "readers",
        "Readers and a writer",
        "Two readers hold a lock together. A writer asks for it and waits until both have left."
        " Readers that come later wait behind the writer, though others still read. When the"
        " writer has released the lock, all readers that wait get in together. On each master"
        " the key says that it is shared, or has the token of the writer.",
        430,
    )
    lanes, key = (90, 140, 190, 240, 290), 350
    names = ("reader 1", "reader 2", "the writer", "reader 3", "reader 4")
    for y, name in zip(lanes, names, strict=True):
        picture.lane(y, name)
    picture.lane(key, "the key", "on a majority")
    begin, empty, free = 172, 450, 620
    picture.bar(lanes[0], begin, 385, "reads", ink="good")
    picture.bar(lanes[1], 200, empty, "reads", ink="good")
    picture.bar(lanes[2], 260, empty, "waits for both", ink="wait")
    picture.bar(lanes[2], empty, free, "writes, alone", ink="other")
    picture.bar(lanes[3], 300, free, "waits behind the writer", ink="wait")
    picture.bar(lanes[3], free, 800, "reads", ink="good")
    picture.bar(lanes[4], 490, free, "waits", ink="wait")
    picture.bar(lanes[4], free, RIGHT, "reads", ink="good")
    picture.arrow(empty, lanes[1] + HALF, (empty, lanes[2] - HALF), ink="good")
    picture.text((empty + 8, lanes[1] + 5), "the last reader leaves", ink="good",
                 about=(empty + 28, lanes[1]))  # fmt: skip
    picture.arrow(free, lanes[2] + HALF, (free, lanes[3] - HALF), ink="good")
    picture.arrow(free, lanes[3] + HALF, (free, lanes[4] - HALF), ink="good")
    picture.text((free + 8, lanes[2] + 5), "wakes all readers that wait", ink="good",
                 about=(free + 28, lanes[2]))  # fmt: skip
    picture.bar(key, begin, empty, ink="good")
    picture.bar(key, empty, free, ink="other")
    picture.bar(key, free, RIGHT, ink="good")
    for x in ((begin + empty) / 2, (free + RIGHT) / 2):
        picture.label(x, key, "redlock_aio:shared", "code", "good")
    picture.label((empty + free) / 2, key, "token", "code", "other")
    picture.time()
    return picture


def step(x: float, y: float, number: int, about: tuple[float, float]) -> Text:
    """Return the *number* of a step at a place of the picture."""
    return Text((x, y), str(number), "name small", "start", "good", about, "good")


def permits(layout: type[Picture]) -> Picture:
    """Draw a semaphore with two permits, and the three ways in which a permit is handed over."""
    picture = layout(
        "permits",
        "Two permits, and who gets them",
        "A and B hold the two permits of a semaphore. C waits for permit 0, D for permit 1, and"
        " then E for permit 0. When A releases permit 0, C gets it, the first that waits for it."
        " When C releases it, E is the first that waits for it, but D has waited more than twice"
        " as long for permit 1, so D is moved to permit 0 and gets it. When B releases permit 1,"
        " nobody waits for it, so E is moved there and gets it.",
        420,
    )
    lanes, begin, first, second, third = (90, 140, 205, 265, 325), 165, 340, 530, 650
    tops = ("permit 0", "permit 1", "task C", "task D", "task E")
    below = ("on a majority", "on a majority", "waits for 0", "waits for 1", "waits for 0")
    for y, name, more in zip(lanes, tops, below, strict=True):
        picture.lane(y, name, more)
    zero, one, c, d, e = lanes
    picture.arrow(third, one + HALF, (third, e - HALF), ink="good")  # behind the bar of D
    picture.bar(zero, begin, first, "A has it", ink="other")
    picture.bar(zero, first, second, "C has it", ink="good")
    picture.bar(zero, second, RIGHT, "D has it", ink="good")
    picture.bar(one, begin + 15, third, "B has it", ink="other")
    picture.bar(one, third, RIGHT, "E has it", ink="good")
    picture.bar(c, 205, first, "waits", ink="wait")
    picture.bar(c, first, second, "has permit 0", ink="good")
    picture.bar(d, 240, second, "waits, the longest of all at last", ink="wait")
    picture.bar(d, second, RIGHT, "has permit 0", ink="good")
    picture.bar(e, 435, third, "waits", ink="wait")
    picture.bar(e, third, RIGHT, "has permit 1", ink="good")
    picture.arrow(first, zero + HALF, (first, c - HALF), ink="good")
    picture.arrow(second, c + HALF, (second, d - HALF), ink="good")
    picture.remark(
        step(first + 8, c - 24, 1, (first, 50)), "C is the first that waits for permit 0", LEFT
    )
    picture.remark(
        step(second + 8, c + 5, 2, (second + 28, c)),
        "D has waited more than twice as long as E",
        430,
    )
    picture.remark(step(third + 8, d + 34, 3, (third + 28, c)), "nobody waits for it", 730)
    picture.time()
    return picture


BEGIN, FAILED, DEADLINE, EXPIRES, BACK = 165, 400, 575, 600, 720
"""When it begins, the leader fails, its lease is over, its key expires, and the failure is over."""


def case(picture: Picture, number: int, what: str) -> tuple[int, int]:
    """Begin the part about a failure, and return its lanes: of the leader and of the other."""
    top = 72 + 100 * number
    picture.panel(top, what, {"A": top + 28, "B": top + 62})
    return top + 28, top + 62


def leads(
    picture: Picture, y: int, begin: int, end: int, term: int, *, ends_badly: bool = False
) -> None:
    """Draw the time in which a host leads."""
    picture.bar(y, begin, end, f"leads, term {term}", ink="good")
    if ends_badly:
        picture.mark(end, y, good=False)


def candidate(picture: Picture, y: int, until: int, term: int) -> None:
    """Draw a host that waits, and leads from then on."""
    picture.bar(y, BEGIN, until, "waits", ink="wait")
    leads(picture, y, until, RIGHT, term)


def in_vain(picture: Picture, y: int) -> None:
    """Draw a leader that is not extended until it is cancelled."""
    picture.bar(y, FAILED, DEADLINE, "leads, extends in vain", ink="bad", dashed=True)
    picture.mark(DEADLINE, y, good=False)


def leader(layout: type[Picture]) -> Picture:
    """Draw who leads at each failure of a leader or of the masters."""
    picture = layout(
        "leader",
        "Who leads when something fails",
        "Host A leads and host B waits. If A is stopped by SIGTERM, it releases the lock and B"
        " leads at once. If A dies, B leads when the key of A has expired. If A is cut off from a"
        " majority of the masters, it stops to lead before the key expires, and then B leads. If A"
        " freezes, B leads when the key has expired; A is cancelled when it wakes, and the storage"
        " refuses what it writes with its old term. If a minority of the masters fails, A goes on."
        " If a majority fails, nobody leads until they are back.",
        700,
    )
    a, b = case(picture, 0, "A is stopped by SIGTERM, or its work fails")
    leads(picture, a, BEGIN, FAILED, 7)
    picture.text((FAILED + 16, a + 5), "releases the lock", ink="soft",
                 about=(FAILED + 60, a))  # fmt: skip
    candidate(picture, b, FAILED + 10, 8)
    leader_fails(picture)
    masters_fail(picture)
    picture.time()
    return picture


def leader_fails(picture: Picture) -> None:
    """Draw a leader that dies, one that is cut off, and one that stands still."""
    a, b = case(picture, 1, "A dies")
    leads(picture, a, BEGIN, FAILED, 7, ends_badly=True)
    picture.text((FAILED + 20, a + 5), "its key expires: ttl", ink="soft",
                 about=(FAILED + 95, a))  # fmt: skip
    candidate(picture, b, EXPIRES, 8)
    a, b = case(picture, 2, "A is cut off from a majority of the masters")
    leads(picture, a, BEGIN, FAILED, 7)
    in_vain(picture, a)
    picture.text((DEADLINE + 34, a + 5), "cancelled before its key expires", ink="bad",
                 about=(DEADLINE + 95, a))  # fmt: skip
    candidate(picture, b, EXPIRES, 8)
    a, b = case(picture, 3, "A stands still: its process, or its machine")
    leads(picture, a, BEGIN, FAILED, 7)
    picture.bar(a, FAILED, BACK, "stands still, with its timers", ink="wait", dashed=True)
    picture.mark(BACK, a, good=False)
    picture.text((BACK + 14, a - 5), "cancelled; a late\nwrite: 7 < 8, refused",
                 ink="bad", about=(BACK + 95, a))  # fmt: skip
    candidate(picture, b, EXPIRES, 8)


def masters_fail(picture: Picture) -> None:
    """Draw a minority of the masters that fails, and a majority."""
    a, b = case(picture, 4, "Masters fail, a minority of them")
    leads(picture, a, BEGIN, RIGHT, 7)
    picture.bar(b, BEGIN, RIGHT, "waits", ink="wait")
    a, b = case(picture, 5, "Masters fail, a majority of them, and answer again later")
    leads(picture, a, BEGIN, FAILED, 7)
    in_vain(picture, a)
    picture.bar(a, EXPIRES, RIGHT, "waits", ink="wait")
    candidate(picture, b, BACK, 8)


def pictures() -> list[Picture]:
    """Return all pictures, each in both layouts."""
    return [
        draw(layout)
        for draw in (acquisition, lost, quarantine, fenced, fair, readers, permits, leader)
        for layout in (Picture, Narrow)
    ]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for drawn in pictures():
        (FOLDER / f"{drawn.name}.svg").write_text(drawn.svg(), encoding="utf-8")
