"""The fuzzer itself: the same seed draws the same inputs, whole files end well, and faults are seen."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.helpers.published import needs_data
from tests.torture import judge, seeds
from tests.torture.readers import JSON, READERS, Input, Reader, drawn, laid_out

# of lines that end with 2 on whole files, for want of what the file cannot say
ANSWERS = {"train": "unknown model 'hand'"}
SOME = 24


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("seeds")
    seeds.make(made)
    return made


def whole(reader: Reader, line: str, home: Path) -> Input:
    """A line of a reader on a file that nobody has damaged."""
    path = sorted(home.glob(reader.files))[0]
    file = str(path.relative_to(home))
    return Input(reader, file, path.read_bytes(), Random(1), tuple(line.format(file).split(" ")))


@pytest.mark.parametrize(
    "reader",
    [
        pytest.param(
            reader, id=reader.files, marks=[needs_data] if reader.files in seeds.PUBLISHED else []
        )
        for reader in READERS
    ],
)
def test_whole_files_are_read(home: Path, tmp_path: Path, reader: Reader) -> None:
    """Else its inputs would end before they are read."""
    one = whole(reader, reader.lines[-1], home)
    laid_out(one, home, tmp_path / "at")
    done = judge.calib(tmp_path / "at", *one.line)
    answer = ANSWERS.get(one.line[0], "")
    assert done.returncode == (2 if answer else 0), done.stderr
    assert answer in done.stderr


def test_the_same_seed_draws_the_same(home: Path) -> None:
    first = [drawn("7", number, home) for number in range(SOME)]
    again = [drawn("7", number, home) for number in range(SOME)]
    assert [one[:3] + one[4:] for one in first] == [one[:3] + one[4:] for one in again]
    assert [one.content for one in first] != [drawn("8", n, home).content for n in range(SOME)]
    assert len({one.reader.files for one in first}) > SOME // 4


def test_some_inputs_end_well(home: Path, tmp_path: Path) -> None:
    """`make torture` runs thousands."""
    for number in range(SOME):
        one = drawn("of the tests", number, home)
        assert judge.judged(one, home, tmp_path / "at") == "", (number, one.line)


def test_what_is_wrong_is_seen(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader("model.json", JSON, ("model show {}",))
    one = whole(reader, reader.lines[0], home)

    def main_that(act: object) -> str:
        monkeypatch.setattr("tests.calib.inside.main", act)
        return judge.judged(one, home, tmp_path / "at")

    def crashes() -> None:
        raise KeyError("a bug")

    def fails_in_two_lines() -> None:
        import sys

        print("calib: error: one\ncalib: error: two", file=sys.stderr)
        sys.exit(2)

    def overwrites() -> None:
        Path("model.json").write_text("")
        raise SystemExit(0)

    def leaves() -> None:
        import sys

        Path("half.json").write_text("{")
        print("calib: error: no", file=sys.stderr)
        sys.exit(2)

    def exits() -> None:
        raise SystemExit(1)

    assert "KeyError: 'a bug'" in main_that(crashes)
    assert "not one line" in main_that(fails_in_two_lines)
    assert main_that(overwrites) == "model.json was changed"
    assert main_that(leaves) == "ended with 2 and left half.json"
    assert "exit code 1" in main_that(exits)
