"""Files are written whole or not at all; a bad file is reported in one clear line."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from calib.foundation.errors import FileError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

ReadRecord = TypeVar("ReadRecord", bound="BaseModel")

MEMORY = "/dev/shm/"  # an ordinary file system
# the escape of a surrogate in JSON: one half of a pair, or a mistake
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def ensure_directory(path: Path) -> Path:
    """Create `path` (and parents) and return it. Raises FileError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot create the directory {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise FileError(f"the directory {path} is read-only; choose another")
    return path


def no_link(path: Path) -> Path:
    """A directory of calib's own in a run directory. Raises FileError for a link: it leads out."""
    if path.is_symlink():
        raise FileError(f"{path} is a link; nothing in a run directory is written through one")
    return path


def _of_system(path: Path) -> bool:
    """Whether its name is that of a device or of a process's open file: /dev/stdout is a link."""
    named = str(path).startswith(("/dev/", "/proc/")) and not str(path).startswith(MEMORY)
    return named and path.exists() and not path.is_dir()


def is_special(path: Path) -> bool:
    """Whether it is a device, a pipe or a process's open file: written to, never replaced."""
    if _of_system(path):
        return True
    return not path.is_symlink() and path.exists() and not path.is_file() and not path.is_dir()


def destination(path: Path) -> Path:
    """Where a path that a user typed leads: the user's link stays, its target is written."""
    return Path(os.path.realpath(path)) if path.is_symlink() and not _of_system(path) else path


def open_own(path: Path, append: bool = False, fresh: bool = False) -> int:
    """A descriptor of a file of calib's own that is written in place: a lock, a log.

    Others may write to a run directory too. Raises FileError where a link, a second name of another
    file, or a pipe is in its place; a `fresh` file replaces links and names.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_APPEND * append
    new = flags | os.O_CREAT | os.O_EXCL
    try:
        if fresh and is_special(path):
            raise OSError(errno.EINVAL, "it is no regular file")
        if fresh:
            path.unlink(missing_ok=True)
            return os.open(path, new, 0o666)
        # not O_CREAT on what is there: in /tmp, Linux refuses that of another user's file
        try:
            handle = os.open(path, flags)
        except FileNotFoundError:
            try:
                handle = os.open(path, new, 0o666)
            except FileExistsError:  # another made it just now
                handle = os.open(path, flags)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise FileError(f"cannot write {path}: {why}") from error
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(handle)
        raise FileError(f"cannot write {path}: it is no plain file of its own; remove it")
    return handle


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary file that replaces `path` at the end, or leaves it as it was.

    A link there is replaced, not followed (see `destination`). Raises FileError.
    """
    temporary: str | None = None
    try:
        ensure_directory(path.parent)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            yield Path(temporary)
            os.fsync(handle)
        finally:
            os.close(handle)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes 0600; a result is meant to be shared
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` by a temporary file and a rename. Raises FileError."""
    data = content.encode() if isinstance(content, str) else content
    try:
        special = is_special(path)
        if special:
            path.write_bytes(data)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error
    if not special:
        with whole(path) as temporary:
            temporary.write_bytes(data)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON with a final newline, whole or not at all.

    A lone surrogate (half a character, from an odd file name) is written as "?": `read_json` refuses it.
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


def read_text(path: Path, what: str) -> str:
    """The text of `path` (UTF-8, perhaps with its mark). Raises FileError."""
    try:
        return read_bytes(path, what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{what} {path} is not text: {error}") from error


def read_json(path: Path, what: str, unique: bool = False) -> Any:
    """The JSON value in `path`. Raises FileError when missing, truncated or not JSON.

    Also where a string holds half a character (a lone surrogate), which could not be written again, and,
    with `unique`, where an object has a key twice: readers differ in which one counts.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise FileError(f"{what} {path}: {twice!a} stands twice in one object")
        return found

    from pydantic_core import from_json

    data = read_bytes(path, what)
    if not unique:
        with suppress(ValueError):  # twice as fast as json; what it refuses, json reads or explains
            return from_json(data, cache_strings="keys")
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
    """One line: where a record's first mistake is, what it is, and how many more there are."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    said, count = wording(first), error.error_count() - 1
    more = f" (and {count} more)" if count else ""
    return f"{place}: {said}{more}" if place else f"{said}{more}"


# what pydantic says of Python's types, by how its types of errors begin
WORDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "tuple": "must be a list",
    "list": "must be a list",
    "dict": "must have named fields",
    "model": "must have named fields",
    "dataclass": "must have named fields",
}
OF_TYPES = ("type", "parsing", "from_float")


def wording(mistake: ErrorDetails) -> str:
    """What is wrong with a field, for people who do not know what it is in Python."""
    kind, _, what = mistake["type"].partition("_")
    if what in OF_TYPES and kind in WORDS:
        return WORDS[kind]
    if mistake["type"] == "missing":
        return "is missing"
    if mistake["type"] == "too_short":
        least = mistake["ctx"]["min_length"]
        return "is empty" if least == 1 else f"must have at least {least} items"
    said = mistake["msg"].removeprefix("Value error, ")
    wanted = said.removeprefix("Input should be ")
    return said if wanted == said else f"must be {wanted}"


def check_version(content: Any, reads: int, what: str) -> None:
    """Raise FileError when a JSON record's format_version is no version, or later than `reads`."""
    if not isinstance(content, dict) or "format_version" not in content:
        return  # what must have one says so itself
    version = content["format_version"]
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise FileError(f"{what}: format_version {version!r:.40} is no version")
    if version > reads:
        raise FileError(
            f"{what}: format {version} is newer than this program (which reads up to {reads}); "
            "update calib"
        )


def read_record(
    record: type[ReadRecord], path: Path, what: str, reads: int | None = None
) -> ReadRecord:
    """Read a JSON file into a pydantic record; `what` names it in an error.

    `reads` is the latest format_version that is understood; None where the format has none. Raises
    FileError: missing, truncated, not JSON, of a later format, or with a wrong field.
    """
    from pydantic import ValidationError

    content = read_json(path, what)
    if reads is not None:
        check_version(content, reads, f"{what} {path}")
    try:
        return record.model_validate(content)
    except ValidationError as error:
        raise FileError(f"{what} {path}: {first_error(error)}") from error


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    return hashlib.sha256(read_bytes(path, "file")).hexdigest()
