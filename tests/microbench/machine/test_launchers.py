"""Launch lines: words without a shell, and one line for what is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import calib.microbench.machine.launchers
from calib.foundation.errors import InputError, MachineError
from calib.microbench.machine.launchers import find_mpiexec, launch_line, passing_on


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with mpiexec, srun and ssh, inside a Slurm allocation."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    found = {name: f"/opt/{name}" for name in ("srun", "ssh", "my launcher")}
    monkeypatch.setattr(calib.microbench.machine.launchers, "find_mpiexec", lambda: "/opt/mpiexec")
    monkeypatch.setattr(calib.microbench.machine.launchers.shutil, "which", found.get)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("local", ["/opt/mpiexec", "-n", "3"]),
        ("slurm", ["/opt/srun", "--mpi=pmi2", "-K", "-I30", "-n", "3"]),
        ("slurm-pmix", ["/opt/srun", "--mpi=pmix", "-K", "-I30", "-n", "3"]),
        ("mpiexec -n {n} -hosts a,b", ["/opt/mpiexec", "-n", "3", "-hosts", "a,b"]),
        ("srun -n{n} --ntasks={n}", ["/opt/srun", "-n3", "--ntasks=3"]),
        ("'my launcher' --np \"{n} ranks\"", ["/opt/my launcher", "--np", "3 ranks"]),
        # what a shell would expand, run or glob is passed on as it stands
        (
            "ssh {n} $HOME `id` ; rm * | cat > x && y",
            ["/opt/ssh", "3", "$HOME", "`id`", ";", "rm", "*", "|", "cat", ">", "x", "&&", "y"],
        ),
    ],
)
@pytest.mark.usefixtures("programs")
def test_words(profile: str, words: list[str]) -> None:
    assert launch_line(profile, 3) == words


@pytest.mark.parametrize("profile", ["pbs", "mpiexec -n 2", "", "{}", "{m}", "Local"])
def test_unknown_profiles_are_refused(profile: str) -> None:
    with pytest.raises(InputError, match="neither one of local, slurm, slurm-pmix nor a template"):
        launch_line(profile, 2)


@pytest.mark.parametrize("profile", ["mpiexec -n {n} 'open", 'mpiexec "{n}', "mpiexec {n} \\"])
def test_templates_that_cannot_be_read_are_refused(profile: str) -> None:
    with pytest.raises(InputError, match=r"No (closing quotation|escaped character)"):
        launch_line(profile, 2)


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calib.microbench.machine.launchers.shutil, "which", lambda _: None)
    monkeypatch.setattr(calib.microbench.machine.launchers, "find_mpiexec", lambda: None)
    with pytest.raises(MachineError, match="no mpiexec on this machine; install the mpich wheel"):
        launch_line("local", 2)
    with pytest.raises(MachineError, match="no srun on this machine; is it on PATH"):
        launch_line("slurm", 2)
    with pytest.raises(MachineError, match="no 2 on this machine"):
        launch_line("{n}", 2)


@pytest.mark.usefixtures("programs")
def test_slurm_outside_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """srun would queue for every launch; a template of the user's own may do so."""
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(MachineError, match="inside an allocation") as caught:
        launch_line("slurm", 3)
    assert caught.value.wants == "allocation"
    assert launch_line("srun -n {n}", 3) == ["/opt/srun", "-n", "3"]


@given(profile=st.text(st.characters(exclude_characters="\0"), max_size=30))
def test_any_text_gives_words_or_one_line(profile: str) -> None:
    for template in (profile, profile + " {n}", "{n}" + profile):
        try:
            words = launch_line(template, 2)
        except (InputError, MachineError) as error:
            assert len(str(error).splitlines()) == 1
        else:
            assert words and Path(words[0]).exists()


def test_mpiexec_beside_python_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's mpiexec fits the wheel's library; another MPI's on PATH does not."""
    for folder in ("venv", "path"):
        (tmp_path / folder).mkdir()
    on_path = tmp_path / "path" / "mpiexec"
    on_path.write_text("#!/bin/sh\n")
    on_path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_mpiexec() == str(on_path)
    beside = tmp_path / "venv" / "mpiexec"
    beside.write_text("#!/bin/sh\n")
    beside.chmod(0o644)
    assert find_mpiexec() == str(on_path), "what cannot be run is not taken"
    beside.chmod(0o755)
    assert find_mpiexec() == str(beside)
    beside.unlink()
    on_path.unlink()
    assert find_mpiexec() is None


@pytest.mark.parametrize(
    ("name", "version", "added"),
    [
        ("mpirun", "mpirun (Open MPI) 4.1.4", True),
        ("mpiexec", "mpiexec (Open MPI) 5.0.5", True),
        ("mpirun.openmpi", "mpirun.openmpi (OpenRTE) 4.1.4", True),
        ("mpiexec", "HYDRA build details:", False),
        ("srun", "Open MPI", False),
    ],
)
def test_open_mpi_is_told_which_variables_to_pass_on(
    name: str, version: str, added: bool, tmp_path: Path
) -> None:
    """Its words as Debian's 4.1.4 says them; also where another program starts it."""
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    line = ["nice", "-n", "1", str(program), "--host", "a,b", "-n", "2"]
    more = ["-x", "A", "-x", "B"] if added else []
    assert passing_on(line, ["A", "B"]) == [*line[:4], *more, *line[4:]]


def test_a_program_that_says_nothing_is_not_open_mpi(tmp_path: Path) -> None:
    line = [str(tmp_path / "mpirun"), "-n", "2"]
    assert passing_on(line, ["A"]) == line
