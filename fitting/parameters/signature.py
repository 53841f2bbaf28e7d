"""The signature of parameters.json, predictions.json and plans: shows edits, proves nothing.

signature = "sha256:" and the hex digest of the canonical JSON (RFC 8785) of everything else in the
file. Key order, indentation and how a number is spelled (1 or 1.0) are not part of that; a number, a
name or a note is. RFC 8785 knows doubles only: an integer that none holds is signed as the string of
its digits, and half a character (a lone surrogate) as the "?" that it is written as.

A file without a signature, or with one that is not that of its content, was edited; it is read all the
same, with one EditedWarning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import rfc8785

from calib.foundation.errors import CalibWarning, FileError
from calib.foundation.files import read_json

SIGNATURE = "signature"
EXACT = 2**53  # integers from here on are not all doubles
KIND = "parameter file"


class EditedWarning(CalibWarning):
    """A parameter file is not as calib wrote it."""


def digest(content: Mapping[str, Any]) -> str:
    """The signature that belongs to the JSON value of a file, whatever signature it has."""
    rest = without_signature(content)
    try:
        canonical = rfc8785.dumps(rest)
    except ValueError:  # rare, and looking for it in every file takes as long as signing
        canonical = rfc8785.dumps(_representable(rest))
    return f"sha256:{sha256(canonical).hexdigest()}"


def with_signature(content: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON value of a file with its signature, behind format_version."""
    version = {"format_version": content["format_version"]}
    return {**version, SIGNATURE: digest(content), **without_signature(content)}


def without_signature(content: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the signature is of."""
    return {key: value for key, value in content.items() if key != SIGNATURE}


def _representable(value: Any) -> Any:
    """`value` with nothing that RFC 8785 refuses (the module's docstring)."""
    if isinstance(value, dict):
        return {_whole(key): _representable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_representable(item) for item in value]
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, int) and abs(value) >= EXACT:
        return _double(value)
    return value


def _whole(text: str) -> str:
    return text.encode(errors="replace").decode()  # as calib.foundation.files.write_json


def _double(number: int) -> float | str:
    """The double that an integer is, exactly or as JavaScript writes doubles; or else its digits."""
    try:
        near = float(number)
    except OverflowError:
        return str(number)
    same = int(near) == number or rfc8785.dumps(near) == str(number).encode()
    return near if same else str(number)


def broken(content: Mapping[str, Any], actual: str) -> str:
    """What is wrong with the signature of a JSON value whose digest is `actual`; "" where nothing is."""
    said = content.get(SIGNATURE)
    if said is None:
        return "it has no signature"
    return "" if said == actual else "its signature is not that of its content"


def edit(content: Mapping[str, Any], actual: str) -> str:
    """What shows that the JSON value of a file was edited by hand; "" where nothing does.

    `actual` is its digest. An edit also shows where calib wrote the file again after it.
    """
    marked = content["provenance"].get("edited") is True
    return broken(content, actual) or ("its provenance says so" if marked else "")


def read_value(path: Path) -> Any:
    """The JSON value of a parameter file. Raises FileError."""
    if os.path.isdir(path):  # is_dir() raises where the name is too long
        raise FileError(f"{path} is a directory; a parameter file is like {path}/parameters.json")
    return read_json(path, KIND, unique=True)
