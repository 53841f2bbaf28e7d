"""Files: whole or not at all, and one line when they are wrong. Tests may run as root."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from calib.foundation.errors import CalibError, FileError, MeasurementError
from calib.foundation.files import (
    ensure_directory,
    first_error,
    read_bytes,
    read_json,
    sha256_of,
    write_json,
    write_whole,
)


def one_line(error: BaseException) -> str:
    """The message, which has one line."""
    assert len(str(error).splitlines()) == 1
    return str(error)


def names(directory: Path) -> list[str]:
    """Everything in a directory, hidden files too."""
    return sorted(os.listdir(directory))


@given(text=st.text())
def test_messages_have_one_line(text: str) -> None:
    assert len(str(MeasurementError(text)).splitlines()) <= 1
    assert str(CalibError(text)).split() == text.split()


def test_write_makes_directories_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.txt"
    write_whole(path, "größer")
    assert path.read_bytes() == "größer".encode()
    write_whole(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert names(path.parent) == ["file.txt"]


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no file system in memory here")
def test_a_file_in_shared_memory_is_replaced_whole() -> None:
    """It stands under /dev, but is no device: who has the old file open still reads the old one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        path = Path(name, "file")
        write_whole(path, "old")
        with path.open() as reader:
            write_whole(path, "new")
            assert (reader.read(), path.read_text()) == ("old", "new")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "file", "x")
        assert os.umask(umask) == umask, "the umask is as before"
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path: Path) -> None:
    """A real partial write: the kernel refuses to let the file grow over 1000 bytes."""
    path = tmp_path / "file"
    write_whole(path, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(FileError) as caught:
            write_whole(path, "x" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.strerror(errno.EFBIG) in one_line(caught.value) and str(path) in str(caught.value)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, full)
    with pytest.raises(FileError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_reader_sees_one_version_or_the_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    versions = {letter * 200_000 for letter in "ab"}
    write_whole(path, "a" * 200_000)
    done = threading.Event()

    def write() -> None:
        for index in range(60):
            write_whole(path, "ab"[index % 2] * 200_000)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not done.is_set():
        seen.append(path.read_text() in versions)
    writer.join()
    assert all(seen)


def test_what_stands_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for attempt in (
        lambda: write_whole(tmp_path / "file" / "below", "x"),
        lambda: ensure_directory(tmp_path / "file"),
        lambda: ensure_directory(tmp_path / "file" / "below"),
        lambda: write_whole(tmp_path / ("x" * 300), "x"),
        lambda: ensure_directory(Path("/proc/calib")),  # read-only to root, too
        lambda: write_whole(Path("/proc/calib"), "x"),
    ):
        with pytest.raises(FileError) as caught:
            attempt()
        assert "cannot" in one_line(caught.value)
    assert (tmp_path / "file").read_text() == "x"
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="Is a directory"):
        write_whole(tmp_path / "folder", "x")
    assert names(tmp_path) == ["file", "folder"]


def test_a_read_only_directory_is_refused_before_work_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os.access stands in for a user who is not root, to whom every directory is writable."""
    asked = []

    def access(path: Path, mode: int) -> bool:
        asked.append((path, mode))
        return False

    monkeypatch.setattr(os, "access", access)
    with pytest.raises(FileError, match="is read-only; choose another"):
        ensure_directory(tmp_path)
    assert asked == [(tmp_path, os.W_OK)]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(value=json_values)
def test_json_round_trip(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.json"
    write_json(path, value)
    assert read_json(path, "file") == value
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_json_has_not_are_not_written(tmp_path: Path, number: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "file", {"a": number})
    assert names(tmp_path) == []


def test_every_truncation_of_a_json_object_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    whole = json.dumps({"a": [1, {"b": "größer"}], "c": None}, ensure_ascii=False).encode()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FileError, match="truncated or not JSON") as caught:
            read_json(path, "parameter file")
        assert one_line(caught.value).startswith(f"parameter file {path}")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 100_000, b"9" * 5000, b"{'a': 1}"])
def test_what_is_not_json_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match="truncated or not JSON") as caught:
        read_json(path, "plan")
    one_line(caught.value)


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(FileError) as caught:
        read_json(missing, "parameter file")
    assert one_line(caught.value) == f"parameter file {missing} does not exist"
    with pytest.raises(FileError, match=r"cannot read the manifest .*: Is a directory"):
        read_bytes(tmp_path, "manifest")


def test_sha256(tmp_path: Path) -> None:
    """hashlib over the same bytes, and the published digest of "abc" (FIPS 180-2, B.1)."""
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert sha256_of(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path.write_bytes(bytes(range(256)) * 5000)
    assert sha256_of(path) == hashlib.sha256(bytes(range(256)) * 5000).hexdigest()


@pytest.mark.parametrize(
    "content",
    [
        rb'{"a": "\ud800"}',
        rb'["x\udcffy"]',
        rb'{"\uDfff": 1}',
        rb'"\udc00\ud800"',
        json.dumps({"a": ["\ud83d\ude00", "\ud83d"]}).encode(),
    ],
)
def test_half_a_character_is_one_line(tmp_path: Path, content: bytes) -> None:
    """A lone surrogate could be neither printed nor written again."""
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"a string holds '.*', half a character") as caught:
        read_json(path, "parameter file")
    assert one_line(caught.value).startswith(f"parameter file {path}: ")
    one_line(caught.value).encode()


@pytest.mark.parametrize(
    "content", [rb'"\ud83d\ude00"', '"\U0001f600"'.encode(), b'"\\\\ud800"', b"\xef\xbb\xbf[1]"]
)
def test_whole_characters_are_read(tmp_path: Path, content: bytes) -> None:
    """Two halves that make one, a backslash and a word, and a byte order mark."""
    path = tmp_path / "file.json"
    path.write_bytes(content)
    assert read_json(path, "file") == json.loads(content)


def test_surrogates_in_bytes_are_no_json(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b'"\xed\xa0\x80"')
    with pytest.raises(FileError, match="truncated or not JSON"):
        read_json(path, "file")


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """The name of a file that is no UTF-8, as Python has it from the system."""
    name = os.fsdecode(b"log-\xff.txt")
    path = tmp_path / "file.json"
    write_json(path, {"name": name, "good": "\U0001f600 größer"})
    assert read_json(path, "file") == {"name": "log-?.txt", "good": "\U0001f600 größer"}


class _Fields(BaseModel):
    whole: int = 1
    share: float = 1.0
    flag: bool = True
    name: str = "x"
    several: tuple[int, ...] = Field(default=(1,), min_length=1)
    pair: tuple[int, ...] = Field(default=(1, 2), min_length=2)
    inner: dict[str, int] = {}
    word: Literal["a", "b"] = "a"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("whole", "two", "must be a whole number"),
        ("whole", 1.5, "must be a whole number"),
        ("whole", None, "must be a whole number"),
        ("share", "half", "must be a number"),
        ("flag", 3, "must be true or false"),
        ("name", 3, "must be text"),
        ("several", 3, "must be a list"),
        ("several", [], "is empty"),
        ("pair", [1], "must have at least 2 items"),
        ("inner", 3, "must have named fields"),
        ("word", "c", "must be 'a' or 'b'"),
    ],
)
def test_what_is_wrong_with_a_field(field: str, value: object, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Fields.model_validate({field: value})
    assert first_error(caught.value) == f"{field}: {said}"
