"""The container recipes: what they name is there, and both install alike.

They are built by hand (docs/clusters.md says when and with what): a build takes minutes, and needs
Debian's packages.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTAINERS = ROOT / "containers"
RECIPE = (CONTAINERS / "Containerfile").read_text()
DEFINITION = (CONTAINERS / "calib.def").read_text()


def section(name: str) -> str:
    """The lines of a section of the definition."""
    found = re.search(rf"^%{name}\n((?:[ \t].*\n|\n)*)", DEFINITION, re.MULTILINE)
    assert found is not None, name
    return found[1]


def test_what_is_copied_is_there() -> None:
    """From the top of the repository; wheels/ is what `make wheelhouse` fills."""
    copied = re.findall(r"(?:source=|^COPY )([\w./-]+)", RECIPE, re.MULTILINE)
    copied += [line.split()[0] for line in section("files").splitlines() if line.strip()]
    assert len(copied) == 6
    for path in copied:
        assert path == "wheels" or (ROOT / path).is_file(), path
    assert "wheelhouse: WHEELS := $(or $(WHEELS),wheels)" in (ROOT / "Makefile").read_text()


def test_both_have_the_same_defaults() -> None:
    of_recipe = dict(re.findall(r"^ARG (\w+)=(?:docker.io/library/)?(\S+)", RECIPE, re.MULTILINE))
    assert of_recipe == dict(re.findall(r"^ +(\w+)=(\S+)$", section("arguments"), re.MULTILINE))
    assert of_recipe.keys() == {"BASE", "EXTRAS"}
    path = re.compile(r"PATH=/opt/calib/bin:\$PATH CALIB_CACHE=/opt/calib/cache")
    assert path.search(RECIPE) and path.search(section("environment"))


@pytest.mark.parametrize(
    "script",
    [(CONTAINERS / "install.sh").read_text(), section("post"), section("runscript")],
    ids=["install.sh", "%post", "%runscript"],
)
def test_scripts_are_read_by_the_shell(script: str) -> None:
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_no_python_package_comes_from_an_index() -> None:
    script = (CONTAINERS / "install.sh").read_text().replace("\\\n", "")
    installs = [line for line in script.splitlines() if "pip install" in line]
    assert installs and all("--no-index --find-links" in line for line in installs)
    assert not re.search(r"pip3? install", RECIPE + section("post"))
