"""What mends an error: every want of the rooms below has its words, and they name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.calib.inside import calib, options
from tests.calib.running import refused

from calib.advice import WORDS, advised, words_of
from calib.foundation.errors import InputError
from calib.microbench.importers.said import UNSAID

ROOT = Path(__file__).parents[2]
ROOMS = ("foundation", "microbench", "fitting", "oracle", "search", "training", "reports")
# with a name in it (oracle/costs/in_place.py)
NAMED = ("execution bfloat16+channels_last",)
# of an imported table whose rows do not say their case
CASE = ("model", "strategy", "p", "batch")
SAID = {
    want
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    for want in re.findall(r'\bwants ?= ?"([^"]+)"', path.read_text())
}


@pytest.mark.parametrize("want", sorted({*WORDS, *SAID, *UNSAID, *CASE, *NAMED}))
def test_words_name_verbs_and_options_that_there_are(want: str) -> None:
    line = advised(InputError("it cannot be", want))
    assert line == f"it cannot be; {words_of(want)}"
    verb = re.search(r"`calib ([a-z-]+)", line)
    taken = options()[verb[1]] if verb else {x for each in options().values() for x in each}
    named = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", line)
    assert (verb or named) and set(named) <= taken


def test_no_words_are_left_over() -> None:
    assert set(WORDS) <= {*SAID, *CASE}
    assert advised(InputError("it cannot be")) == "it cannot be"


def test_an_error_is_printed_with_its_advice(tmp_path: Path) -> None:
    line = refused(calib(tmp_path, "fit", "run", "-o", "parameters.json"))
    assert line == "run directory run does not exist; `calib measure -o RUN` makes one"
