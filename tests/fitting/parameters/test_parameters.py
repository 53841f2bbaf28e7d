"""parameters.json: round trip, and one clear line for every file that cannot be."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.helpers import mutations
from tests.helpers.filled import CONV_KEY, composition, filled, layer, loop, memory, work
from tests.reports.records import parameters

from calib.fitting.parameters.file import FORMAT_VERSION, Parameters
from calib.fitting.parameters.signature import with_signature
from calib.foundation.errors import FileError, InputError
from calib.foundation.records import Estimate
from calib.microbench.records.cluster import Cluster, Host, Level

# what is changed here is a file's content, and never its signature
# (tests/fitting/parameters/test_signature.py)
pytestmark = pytest.mark.filterwarnings("ignore::calib.fitting.parameters.signature.EditedWarning")

VALID = json.loads(
    parameters().model_copy(update={"layers": parameters().layers[:2]}).model_dump_json()
)


def refused(path: Path, text: str | bytes) -> str:
    """The one line that a file with this content is refused with."""
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(FileError) as caught:
        Parameters.read(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and str(path) in message and len(message) < 1000
    return message


def changed(place: str, value: Any) -> str:
    """The valid file with one value changed; NaN and Infinity are written as json does it."""
    content = copy.deepcopy(VALID)
    *way, last = [int(word) if word.isdigit() else word for word in place.split(".")]
    here = content
    for word in way:
        here = here[word]
    here[last] = value
    return json.dumps(content)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "parameters.json"


def test_round_trip(path: Path) -> None:
    written = parameters()
    written.write(path)
    assert Parameters.read(path) == written
    first = path.read_bytes()
    Parameters.read(path).write(path)
    assert path.read_bytes() == first


def test_the_valid_file_of_these_tests_is_valid(path: Path) -> None:
    path.write_text(json.dumps(with_signature(VALID)))
    assert Parameters.read(path).model_dump(mode="json") == VALID


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated(path: Path, share: float) -> None:
    whole = json.dumps(VALID)
    assert "truncated or not JSON" in refused(path, whole[: int(share * len(whole))])


def test_missing(path: Path) -> None:
    with pytest.raises(FileError, match=r"parameter file .* does not exist"):
        Parameters.read(path)
    with pytest.raises(FileError, match="is a directory; a parameter file is like"):
        Parameters.read(path.parent)
    with pytest.raises(FileError, match="File name too long"):
        Parameters.read(path.with_name("x" * 300))


@pytest.mark.parametrize("content", [b"alpha: 1", b"\xff\xfe\xfd", b"PK\x03\x04"])
def test_not_json(path: Path, content: bytes) -> None:
    assert "truncated or not JSON" in refused(path, content)


@pytest.mark.parametrize("content", ["[]", "[1]", "3", "null", '"text"', "{}", '{"alpha": 1}'])
def test_no_parameter_file(path: Path, content: str) -> None:
    assert "no format_version; not a parameter file" in refused(path, content)


def test_another_file_of_the_program_is_no_parameter_file(path: Path) -> None:
    """cluster.json has a format_version, too."""
    of = Cluster(
        name="one",
        hosts=[Host(name="h", kernel="k", devices=[])],
        levels=[Level(name="node", members=2, link="l")],
    )
    assert "no provenance; not a parameter file" in refused(path, of.model_dump_json())


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, FORMAT_VERSION + 2, 10**30])
def test_future_versions(path: Path, version: int) -> None:
    message = refused(path, changed("format_version", version))
    assert (
        f"format {version} is newer than this program (which reads up to {FORMAT_VERSION})"
        in message
    )
    # before anything else is looked at
    assert "is newer" in refused(path, json.dumps({"format_version": version, "anything": 1}))


@pytest.mark.parametrize("version", ["1", True, False, 0, -1, 1.0, 1.5, None, [1], {"a": 1}])
def test_what_is_no_version(path: Path, version: Any) -> None:
    assert f"{version!r} is no version" in refused(path, changed("format_version", version))


FIT = "collectives.0"


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (f"{FIT}.slope_s_per_byte.value", -1e-9, "does not hold"),
        (f"{FIT}.slope_s_per_byte.low", -1e-9, "is not within 0 to"),
        (f"{FIT}.intercept_s.value", math.nan, "finite number"),
        (f"{FIT}.intercept_s.high", math.inf, "finite number"),
        (f"{FIT}.intercept_s.value", -math.inf, "finite number"),
        (f"{FIT}.line_error_factor", math.nan, "finite number"),
        (f"{FIT}.line_error_factor", 0.9, "greater than or equal to 1"),
        (f"{FIT}.mean_relative_error", math.inf, "finite number"),
        (f"{FIT}.intercept_s", {"value": 99.0, "low": 1.0, "high": 99.0}, "over 10 s"),
        (f"{FIT}.slope_s_per_byte.low", 1.0, "does not hold"),
        (f"{FIT}.slope_s_per_byte.high", 0.0, "does not hold"),
        (f"{FIT}.ranks", 1, "greater than or equal to 2"),
        (f"{FIT}.points", [], "at least 2 items"),
        (f"{FIT}.colour", 1, "Extra inputs"),
        ("layers.0.forward_s.value", "fast", "must be a number"),
        ("layers.0.n", 0, "greater than or equal to 1"),
        ("layers.1.forward_s.value", math.nan, "finite number"),
        ("composition.0.s_per_byte", -1.0, "greater than or equal to 0"),
        ("colour", 1, "Extra inputs"),
        ("collectives", {}, "must be a list"),
        ("provenance.seed", None, "must be a whole number"),
        ("provenance.samples_sha256", [], "is empty"),
        ("device", 7, "must be text"),
        ("device_memory_bytes", -1, "greater than or equal to 0"),
        ("ranks_per_node", 0, "greater than or equal to 1"),
        ("nodes", -1, "greater than or equal to 0"),
        ("nodes_per_rack", 2.5, "must be a whole number"),
        ("links_per_node", 10**10, "less than or equal to"),
    ],
)
def test_numbers_that_cannot_be(path: Path, place: str, value: Any, words: str) -> None:
    message = refused(path, changed(place, value))
    # an interval is checked as one, so the place is that of the record
    assert words in message
    assert place in message or place.rpartition(".")[0] in message


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1e-9"])
def test_literals(path: Path, literal: str) -> None:
    text = changed(f"{FIT}.slope_s_per_byte.value", 0.123456789)
    assert text.count("0.123456789") == 1
    refused(path, text.replace("0.123456789", literal))


SECTIONS = {key for key, value in VALID.items() if isinstance(value, list)}


# may not be known
OPTIONAL = {
    *("device_kind", "nodes", "nodes_per_rack", "links_per_node"),
    *("link_bandwidth", "rack_links", "shared_links", "launch_factors", "speed"),
}


@pytest.mark.parametrize("key", sorted(set(VALID) - SECTIONS - OPTIONAL))
def test_missing_keys_are_named(path: Path, key: str) -> None:
    content = {k: v for k, v in VALID.items() if k != key}
    assert key in refused(path, json.dumps(content))


def test_several_mistakes_are_counted(path: Path) -> None:
    content = {**VALID, "ranks_per_node": 0, "device": 7, "colour": 1}
    assert "(and 2 more)" in refused(path, json.dumps(content))


def check_all(value: Any) -> None:
    """Every number that was let in can be."""
    if isinstance(value, dict):
        if set(value) == {"value", "low", "high"}:
            assert 0 <= value["low"] <= value["value"] <= value["high"] < math.inf
        for item in value.values():
            check_all(item)
    elif isinstance(value, list):
        for item in value:
            check_all(item)
    elif isinstance(value, float):
        assert math.isfinite(value)


@pytest.mark.parametrize("seed", range(500))
def test_damaged_files_are_read_or_refused(path: Path, seed: int) -> None:
    """Of JSON three in five: values that cannot be, keys twice, nesting; of bytes the rest."""
    dice, text = Random(seed), json.dumps(VALID)
    if seed % 5 < 3:
        path.write_text(mutations.document(text, dice))
    else:
        path.write_bytes(mutations.data(text.encode(), dice))
    try:
        found = Parameters.read(path)
    except FileError as error:
        assert len(str(error).splitlines()) == 1
    else:
        check_all(found.model_dump())
        assert Parameters.parse(json.loads(found.model_dump_json()), "again") == found


def test_scaled() -> None:
    found = Estimate(value=2.0, low=1.0, high=4.0).scaled(0.5)
    assert (found.value, found.low, found.high) == (1.0, 0.5, 2.0)


def test_points_out_of_order_are_refused(path: Path) -> None:
    refused(path, changed(f"{FIT}.points", VALID["collectives"][0]["points"][::-1]))


# every number of a file with every section


FILLED = json.loads(filled().model_dump_json())


def numbers(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all numbers, of a list only the first item's."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, (*way, key))
    elif isinstance(value, list) and value:
        yield from numbers(value[0], (*way, 0))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield way


NUMBERS = sorted(numbers(FILLED), key=str)


def with_number(way: tuple[Any, ...], value: Any) -> Any:
    content = copy.deepcopy(FILLED)
    *above, last = way
    here = content
    for word in above:
        here = here[word]
    here[last] = value
    return content


@pytest.mark.parametrize("way", NUMBERS, ids=lambda way: ".".join(map(str, way)))
def test_no_number_of_a_file_is_nan_or_endless(way: tuple[Any, ...]) -> None:
    """A fixture without a section would leave its numbers out: see the next test."""
    for value in (math.nan, math.inf):
        with pytest.raises(FileError):
            Parameters.parse(with_number(way, value), "here")
    if way != ("provenance", "seed"):  # any seed is one
        with pytest.raises(FileError) as caught:
            Parameters.parse(with_number(way, 10**400), "here")
        assert len(str(caught.value).splitlines()) == 1


def test_the_file_of_these_tests_has_every_section() -> None:
    assert all(FILLED[name] for name in SECTIONS - {"partitions"})
    assert {way[0] for way in NUMBERS} >= SECTIONS - {"partitions"}


def test_the_laws_of_one_execution() -> None:
    """Of a graph: the layers and passes that it runs, which have none, and its own whole iterations."""
    names = ("float32", "bfloat16", "bfloat16+cuda_graph")
    of = filled(
        layers=[layer(key=CONV_KEY.replace("float32", name)) for name in names[:2]],
        work=[work(execution=name) for name in names[:2]],
        tensor_loops=[loop(execution=name) for name in names[:2]],
        composition=[composition(execution=name) for name in names],
        memory=[memory(execution=name) for name in names],
    )
    assert of.executions == names
    found = of.of_execution("bfloat16+cuda_graph")
    assert [law.key.rpartition("|")[2] for law in found.layers] == ["bfloat16"]
    assert [law.execution for law in (*found.work, *found.tensor_loops)] == ["bfloat16"] * 2
    assert [law.execution for law in (*found.composition, *found.memory)] == [names[2]] * 2
    assert found.executions == names[1:]
    assert found.collectives == of.collectives
    plain = of.of_execution("float32")
    assert plain.executions == ("float32",)
    assert filled().of_execution("float32") == filled()


def test_operations_of_one_library() -> None:
    """Layers and all else stay; how ranks meet is known of another, which is better than nothing."""
    whole = filled()
    both = whole.model_copy(
        update={
            "collectives": [
                fit.model_copy(update={"library": library})
                for fit in whole.collectives
                for library in ("torch_mpi", "torch_gloo")
            ]
        }
    )
    found = both.sent_by("torch_gloo")
    assert {fit.library for fit in found.collectives} == {"torch_gloo"}
    assert len(found.collectives) == len(whole.collectives)
    assert (found.layers, found.composition) == (both.layers, both.composition)
    assert all(law.library == "torch_gloo" for law in (*found.structural, *found.contention))
    with pytest.raises(
        InputError, match=r"no operations of nccl, only those of torch_gloo, torch_mpi"
    ):
        both.sent_by("nccl")
    with pytest.raises(InputError, match=r"no operations of nccl, none"):
        both.model_copy(update={"collectives": []}).sent_by("nccl")
