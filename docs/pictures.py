"""
Draws the pictures of docs/pictures/: `python docs/pictures.py` writes them.

Each picture is a diagram of lanes along a time axis, as one SVG file without fonts, scripts or
references. Its colours follow the system's light or dark scheme. Included in a page, they follow
the scheme that the reader has chosen there (docs/extra.css has the same names of colours).
A test compares the files with what this script draws.
"""

from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent / "pictures"

LIGHT = {
    "paper": "#f6f8fa", "ink": "#1f2933", "soft": "#627180", "line": "#b9c4ce", "card": "#ffffff",
    "good": "#0b7a66", "good-soft": "#d3efe8", "bad": "#b3372f", "bad-soft": "#fadfdb",
    "wait": "#8a5a00", "wait-soft": "#fbeac6", "other": "#3c5aa8", "other-soft": "#dde5f8",
}  # fmt: skip
DARK = {
    "paper": "#1c222b", "ink": "#e6ebf0", "soft": "#9fb0bf", "line": "#4a5866", "card": "#262e39",
    "good": "#5fd3bb", "good-soft": "#1d4740", "bad": "#ff8f85", "bad-soft": "#57282a",
    "wait": "#f0c15c", "wait-soft": "#4a3b18", "other": "#9db6ff", "other-soft": "#2c3a60",
}  # fmt: skip

WIDTH, LEFT, RIGHT = 900, 150, 875
"""The width of a picture, and where its lanes begin and end."""

HALF = 13
"""Half of the height of a bar."""


def variables(colours: dict[str, str]) -> str:
    """Return the declarations of *colours* in CSS."""
    return ";".join(f"--{name}:{value}" for name, value in colours.items())


STYLE = (
    f".picture{{{variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{.picture{{{variables(DARK)}}}}}"
    ".picture text{font:14px system-ui,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;"
    "fill:var(--ink)}.picture text{paint-order:stroke;stroke:var(--paper);stroke-width:5px;"
    "stroke-linejoin:round}.picture .plain{stroke:none}"
    ".picture .small{font-size:12.5px}.picture .title{font-size:17px;font-weight:600}"
    ".picture .name{font-weight:600}"
    ".picture .code{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    "font-size:12.5px}"
)


