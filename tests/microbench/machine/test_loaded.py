"""What loaded libraries say of themselves: small ones, compiled here, in a process of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from calib.microbench.machine.loaded import loaded_files, loaded_versions

COMPILER = shutil.which("cc")
POINTED = "int {name}(int *version) {{ *version = {code}; return {status}; }}\n"
RETURNED = "#include <stddef.h>\nsize_t {name}(void) {{ return {code}; }}\n"
PROGRAM = """
import ctypes, json, sys
from calib.microbench.machine.loaded import loaded_versions
before = loaded_versions()
for path in sys.argv[1:]:
    ctypes.CDLL(path)
print(json.dumps([before, loaded_versions()]))
"""


def library(folder: Path, name: str, source: str) -> str:
    """A shared library that is compiled from C."""
    folder.mkdir(exist_ok=True)
    made = folder / name
    line = [str(COMPILER), "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)]
    subprocess.run(line, input=source, text=True, check=True)
    return str(made)


def versions(*paths: str) -> dict[str, str]:
    """What a process says that has loaded these."""
    line = [sys.executable, "-c", PROGRAM, *paths]
    before, after = json.loads(subprocess.check_output(line, text=True))
    assert before == {}, "and nothing before"
    return dict(after)


def nccl(folder: Path, code: int, status: int = 0) -> str:
    source = POINTED.format(name="ncclGetVersion", code=code, status=status)
    return library(folder, "libnccl.so.2", source)


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_each_library_is_asked(tmp_path: Path) -> None:
    cudart = "".join(
        POINTED.format(name=name, code=code, status=0)
        for name, code in (("cudaRuntimeGetVersion", 12080), ("cudaDriverGetVersion", 13010))
    )
    paths = [
        nccl(tmp_path, 23004),
        library(tmp_path, "libcudnn.so.9", RETURNED.format(name="cudnnGetVersion", code=91002)),
        library(tmp_path, "libcudart.so.12.8.90", cudart),
    ]
    assert versions(*paths) == {
        "nccl": "2.30.4",
        "cudnn": "9.10.2",
        "cuda_runtime": "12.8",
        "cuda_driver": "13.1",
    }
    assert versions(paths[0]) == {"nccl": "2.30.4"}


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize(
    ("code", "status", "found"), [(2804, 0, "2.8.4"), (21805, 0, "2.18.5"), (23004, 1, None)]
)
def test_numbers_of_nccl(tmp_path: Path, code: int, status: int, found: str | None) -> None:
    """Before 2.9 the second number had one digit; one that fails says nothing."""
    assert versions(nccl(tmp_path, code, status)).get("nccl") == found


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_two_releases_at_once_are_both_named(tmp_path: Path) -> None:
    """PyTorch's and another package's."""
    both = versions(nccl(tmp_path / "a", 23004), nccl(tmp_path / "b", 22907))
    assert both == {"nccl": "2.29.7, 2.30.4"}


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_a_library_without_the_function_says_nothing(tmp_path: Path) -> None:
    assert versions(library(tmp_path, "libnccl.so.2", "int other;\n")) == {}


def test_files_that_are_mapped(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r--p 00000000 00:1 1    /opt/a b/lib/libnccl.so.2\n"
        "7f01-7f02 r-xp 00001000 00:1 1    /opt/a b/lib/libnccl.so.2\n"
        "7f02-7f03 r-xp 00000000 00:1 2    /opt/libnccl.so.2.30.4\n"
        "7f03-7f04 r-xp 00000000 00:1 3    /opt/libnccl-net.so\n"
        "7f04-7f05 r-xp 00000000 00:1 4    /opt/libnccl.so.2 (deleted)\n"
        "7f05-7f06 rw-p 00000000 00:0 0    [heap]\n"
    )
    assert loaded_files("nccl", maps) == ["/opt/a b/lib/libnccl.so.2", "/opt/libnccl.so.2.30.4"]
    assert loaded_files("cudart", maps) == []
    assert loaded_versions(maps) == {}, "mapped by nobody here"
    assert loaded_files("nccl", tmp_path / "none") == []
