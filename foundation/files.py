"""Files that are written whole or not at all, and read with one clear line when they are wrong."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from foundation.errors import FileError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Record = TypeVar("Record", bound="BaseModel")

MEMORY = "/dev/shm/"  # a file system like others
# the escape of a surrogate in JSON: one half of a pair, or a mistake
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def ensure_directory(path: Path) -> Path:
    """Create `path` (and parents) and return it. Raises FileError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot create the directory {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise FileError(f"the directory {path} is read-only; choose another with -o")
    return path


def is_special(path: Path) -> bool:
    """Whether it is a device, a pipe or an open file of a process: written to, never replaced."""
    of_system = str(path).startswith(("/dev/", "/proc/")) and not str(path).startswith(MEMORY)
    if of_system and path.exists() and not path.is_dir():
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` by a temporary file and a rename. Raises FileError."""
    data = content.encode() if isinstance(content, str) else content
    temporary: str | None = None
    try:
        if is_special(path):
            path.write_bytes(data)
            return
        path = Path(os.path.realpath(path))  # a link stays one
        ensure_directory(path.parent)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes 0600; a result is meant to be shared
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise FileError(f"cannot write {path}: {error.strerror}") from error


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON with a final newline, whole or not at all.

    A lone surrogate (half a character, as Python has it from an odd file name) is written as "?":
    `read_json` refuses it.
    """
    text = json.dumps(content, indent=1, allow_nan=False)
    if SURROGATE.search(text):
        valid = json.dumps(content, ensure_ascii=False).encode(errors="replace")
        text = json.dumps(json.loads(valid), indent=1)
    write_whole(path, text + "\n")


def read_bytes(path: Path, what: str) -> bytes:
    """The content of `path`. `what` names the file in the error ("parameter file")."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FileError(f"{what} {path} does not exist") from error
    except OSError as error:
        raise FileError(f"cannot read the {what} {path}: {error.strerror}") from error


def read_json(path: Path, what: str, unique: bool = False) -> Any:
    """The JSON value in `path`. Raises FileError when missing, truncated or not JSON.

    Also where a string holds half a character (a lone surrogate), which could not be written again,
    and, of `unique` keys, where an object has one twice: readers differ in which of them counts.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise FileError(f"{what} {path}: {twice!a} stands twice in one object")
        return found

    data = read_bytes(path, what)
    try:
        # json decodes bytes by itself, but lets surrogates pass
        text = data.decode(json.detect_encoding(data))
        content = json.loads(text, object_pairs_hook=once if unique else None)
        if SURROGATE.search(text):
            json.dumps(content, ensure_ascii=False).encode()
        return content
    except UnicodeEncodeError as error:
        raise FileError(
            f"{what} {path}: a string holds {error.object[error.start]!a}, half a character"
        ) from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{what} {path} is truncated or not JSON ({error})") from error


def first_error(error: ValidationError) -> str:
    """Where and what the first mistake of a record is, and how many more there are, in one line."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    count = error.error_count() - 1
    more = f" (and {count} more)" if count else ""
    return f"{place}: {first['msg']}{more}" if place else f"{first['msg']}{more}"


def refuse_newer(content: Any, reads: int, what: str) -> None:
    """Raise FileError when the format_version of a JSON record is later than `reads`."""
    version = content.get("format_version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > reads:
        raise FileError(
            f"{what}: format {version} is newer than this program (which reads up to {reads}); "
            "update calib"
        )


def read_record(record: type[Record], path: Path, what: str, reads: int | None = None) -> Record:
    """The pydantic record in a JSON file; `reads` is the latest format_version that is understood.

    Raises FileError: missing, truncated, not JSON, of a later format, or with a field that is wrong.
    """
    from pydantic import ValidationError

    content = read_json(path, what)
    if reads is not None:
        refuse_newer(content, reads, f"{what} {path}")
    try:
        return record.model_validate(content)
    except ValidationError as error:
        raise FileError(f"{what} {path}: {first_error(error)}") from error


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    return hashlib.sha256(read_bytes(path, "file")).hexdigest()