class Picture:
    """One picture that is being drawn; `svg` is its text."""

    def __init__(self, name: str, title: str, description: str, height: int) -> None:
        self.name, self.height = name, height
        head = (
            f'<svg class="picture" xmlns="http://www.w3.org/2000/svg" role="img"'
            f' viewBox="0 0 {WIDTH} {height}" aria-labelledby="{name}-title {name}-text">'
        )
        self._parts = [
            head,
            f'<title id="{name}-title">{escape(title)}</title>',
            f'<desc id="{name}-text">{escape(description)}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="10" style="fill:var(--paper)"/>',
        ]
        self.text(25, 34, title, kind="title")

    def svg(self) -> str:
        """Return the picture as a file's text."""
        return "\n".join([*self._parts, "</svg>\n"])

    def text(
        self, x: float, y: float, text: str, *, kind: str = "", at: str = "start", ink: str = "ink"
    ) -> None:
        """Write *text* with its baseline at *y*; unless it is plain, it interrupts lines behind."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{at}"'
            f' style="fill:var(--{ink})">{escape(text)}</text>'
        )

    def label(self, x: float, y: float, text: str, kind: str = "small") -> None:
        """Write *text* into the bar on the lane *y*, around *x*."""
        self.text(x, y + 4.5, text, kind=f"{kind} plain", at="middle")

    def line(
        self, x: float, y: float, to: tuple[float, float], *, ink: str = "line",
        dashed: bool = False, width: float = 1.5,
    ) -> None:  # fmt: skip
        """Draw a straight line."""
        dash = ' stroke-dasharray="5 5"' if dashed else ""
        self._parts.append(
            f'<line x1="{x:g}" y1="{y:g}" x2="{to[0]:g}" y2="{to[1]:g}"'
            f' stroke-width="{width:g}"{dash} style="stroke:var(--{ink})"/>'
        )

    def arrow(
        self, x: float, y: float, to: tuple[float, float], *, ink: str = "soft",
        dashed: bool = False,
    ) -> None:  # fmt: skip
        """Draw a line with a head at its end."""
        across, down = to[0] - x, to[1] - y
        length = (across**2 + down**2) ** 0.5
        across, down = across / length, down / length
        self.line(x, y, (to[0] - 6 * across, to[1] - 6 * down), ink=ink, dashed=dashed)
        back = (to[0] - 9 * across, to[1] - 9 * down)
        points = [to, (back[0] - 4 * down, back[1] + 4 * across)]
        points.append((back[0] + 4 * down, back[1] - 4 * across))
        self._polygon(points, f"fill:var(--{ink})")

    def _polygon(self, points: list[tuple[float, float]], style: str) -> None:
        where = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polygon points="{where}" style="{style}"/>')

    def area(self, points: list[tuple[float, float]], ink: str) -> None:
        """Draw a filled area with an outline."""
        self._polygon(
            points, f"fill:var(--{ink}-soft);stroke:var(--{ink});stroke-width:1.5;"
            "stroke-linejoin:round",
        )  # fmt: skip

    def lane(self, y: float, name: str, below: str = "") -> None:
        """Draw the axis of one participant."""
        self.text(25, y + (0 if below else 5), name, kind="name")
        if below:
            self.text(25, y + 17, below, kind="small", ink="soft")
        self.line(LEFT, y, (RIGHT, y))

    def bar(
        self, y: float, begin: float, end: float, text: str = "", *, ink: str, dashed: bool = False
    ) -> None:
        """Draw a span of time on a lane, with a text in its middle."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{begin:g}" y="{y - HALF:g}" width="{end - begin:g}" height="{2 * HALF}"'
            f' rx="5"{dash} style="fill:var(--{ink}-soft);stroke:var(--{ink});stroke-width:1.5"/>'
        )
        if text:
            self.label((begin + end) / 2, y, text)

    def mark(self, x: float, y: float, *, good: bool) -> None:
        """Draw a tick or a cross in a disc."""
        ink = "good" if good else "bad"
        path = "m-4.5 .5 3 3 6-7" if good else "m-4-4 8 8m0-8-8 8"
        self._parts.append(
            f'<g transform="translate({x:g} {y:g})"><circle r="9" style="fill:var(--{ink})"/>'
            f'<path d="{path}" fill="none" stroke-width="2.2" stroke-linecap="round"'
            ' stroke-linejoin="round" style="stroke:var(--paper)"/></g>'
        )

    def time(self) -> None:
        """Draw the direction of time at the bottom."""
        y = self.height - 22
        self.text(25, y + 4, "time", kind="small", ink="soft")
        self.arrow(LEFT, y, (RIGHT, y), ink="line")


