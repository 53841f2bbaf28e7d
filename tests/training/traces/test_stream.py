"""A trace is read a piece at a time, of any size, and as Python's own reader reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calib.training.traces import stream
from calib.training.traces.stream import Arguments, Event, read_trace

# what looks like the end of an event, in texts and in arrays
words = st.sampled_from(["k", "}, {", '"}],\n{', "\\", "é\n", "]", "aten::mm"])
numbers = st.one_of(st.integers(-5, 1 << 70), st.floats(allow_nan=True), st.booleans(), st.none())
values = st.recursive(
    st.one_of(words, numbers),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "ph"]), inner, max_size=2),
    ),
    max_leaves=6,
)
arguments = st.dictionaries(
    st.sampled_from(["External id", "correlation", "Input Dims", "Input type", "dtype", "other"]),
    values,
    max_size=4,
)
events = st.lists(
    st.one_of(
        st.dictionaries(
            st.sampled_from(["ph", "cat", "name", "ts", "dur", "tid", "args", "other"]),
            values,
            max_size=5,
        ).flatmap(lambda e: st.builds(lambda a: {**e, "args": a}, arguments)),
        values,
    ),
    max_size=12,
)


def plain(value: Any) -> str:
    """Any value as a text that tells NaN, True and 1 apart."""
    return json.dumps(value, sort_keys=True)


def as_read(event: Event) -> dict[str, str]:
    """The fields of an event that were read, with the JSON that they held."""
    found = {name: plain(getattr(event, name)) for name in ("ph", "cat", "name", "ts", "tid")}
    if isinstance(event.args, Arguments):
        found["external"] = plain(event.args.external)
        for name in ("dims", "types"):
            raw = bytes(getattr(event.args, name))
            found[name] = plain(json.loads(raw)) if raw else ""
    else:
        found["args"] = plain(event.args)
    return found


def expected(event: dict[str, Any]) -> dict[str, str]:
    """The same from Python's own reader."""
    found = {name: plain(event.get(name)) for name in ("ph", "cat", "name", "ts", "tid")}
    args = event.get("args")
    if isinstance(args, dict):
        found["external"] = plain(args.get("External id"))
        for name, key in (("dims", "Input Dims"), ("types", "Input type")):
            found[name] = plain(args[key]) if key in args else ""
    else:
        found["args"] = plain(args)
    return found


@given(
    events=events,
    size=st.sampled_from([1, 7, 64, 400]),
    indent=st.sampled_from([None, 2]),
    bare=st.booleans(),
)
@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_a_trace_is_read_in_pieces_of_any_size(
    tmp_path: Path, events: list[Any], size: int, indent: int | None, bare: bool
) -> None:
    whole = {"schemaVersion": 12, "traceEvents": events, "traceName": "é\n", "last": 123}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(events if bare else whole, indent=indent))
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK", size)
        patch.setattr(stream._JsonReader._more, "__defaults__", (size,))
        about = read_trace(path, found.extend)
    read = [as_read(event) for event in found if isinstance(event, Event)]
    given_ = json.loads(path.read_text())
    given_ = given_ if bare else given_["traceEvents"]
    assert read == [expected(event) for event in given_ if isinstance(event, dict)]
    assert about == ({} if bare else {"schemaVersion": 12, "traceName": "é\n", "last": 123})


def test_pieces_are_decoded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        json.dumps([{"ph": "X", "ts": n, "args": {"a": "}, {"}} for n in range(20_000)])
    )
    monkeypatch.setattr(stream, "CHUNK", 1 << 14)
    monkeypatch.setattr(stream._JsonReader._more, "__defaults__", (1 << 14,))
    alone: list[Any] = []
    convert = msgspec.convert
    monkeypatch.setattr(msgspec, "convert", lambda *a: alone.append(1) or convert(*a))
    found: list[Any] = []
    read_trace(path, found.extend)
    assert [event.ts for event in found] == list(range(20_000))
    assert len(alone) < 1_000  # the end of the file


def test_arguments_that_are_a_number_of_any_size(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(f'[{{"ph": "X", "ts": 1, "args": {10**400}}}, {{"ts": 2, "args": [1]}}]')
    found: list[Any] = []
    read_trace(path, found.extend)
    assert [event.ts for event in found] == [1, 2]
    assert not any(isinstance(event.args, Arguments) for event in found)
