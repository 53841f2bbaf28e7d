"""The wire format of protobuf: the examples of its documentation, and what is cut off."""

from __future__ import annotations

import io
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.foundation.protobuf import delimited, field, fields, packed, signed, with_length

# protobuf.dev/programming-guides/encoding: a = 150; b = "testing"; f = [3, 270, 86942], packed
EXAMPLES: list[tuple[str, int, int | str | list[int]]] = [
    ("089601", 1, 150),
    ("120774657374696e67", 2, "testing"),
    ("3206038e029ea705", 6, [3, 270, 86942]),
]


@pytest.mark.parametrize(("data", "number", "content"), EXAMPLES)
def test_examples_of_the_documentation(
    data: str, number: int, content: int | str | list[int]
) -> None:
    assert field(number, content).hex() == data
    ((found, value),) = fields(bytes.fromhex(data))
    assert found == number
    if isinstance(value, int):
        assert value == content
    elif isinstance(content, str):
        assert value == content.encode()
    else:
        assert list(packed(value)) == content


def test_numbers_below_0_are_64_bits() -> None:
    """-2 as an int32 or int64: ten bytes, as the documentation has it."""
    assert field(1, -2).hex() == "08feffffffffffffffff01"
    ((_, value),) = fields(field(1, -2))
    assert isinstance(value, int) and signed(value) == -2


def test_a_double_is_8_bytes() -> None:
    """1.0 is 3ff0000000000000, the lowest byte first (IEEE 754)."""
    assert field(3, 1.0).hex() == "19000000000000f03f"
    assert list(fields(field(3, 1.0))) == [(3, bytes.fromhex("000000000000f03f"))]


@pytest.mark.parametrize("data", ["08", "0896", "1207", "12ff", "190000", "0b", "08" + "ff" * 11])
def test_a_message_that_is_cut_off_or_none(data: str) -> None:
    with pytest.raises(ValueError):
        list(fields(bytes.fromhex(data)))


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(0, 40))
def test_messages_of_a_stream(messages: list[bytes], cut: int) -> None:
    """Each is as it was; and one that is cut off is no shorter message."""
    data = b"".join(map(with_length, messages))
    assert list(delimited(io.BytesIO(data), 300)) == messages
    if 0 < cut < len(data):
        short = data[:-cut]
        ends = [sum(len(with_length(m)) for m in messages[:n]) for n in range(len(messages) + 1)]
        if len(short) in ends:
            whole = messages[: ends.index(len(short))]
            assert list(delimited(io.BytesIO(short), 300)) == whole
        else:
            with pytest.raises(ValueError):
                list(delimited(io.BytesIO(short), 300))


def test_a_long_message_is_refused_before_it_is_read() -> None:
    stream = io.BytesIO(with_length(b"x" * 1000))
    with pytest.raises(ValueError, match="1000 bytes"):
        list(delimited(stream, 999))
    assert stream.tell() == len(
        list(takewhile(lambda byte: byte != ord("x"), with_length(b"x" * 1000)))
    )