def acquisition() -> Picture:
    """Draw one acquisition on five masters, one of which hangs and one of which is slow."""
    picture = Picture(
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
        picture.label(500 if late else 624, y, text, "small" if late else "code")
    for name, (y, arrives, replied) in masters.items():
        if replied:
            top, ink = (client + HALF, "wait") if name == "E" else (client + 2, "good")
            picture.arrow(arrives + 14, y - HALF, (replied, top), ink=ink)
    picture.text(sent + 6, client - 10, "SET … NX PX 10000", kind="code", ink="soft")
    picture.mark(won, client, good=True)
    picture.text(won - 10, client - 22, "3 of 5 have granted it", kind="small")
    picture.line(end, client + HALF, (end, 372), ink="other", dashed=True)
    picture.text(end + 8, client - 1, "ends before any", kind="small", ink="other")
    picture.text(end + 8, client + 16, "master's key does", kind="small", ink="other")
    picture.time()
    return picture


def lost() -> Picture:
    """Draw a lease that can't be extended any more."""
    picture = Picture(
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
    picture.text(deadline + 16, code + 5, "cancelled, LockLostError", ink="bad", kind="name small")
    full = 75.0
    picture.text(25, validity - 34, "validity", kind="name")
    picture.text(25, validity - 17, "of the lease", kind="small", ink="soft")
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
    picture.text(begin + 3 * third + 22, validity - 58, "extensions fail", kind="small", ink="bad")
    picture.text(begin + 12, validity - 8, "extended every third of its ttl", kind="small plain")
    picture.lane(key, "the key", "on a majority")
    picture.bar(key, begin, expires, ink="good")
    picture.label(288, key, "token", "code")
    picture.bar(key, cut, expires, ink="bad", dashed=True)
    picture.label(514, key, "the masters can't be reached")
    picture.lane(other, "another holder")
    picture.bar(other, 470, expires, "waits", ink="wait")
    picture.bar(other, expires, RIGHT, "has the lock", ink="other")
    picture.line(deadline, code + HALF, (deadline, 350), ink="bad", dashed=True)
    picture.line(expires, key + HALF, (expires, other - HALF), ink="soft", dashed=True)
    picture.text(deadline - 6, 355, "deadline", kind="small", ink="bad", at="end")
    picture.text(expires + 4, 355, "the key expires", kind="small", ink="soft")
    picture.time()
    return picture


def quarantine() -> Picture:
    """Draw a master that restarts without memory."""
    picture = Picture(
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
    picture.text((killed + back) / 2, rows["C"] - 22, "restarts, empty", kind="small", ink="bad",
                 at="middle")  # fmt: skip
    picture.bar(rows["C"], back, votes, "quarantine: its vote does not count", ink="wait")
    picture.text(467, rows["C"] + 31, "max_ttl and a little more: 62 s by default",
                 kind="small", ink="wait")  # fmt: skip
    picture.mark(455, program, good=False)
    picture.mark(740, program, good=True)
    picture.text(
        455, program + 28, "A grants, B refuses, C has no vote:", kind="small", at="middle"
    )
    picture.text(455, program + 45, "1 of 3, no lock", kind="name small", ink="bad", at="middle")
    picture.text(740, program + 28, "all three grant", kind="small", at="middle")
    picture.text(740, program + 45, "it has the lock", kind="name small", ink="good", at="middle")
    for y in rows.values():
        picture.bar(y, 740, RIGHT, "key of program 2", ink="good")
    picture.bar(rows["A"], 455, 481, "", ink="wait")
    picture.text(490, rows["A"] - 5, "taken back at once", kind="small", ink="soft")
    picture.time()
    return picture


def fenced() -> Picture:
    """Draw a write that comes too late, and is refused by its token."""
    picture = Picture(
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
    picture.text(ends + 8, one + 45, "the lease of holder 1 ends on the masters", kind="small",
                 ink="soft")  # fmt: skip
    picture.bar(two, 215, ends, "waits", ink="wait")
    picture.bar(two, ends, 650, "has the lock", ink="good")
    picture.arrow(wrote, two + HALF, (wrote, store - HALF - 1), ink="good")
    picture.text(wrote - 8, 252, "write, token 34", kind="small", at="end")
    picture.bar(store, 170, wrote, "highest token: 32", ink="other")
    picture.bar(store, wrote, RIGHT, "highest token: 34", ink="good")
    picture.arrow(late, one + HALF, (late, store - HALF - 17), ink="bad")
    picture.mark(late, store - HALF - 9, good=False)
    picture.text(late + 10, 240, "write, token 33", kind="small")
    picture.text(late + 16, store - HALF - 9, "refused: 33 < 34", kind="name small", ink="bad")
    picture.text(LEFT, store + 42, "The comparison and the write are one step in the storage.",
                 kind="small", ink="soft")  # fmt: skip
    picture.time()
    return picture


def fair() -> Picture:
    """Draw the fair queue, with a waiter that dies."""
    picture = Picture(
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
            picture.text(400, y + 28, "its process dies", kind="small", ink="bad", at="middle")
            continue
        if begin > came:
            picture.bar(y, came, begin, "waits", ink="wait")
        picture.bar(y, begin, end, "has the lock", ink="good")
    picture.arrow(330, lanes[0] + HALF, (330, lanes[1] - HALF), ink="good")
    picture.arrow(470, lanes[1] + HALF, (470, lanes[2] - 1), ink="good", dashed=True)
    picture.text(480, lanes[1] + 32, "next in the queue: no answer", kind="small", ink="soft")
    picture.line(470, lanes[2], (610, lanes[2]), ink="bad", dashed=True)
    picture.text(540, lanes[2] + 20, "4 s at most", kind="small", ink="bad", at="middle")
    picture.arrow(610, lanes[2], (610, lanes[3] - HALF), ink="good", dashed=True)
    picture.arrow(740, lanes[3] + HALF, (740, lanes[4] - HALF), ink="good")
    picture.text(338, lanes[0] + 32, "a release wakes the next", kind="small", ink="good")
    picture.text(asked[-1] - 110, 346, "served in the order in which they came, on whatever host",
                 kind="small", ink="soft")  # fmt: skip
    picture.time()
    return picture


def pictures() -> list[Picture]:
    """Return all pictures."""
    return [acquisition(), lost(), quarantine(), fenced(), fair()]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for drawn in pictures():
        (FOLDER / f"{drawn.name}.svg").write_text(drawn.svg(), encoding="utf-8")
