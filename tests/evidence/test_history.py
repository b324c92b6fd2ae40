"""What is recorded is read back, also of a process that was killed; what is wrong is rejected."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from evidence.history import NEVER, HistoryError, read
from evidence.recorder import Recorder, now

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "w0")
    client = recorder.client(3)
    before = now()
    pending = client.invoke(
        "acquire", keys=["a", "b"], fair=True, fencing=True, ttl=1_000, wait=500
    )
    underway = now()
    pending.ok(lease="x", until=before + 10, token=7)
    client.held("x", before + 20, at=underway)
    client.invoke("release", lease="x").fail("LockLostError", lease="x")
    client.lost("x", "KEY_GONE")
    other = recorder.client(4)
    other.invoke("write", key="a", value=5, token=None, lease="x").info("reset")
    other.invoke("read", key="a")
    recorder.close()
    history = read(tmp_path)
    acquire, held, release, lost, write, pending_read = history.operations
    assert (acquire.client, acquire.process, acquire.number) == ("w0/3", "w0", 0)
    assert (acquire.keys, acquire.lease, acquire.token) == (("a", "b"), "x", 7)
    assert before <= acquire.invoked_at <= underway <= acquire.ended_at <= now()
    assert (acquire.end, acquire.until, acquire.ttl) == ("ok", before + 10, 1_000)
    assert (held.invoked_at, held.ended_at, held.until) == (underway, underway, before + 20)
    assert (release.end, release.why, release.effect_by) == (
        "fail", "LockLostError", release.ended_at
    )  # fmt: skip
    assert (lost.what, lost.why) == ("lost", "KEY_GONE")
    assert (write.end, write.value, write.token, write.effect_by) == ("info", 5, None, NEVER)
    assert write.ended_at < NEVER
    assert (pending_read.end, pending_read.ended_at) == ("info", NEVER)
    assert history.torn == 0


def test_faults_are_read_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "faults")
    recorder.reach("w0", [0, 1, 2])
    recorder.fault("stall", "begin", "SIGSTOP", client="w0")
    recorder.fault("split", "begin")
    recorder.fault("stall", "end", "SIGSTOP", client="w0")
    recorder.close()
    history = read(tmp_path)
    (reach,) = history.reaches
    assert (reach.process, set(reach.masters)) == ("w0", {0, 1, 2})
    stall, split = history.faults
    assert (stall.name, stall.detail, stall.client) == ("stall", "SIGSTOP", "w0")
    assert stall.began_at < split.began_at < stall.ended_at
    assert split.ended_at == NEVER


def test_a_file_is_not_continued(tmp_path: Path) -> None:
    Recorder(tmp_path, "w0").close()
    with pytest.raises(FileExistsError):
        Recorder(tmp_path, "w0")


def test_what_a_killed_process_has_recorded_is_there(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from pathlib import Path
from evidence.recorder import Recorder
client = Recorder(Path({str(tmp_path)!r}), "w0").client(0)
for number in range(1_000_000):
    client.invoke("read", key="k").ok(value=number, token=number)
    if number > 100:
        print(number, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(50)]
        child.send_signal(signal.SIGKILL)
        child.wait()
    done = [one for one in read(tmp_path).operations if one.end == "ok"]
    assert len(done) > int(lines[-1])
    assert [one.value for one in done] == list(range(len(done)))


def test_the_clock_goes_on_while_the_machine_sleeps() -> None:
    assert abs(now() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) < 10e9


GOOD: dict[str, object] = {
    "at": 5, "client": "w0/0", "op": 1, "what": "read", "how": "invoke", "key": "k"
}  # fmt: skip
OK = GOOD | {"how": "ok", "at": 6, "value": 1, "token": 1}


def written(folder: Path, *events: object) -> Path:
    lines = (one if isinstance(one, str) else json.dumps(one) for one in events)
    (folder / "w0.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.parametrize("length", range(1, len(json.dumps(OK)) + 1))
def test_a_torn_last_line_is_ignored(tmp_path: Path, length: int) -> None:
    """Also a whole object without the end of its line."""
    with (written(tmp_path, GOOD) / "w0.jsonl").open("a") as file:
        file.write(json.dumps(OK)[:length])
    history = read(tmp_path)
    assert history.torn == 1
    assert [one.end for one in history.operations] == ["info"]


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((GOOD, "{", OK), "w0.jsonl:2: not JSON"),
        ((GOOD, "7"), "w0.jsonl:2: not an object"),
        ((GOOD, GOOD), "begins twice"),
        ((GOOD, OK, GOOD), "begins twice"),
        ((GOOD, OK, OK), "ends twice"),
        ((OK,), "is missing or unknown"),
        ((GOOD | {"what": "reads"},), "'reads' is missing or unknown"),
        ((GOOD, OK | {"how": "okay"}), "'read okay' is missing or unknown"),
        ((GOOD, OK | {"what": "acquire"}), "'acquire ok' is missing or unknown"),
        ((GOOD, OK | {"at": 4}), "'a later at' is missing"),
        ((GOOD, {name: OK[name] for name in OK if name != "token"}), "'token' is missing"),
        (({name: GOOD[name] for name in GOOD if name != "key"},), "'key' is missing"),
        ((GOOD, OK | {"token": "7"}), "token='7'"),
        ((GOOD, OK | {"value": True}), "value=True"),
    ],
)  # fmt: skip
def test_what_is_not_a_history_is_rejected(
    tmp_path: Path, events: tuple[object, ...], reason: str
) -> None:
    with pytest.raises(HistoryError) as caught:
        read(written(tmp_path, *events))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "event",
    [
        {"at": 1, "what": "reaches", "client": "w0"},
        {"at": 1, "what": "reach", "client": "w0"},
        {"at": 1, "what": "fault", "how": "end", "name": "split"},
    ],
)
def test_faults_that_make_no_sense_are_rejected(tmp_path: Path, event: object) -> None:
    (tmp_path / "faults.jsonl").write_text(json.dumps(event) + "\n")
    with pytest.raises(HistoryError, match=r"faults\.jsonl:1"):
        read(tmp_path)


def test_two_faults_of_a_kind_may_overlap(tmp_path: Path) -> None:
    fault = {"what": "fault", "name": "link down"}
    events = [
        fault | {"detail": "w0", "how": "begin", "at": 1},
        fault | {"detail": "w1", "how": "begin", "at": 2},
        fault | {"detail": "w0", "how": "end", "at": 3},
        fault | {"detail": "w1", "how": "end", "at": 4},
    ]
    (tmp_path / "faults.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in events))
    (tmp_path / "meta.json").write_text("{}")
    faults = read(tmp_path).faults
    assert [(each.detail, each.began_at, each.ended_at) for each in faults] == [
        ("w0", 1, 3),
        ("w1", 2, 4),
    ]
