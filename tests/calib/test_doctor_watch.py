"""`calib doctor --watch`: one screen, or all in JSON."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from tests.calib import inside
from tests.helpers.words import words_of

from calib.microbench import disturbers
from calib.microbench.records.looks import Look
from calib.microbench.records.watched import CoreUse, Disturbed, InterfaceUse, ProcessUse, Watched
from calib.terminal.doctor import show_watched

LOOKS = [
    Look(unix_s=1.8e9 + k, window_s=1.0, arithmetic_s=4e-4, others=0.4 if k else 0.0, running=2)
    for k in range(3)
]
WATCHED = Watched(
    seconds=3.0,
    quiet=False,
    disturbed=[Disturbed(by="cores", looks=2, found="others use 40%", advice="stop them")],
    cores=[CoreUse(core=k, used=k / 20, stolen=0.0) for k in range(12)],
    processes=[
        ProcessUse(pid=5, name="mi\x1bner", share=0.4),
        ProcessUse(pid=6, name="sshd", share=0.001),
    ],
    unseen=0.2,
    interfaces=[InterfaceUse(name="eth0", received=2048, sent=0)],
    resent={},
    congested={},
    stalled={},
    gpus=[],
    looks=LOOKS,
)


def test_json_has_everything(tmp_path: Path) -> None:
    done = inside.calib(tmp_path, "doctor", "--watch", "1s", "--json", "-o", "watched.json")
    assert done.returncode == 0, done.stderr
    watched = Watched.model_validate_json(done.stdout)
    assert len(watched.looks) == 1 and "watch: done in" in done.stderr
    assert json.loads((tmp_path / "watched.json").read_text()) == json.loads(done.stdout)


def test_the_screen_ends_with_a_verdict(tmp_path: Path) -> None:
    done = inside.calib(tmp_path, "doctor", "--watch", "1", COLUMNS="100")
    assert done.returncode == 0, done.stderr
    assert "1 look in 0:01" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(("quiet: ", "disturbed: "))


def test_tables_of_what_was_seen(capsys: pytest.CaptureFixture[str]) -> None:
    show_watched(WATCHED)
    lines = capsys.readouterr().out.splitlines()
    cells = [line.split() for line in lines]
    assert "The busiest of 12 cores" in lines
    assert ["11", "55.0%", "0.0%"] in cells and ["0", "0.0%", "0.0%"] not in cells
    assert ["mi\N{REPLACEMENT CHARACTER}ner", "5", "40.0%"] in cells
    assert not any(words[:1] == ["sshd"] for words in cells)
    assert ["eth0", "2", "KiB/s", "0", "B/s"] in cells
    assert words_of("busiest core, used by others 0.0% 40.0% 40.0%") in cells
    assert lines[-1] == "disturbed: others use 40%, in 2 of 3 looks; stop them"


def test_a_quiet_host(capsys: pytest.CaptureFixture[str]) -> None:
    show_watched(WATCHED.model_copy(update={"quiet": True, "disturbed": []}))
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "quiet: nothing disturbed for 0:03"
    show_watched(WATCHED.model_copy(update={"quiet": True}))
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("quiet: nothing disturbed for 0:03; for a moment others")


@pytest.mark.parametrize("word", ["", "0", "soon", "-3s", "0.5s"])
def test_no_time(tmp_path: Path, word: str) -> None:
    done = inside.calib(tmp_path, "doctor", "--watch", word)
    assert done.returncode == 2 and "--watch" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_ends_it_with_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits for the third look."""
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            signal.raise_signal(signal.SIGINT)
        time.sleep(seconds)

    monkeypatch.setattr(disturbers, "sleep", sleep)
    done = inside.calib(tmp_path, "doctor", "--watch", "10m", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["looks"]) == 2
