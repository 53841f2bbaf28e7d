"""Every target takes every parameter file that validates, or says in one line what it lacks."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from hypothesis import HealthCheck, given, settings
from tests.calib.export.made import parameter_files

from calib.export import TARGETS, target_named
from calib.export.about import WIDTH, about, lines
from calib.export.exporting import understood
from calib.export.target import Exported, ExportRequest, Source
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import InputError, MissingParameter

EXAMPLES, LEAST_WRITTEN = 40, 3
SOURCE = Source('p "<--> \x1b.json', "sha256:" + "ab" * 32, edited=True)
A_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)", re.I)
# what a format says with -1: any, or the default (formats.md)
MINUS_ONE = {"nccl-tuner", "calculon"}


def values(name: str, text: str) -> Iterator[str]:
    """Everything in a file that may be a number, as text; comments left out."""
    if name.endswith(".json"):
        yield from leaves(json.loads(text, parse_float=str, parse_int=str, parse_constant=str))
    elif name.endswith(".xml"):
        for element in ElementTree.fromstring(text).iter():
            for value in element.attrib.values():
                yield from re.split(r"[:;,]", value)
    elif name.endswith(".csv"):
        for row in csv.reader(io.StringIO(text)):
            yield from row
    else:
        for line in text.splitlines():
            if not line.lstrip().startswith("#"):
                yield from re.split(r"[\s,=:\[\]]+", line)


def leaves(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        for item in content:
            yield from leaves(item)
    elif isinstance(content, str):
        yield content


def check_file(target: str, name: str, text: str) -> None:
    """Every number is finite and not negative, with a decimal point."""
    assert text.endswith("\n")
    numbers = [value for value in values(name, text) if A_NUMBER.fullmatch(value)]
    for value in numbers:
        number = float(value)
        assert math.isfinite(number), f"{target} {name}: {value}"
        allowed = number == -1 and target in MINUS_ONE
        assert number >= 0 or allowed, f"{target} {name}: {value}"


def exported(target: str, parameters: Parameters) -> tuple[ExportRequest, Exported] | None:
    """None where it is refused, in one line that says enough."""
    module = target_named(target)
    request = understood(module, ExportRequest(parameters, SOURCE))
    try:
        return request, module.export(request)
    except (MissingParameter, InputError) as error:
        message = str(error)
        assert len(message.splitlines()) == 1 and 20 < len(message) < 600
        assert "nan" not in message.split()
        return None


def test_any_file_that_validates() -> None:
    written: Counter[str] = Counter()

    @given(parameters=parameter_files())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    def check(parameters: Parameters) -> None:
        for target in TARGETS:
            found = exported(target, parameters)
            if found is not None:
                written[target] += 1
                check_export(target, *found)

    check()
    # else the files above lack what a target needs, and nothing was tested
    assert all(written[target] >= LEAST_WRITTEN for target in TARGETS), written


def check_export(target: str, request: ExportRequest, result: Exported) -> None:
    module = target_named(target)
    assert result.files and result.holds_for
    for name, text in result.files.items():
        check_file(target, name if module.DIRECTORY else module.FILENAME + name, text)
    for collapse in result.collapses:
        assert 0 <= collapse.mean_error <= collapse.worst_error < math.inf, (target, collapse)
    json.dumps(about(target, request, result), allow_nan=False)
    for line in lines(target, request, result):
        assert line.isascii() and line.isprintable() and len(line) <= WIDTH and "--" not in line
