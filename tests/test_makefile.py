"""The Makefile's set-up: what is there stays until another choice is typed.

make and the Makefile are real; the interpreters are stand-ins, as a real set-up takes minutes. A set-up
without an index is real: this Python is the site's, and has all that calib needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.helpers.words import words_of

ROOT = Path(__file__).parents[1]
# what `make test PYTHON=...` hands down to every make below it
TYPED = set(
    words_of(
        "MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES PYTHON MPI GPU CONSTRAINTS WHEELS WITHOUT FOR OUT ARGS"
    )
)
# says what it is asked to do, and makes a .venv whose interpreter is itself
PYTHON = """#!/bin/sh
echo "$(basename "$0") $*" >>log
if [ "$1 $2" = "-m venv" ]; then
  rm -rf .venv && mkdir -p .venv/bin .venv/lib/python3/site-packages && cp "$0" .venv/bin/python
fi
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tmp_path / name)
    for name in ("one", "two"):
        (tmp_path / name).write_text(PYTHON)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run_make(cwd: Path, *arguments: str, **variables: str) -> str:
    """What `make ARGUMENTS` prints."""
    environment = {name: value for name, value in os.environ.items() if name not in TYPED}
    command = ["make", "-s", *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env={**environment, **variables},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout


def make(cwd: Path, *arguments: str, **variables: str) -> list[str]:
    """What the interpreters were asked to do by `make ARGUMENTS`."""
    (cwd / "log").write_text("")
    run_make(cwd, *arguments, **variables)
    return (cwd / "log").read_text().splitlines()


def driver(cwd: Path, printed: str) -> dict[str, str]:
    """The PATH of a machine whose nvidia-smi prints this."""
    (cwd / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    (cwd / "nvidia-smi").chmod(0o755)
    return {"PATH": f"{cwd}:{os.environ['PATH']}"}


def test_a_set_up_stays(here: Path) -> None:
    said = make(here, "setup", "PYTHON=./one", "GPU=no")
    assert "one -m venv --clear .venv" in said
    assert said[-3].endswith("-e .[dev,mpich]")
    assert said[-2].startswith("python -m compileall -q ")
    assert said[-1] == "python -m calib.training.models.specs"
    assert make(here, "setup") == make(here, "setup", "PYTHON=./one") == []
    # packages of another version: the same interpreter, no new .venv
    os.utime(here / "pyproject.toml", (2e9, 2e9))
    said = make(here, "setup")
    assert said and all(line.startswith(("one -c", "python -m")) for line in said)


def test_another_choice_is_another_set_up(here: Path) -> None:
    make(here, "setup", "PYTHON=./one", "GPU=no")
    said = make(here, "setup", "MPI=system")
    assert "one -m venv --clear .venv" in said and said[-3].endswith("-e .[dev]")
    assert make(here, "setup") == []
    said = make(here, "setup", "GPU=yes", **driver(here, ""))
    assert "one -m venv --clear .venv" in said and said[-3].endswith("-e .[dev,gpu]")
    assert "-c constraints/gpu.txt" in said[-3]
    assert "two -m venv --clear .venv" in make(here, "setup", "PYTHON=./two")
    make(here, "clean")
    assert "two -m venv --clear .venv" not in make(here, "setup", "PYTHON=./one")


def test_a_choice_is_kept_where_the_set_up_broke_off(here: Path) -> None:
    """pip lost its network after the .venv was made: the next try takes the same interpreter."""
    make(here, "setup", "PYTHON=./one", "GPU=no")
    (stamp,) = (here / ".venv").glob(".set-up-*")
    stamp.unlink()
    assert "one -m venv --clear .venv" in make(here, "setup")


@pytest.mark.parametrize(
    ("printed", "pins", "extras"),
    [
        (r"580.159.04\n580.159.04\n", "gpu.txt", "dev,mpich,gpu"),
        (r"575.57.08\n", "gpu-cu12.txt", "dev,mpich,gpu"),
        (r"NVIDIA-SMI has failed\n", "cpu.txt", "dev,mpich"),
        ("", "cpu.txt", "dev,mpich"),
    ],
)
def test_the_driver_chooses_the_packages(here: Path, printed: str, pins: str, extras: str) -> None:
    said = make(here, "setup", "PYTHON=./one", **driver(here, printed))
    assert said[-3].endswith(f"-c constraints/{pins} --no-build-isolation -e .[{extras}]")


@pytest.mark.parametrize("name", ["cpu", "gpu", "gpu-cu12"])
def test_constraints_pin_and_each_pins_more_than_the_cpu_s(name: str) -> None:
    lines = (ROOT / f"constraints/{name}.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith(("#", "-"))]
    assert all(line.count("==") == 1 for line in pins)
    assert name == "cpu" or "-c cpu.txt" in lines
    assert not [line for line in pins if "cupy" in line]


WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# the build back end of a project: what it requires, and an empty wheel of it
BACK_END = """
from pathlib import Path
from zipfile import ZipFile

METADATA = (
    "Metadata-Version: 2.1\\nName: some\\nVersion: 1\\nProvides-Extra: test\\n"
    "Requires-Dist: outer\\nRequires-Dist: inner; extra == 'test'\\n"
)
WHEEL = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    made = Path(folder, "some-1.dist-info")
    made.mkdir()
    (made / "METADATA").write_text(METADATA)
    return made.name

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "some-1-py3-none-any.whl"
    with ZipFile(Path(folder, name), "w") as made:
        for file, text in (("METADATA", METADATA), ("WHEEL", WHEEL), ("RECORD", "")):
            made.writestr(f"some-1.dist-info/{file}", text)
    return name
"""


def wheel(folder: Path, name: str, *requires: str) -> None:
    """Make an empty wheel of a package."""
    with ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as made:
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1"]
        lines += [f"Requires-Dist: {other}" for other in requires]
        made.writestr(f"{name}-1.dist-info/METADATA", "\n".join(lines) + "\n")
        made.writestr(f"{name}-1.dist-info/WHEEL", WHEEL)
        made.writestr(f"{name}-1.dist-info/RECORD", "")


def offline(index: Path) -> dict[str, str]:
    """Variables for a pip whose only index is a folder, and which nobody configured."""
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def test_a_wheelhouse_lacks_what_the_site_has_and_what_only_that_needs(here: Path) -> None:
    pytest.importorskip("pip")
    index = here / "index"
    index.mkdir()
    for name, *requires in (
        ("hatchling",),
        ("editables",),
        ("outer", "big-torch", "shared"),
        ("inner",),
        ("shared",),
        ("big_torch", "shared", "nvidia-all"),
        ("nvidia_all",),
    ):
        wheel(index, name, *requires)
    (here / "backend.py").write_text(BACK_END)
    (here / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (here / "pins.txt").write_text("-c more.txt\nouter==1\n")
    (here / "more.txt").write_text("Big.Torch==1\n")
    choices = [
        "FOR=3.12",
        "GPU=no",
        "MPI=system",
        "CONSTRAINTS=pins.txt",
        f"PYTHON={sys.executable}",
    ]
    said = run_make(here, "wheelhouse", *choices, "WITHOUT=big-torch,cupy", **offline(index))
    assert "cupy is not needed here anyway" in said
    found = {path.name.split("-")[0] for path in (here / "wheels").iterdir()}
    assert found == {"hatchling", "editables", "outer", "inner", "shared", "some"}
    assert not (here / "wheels.new").exists()
    run_make(here, "wheelhouse", *choices, "WHEELS=all", **offline(index))
    assert len(list((here / "all").iterdir())) == 8


def test_a_set_up_from_a_folder_takes_what_the_site_has(here: Path) -> None:
    """Neither an index nor a constraint: the site's own versions stay."""
    said = make(here, "setup", "PYTHON=./one", "GPU=yes", f"WHEELS={here}")
    assert "one -m venv --clear --system-site-packages --without-pip .venv" in said
    pip = f"python -m pip install --quiet --no-index --find-links {here}"
    assert said[-4] == f"{pip} hatchling editables"
    assert said[-3] == f"{pip} --no-build-isolation -e .[test,mpich,gpu]"
    assert make(here, "setup") == []
    assert "one -m venv --clear .venv" in make(here, "setup", "WHEELS=")
    with pytest.raises(subprocess.CalledProcessError):
        run_make(here, "setup", "WHEELS=nowhere")


def test_a_set_up_without_an_index_on_a_venv_s_python(here: Path) -> None:
    """The site's Python is this one, of a venv; the only wheel is of a package that it lacks."""
    for name in ("pip", "hatchling", "editables"):
        pytest.importorskip(name)
    for name in ("src", "calib", "README.md", "LICENSE"):
        (here / name).symlink_to(ROOT / name)
    project = here / "pyproject.toml"
    project.write_text(
        project.read_text().replace('"filelock>', '"only-in-the-wheels", "filelock>')
    )
    (here / "wheels").mkdir()
    wheel(here / "wheels", "only_in_the_wheels")
    variables = {**offline(here / "wheels"), "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    choices = [f"PYTHON={sys.executable}", "WHEELS=wheels", "GPU=no", "MPI=system"]
    run_make(here, "setup", *choices, **variables)
    listed = subprocess.run(
        [here / ".venv/bin/python", "-m", "pip", "freeze", "--local", "--exclude-editable"],
        env={**os.environ, **variables},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout
    assert "only-in-the-wheels==1" in listed.replace("_", "-") and "torch" not in listed
    subprocess.run([here / ".venv/bin/calib", "--version"], check=True, cwd=here)
