"""The signature line: what is an edit and what is not, against a second writer of canonical JSON."""

from __future__ import annotations

import json
import math
import re
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fitting.parameters.edits import by_hand, number, sha
from tests.helpers import filled as f

from calib.fitting.parameters.file import Parameters, read_signed
from calib.fitting.parameters.signature import EditedWarning, digest, with_signature
from calib.foundation.errors import FileError

FILLED = json.loads(f.filled().model_dump_json())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "parameters.json"
    f.filled().write(path)
    return path


def read_quietly(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_signed(path)


def changed(path: Path, change: Callable[[Any], Any]) -> Path:
    """The file with its content changed and its signature left alone."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


# the canonical form


def test_the_numbers_of_rfc_8785_appendix_b() -> None:
    """Appendix B: doubles and how they read; so that `number` above is right."""
    for bits, text in [
        (1, "5e-324"),
        (0x7FEFFFFFFFFFFFFF, "1.7976931348623157e+308"),
        (0x4340000000000001, "9007199254740994"),
        (0x4430000000000000, "295147905179352830000"),
        (0x44B52D02C7E14AF5, "9.999999999999997e+22"),
        (0x44B52D02C7E14AF6, "1e+23"),
        (0x3EB0C6F7A0B5ED8D, "0.000001"),
        (0x3EB0C6F7A0B5ED8C, "9.999999999999997e-7"),
        (0x41B3DE4355555557, "333333333.33333343"),
    ]:
        assert number(struct.unpack(">d", bits.to_bytes(8, "big"))[0]) == text


def test_the_signature_is_of_all_the_rest(path: Path) -> None:
    content = json.loads(path.read_text())
    said = content.pop("signature")
    assert said == sha(by_hand(content)) == read_quietly(path).sha256


def test_the_signature_is_a_line_of_its_own_behind_the_format(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[1] == ' "format_version": 1,'
    assert re.fullmatch(r' "signature": "sha256:[0-9a-f]{64}",', lines[2])


finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=60)
@given(
    values=st.dictionaries(
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=4),
        finite
        | st.integers(-(2**53) + 1, 2**53 - 1)
        | st.booleans()
        | st.none()
        | st.lists(finite, max_size=3),
        max_size=5,
    )
)
def test_any_content(values: dict[str, Any]) -> None:
    values.pop("signature", None)
    assert digest(values) == sha(by_hand(values))
    assert digest({**values, "signature": "x"}) == digest(values)
    assert digest(json.loads(json.dumps(dict(reversed(values.items())), indent=3))) == digest(
        values
    )


@pytest.mark.parametrize(
    ("number", "canonical"),
    [
        (2**53, "9007199254740992"),
        (2**53 + 1, '"9007199254740993"'),  # no double: its digits as a string
        (-(2**53) - 1, '"-9007199254740993"'),
        (2**63 - 1, '"9223372036854775807"'),
        (2**60, "1152921504606847000"),  # as ECMAScript writes that double
        (1152921504606847000, "1152921504606847000"),  # and as it was then read again
        (10**400, f'"{10**400}"'),
    ],
)
def test_integers_beyond_2_to_the_53_are_signed(number: int, canonical: str) -> None:
    assert digest({"seed": number}) == sha(f'{{"seed":{canonical}}}')


def test_such_a_file_is_written_and_read(path: Path) -> None:
    source = f.filled().provenance.model_copy(update={"seed": 2**62 + 1, "cluster_name": "x\ud800"})
    f.filled(provenance=source).write(path)
    found = read_quietly(path).parameters.provenance
    assert (found.seed, found.cluster_name) == (2**62 + 1, "x?")
    changed(path, lambda c: c["provenance"].update(seed=2**62 + 2))
    with pytest.warns(EditedWarning):
        read_signed(path)


# edits


def as_jq(content: Any) -> str:
    """As jq -S writes a file: keys in order, 1e-09 as 1e-9, and 8.0 as 8."""
    text = json.dumps(content, indent=2, sort_keys=True)
    again = re.sub(r"(?<=\d)\.0(?=[,\s])", "", re.sub(r"(?<=e-)0(?=\d)", "", text))
    assert "1e-9" in again and "8.0," in text and "8.0," not in again
    return again


@pytest.mark.parametrize(
    "again",
    [
        json.dumps,
        as_jq,
        lambda c: json.dumps(c, indent=8, sort_keys=True),
        lambda c: json.dumps(dict(reversed(c.items())), ensure_ascii=False),
        lambda c: json.dumps(c).replace("16777216.0", "16777216").replace("1e-09", "0.000000001"),
        lambda c: json.dumps(c).replace('"ranks": 2,', '"ranks": 2.0,').replace(" 0.0,", " -0.0,"),
        lambda c: "\ufeff" + json.dumps(c),
        lambda c: "\r\n".join(json.dumps(c, indent="\t").split("\n")),
        lambda c: json.dumps(c).replace("filled", "\\u0066illed"),
    ],
)
def test_other_words_for_the_same_are_no_edit(path: Path, again: Callable[[Any], str]) -> None:
    before, text = read_quietly(path), path.read_text()
    path.write_bytes(again(json.loads(text)).encode())
    assert path.read_bytes() != text.encode()
    found = read_quietly(path)
    assert (found.parameters, found.sha256, found.edited) == (
        before.parameters,
        before.sha256,
        False,
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: c["layers"][0]["forward_s"].update(value=math.nextafter(1e-4, 1)), "its sig"),
        (lambda c: c["provenance"].update(seed=2), "its signature is not that of its content"),
        (lambda c: c["provenance"]["notes"].append("mine"), "its signature"),
        (lambda c: c.update(device="Some  CPU"), "its signature"),
        (lambda c: c["collectives"].reverse(), "its signature"),
        (lambda c: c["partitions"].clear(), "its signature"),
        (lambda c: c.pop("overlap"), "its signature"),
        (lambda c: c.update(signature="sha256:" + "0" * 64), "its signature"),
        (lambda c: c.update(signature=c["signature"].upper()), "its signature"),
        (lambda c: c.update(signature=""), "its signature"),
        (lambda c: c.pop("signature"), "it has no signature"),
    ],
)
def test_an_edit_is_read_with_one_warning(
    path: Path, change: Callable[[Any], Any], why: str
) -> None:
    before = read_quietly(path).sha256
    changed(path, change)
    with pytest.warns(EditedWarning) as told:
        found = read_signed(path)
    (message,) = [str(each.message) for each in told]
    assert message.startswith(f"{path} was edited by hand after its fit: {why}")
    assert found.edited and found.parameters.provenance.edited
    content = json.loads(path.read_text())
    content.pop("signature", None)
    assert found.sha256 == digest(content)
    assert (found.sha256 != before) == (content != FILLED)


def test_an_edited_file_that_is_written_again_still_says_so(path: Path, tmp_path: Path) -> None:
    changed(path, lambda c: c.update(ranks_per_node=9))
    with pytest.warns(EditedWarning):
        first = Parameters.read(path)
    first.write(tmp_path / "again.json")
    content = json.loads((tmp_path / "again.json").read_text())
    assert content["signature"] == digest(content) and content["provenance"]["edited"] is True
    with pytest.warns(EditedWarning, match="its provenance says so"):
        found = read_signed(tmp_path / "again.json")
    assert found.edited and found.parameters == first
    changed(tmp_path / "again.json", lambda c: c["provenance"].update(edited=False))
    with pytest.warns(EditedWarning, match="its signature is not"):
        assert read_signed(tmp_path / "again.json").edited


@pytest.mark.parametrize("signature", [1, None, [], {"sha256": "ab"}, True])
def test_a_signature_that_is_no_text_is_refused(path: Path, signature: Any) -> None:
    changed(path, lambda c: c.update(signature=signature))
    with pytest.raises(FileError, match="signature: must be text"):
        read_signed(path)


# keys


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"device":', '"device": "Fast CPU", "device":'),
        ('"seed":', '"seed": 1, "seed":'),
        ('"signature":', '"signature": "sha256:ab", "signature":'),
    ],
)
def test_a_key_that_stands_twice_is_refused(path: Path, old: str, new: str) -> None:
    """Its last value would count here, and the first in another reader: the signature fits one."""
    text = path.read_text()
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(
        FileError, match=rf"parameters\.json: '{old[1:-2]}' stands twice in one obj"
    ):
        read_signed(path)


def test_every_content_of_a_file_is_signed() -> None:
    """Also where the record is made here and was never in a file."""
    assert with_signature(FILLED)["signature"] == f.filled().signed()["signature"]
