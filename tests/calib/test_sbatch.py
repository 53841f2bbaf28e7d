"""The batch script: bash runs it, sbatch reads it, and mistakes are told before it is submitted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.helpers.words import words_of
from typer.exceptions import TyperException

from calib.commands.sbatch import TASK, command, first_task, rank_line, require_going_on, script
from calib.foundation.errors import FileError, InputError

SHOW = "import json, os, sys; print(json.dumps([os.getcwd(), *sys.argv[1:]]))"


def bash(text: str, folder: Path, submitted_from: Path | None) -> subprocess.CompletedProcess[str]:
    """Run a script as slurmd does: from a spool directory, told where it was submitted."""
    environment = {name: text for name, text in os.environ.items() if name != "SLURM_SUBMIT_DIR"}
    if submitted_from is not None:
        environment["SLURM_SUBMIT_DIR"] = str(submitted_from)
    path = folder / "job.sh"
    path.write_text(text)
    return subprocess.run(
        ["bash", str(path)], cwd="/", env=environment, capture_output=True, text=True, check=False
    )


def test_the_script() -> None:
    """Golden, word by word."""
    line = ["/opt/a b/python", "-m", "calib", "measure", "-o", "it's", "--launcher", "slurm"]
    assert script("measure", line, {"--nodes": "2", "--partition": "gpu"}) == (
        "#!/bin/bash\n"
        "# written by `calib sbatch`; submit it from the directory it is to run in: "
        "sbatch THIS_FILE\n"
        "#SBATCH --job-name=calib-measure\n"
        "#SBATCH --nodes=2\n"
        "#SBATCH --partition=gpu\n"
        "#SBATCH --exclusive\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH --output=calib-measure-%j.log\n"
        "set -euo pipefail\n"
        'cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch}"\n'
        "# exec: Slurm's SIGTERM at the time limit reaches calib, which then keeps what it has\n"
        "exec '/opt/a b/python' -m calib measure -o 'it'\"'\"'s' --launcher slurm\n"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["calibrate", "--quick", "--name", "x y"],
            ["calibrate", "--quick", "--name", "x y", "--launcher", "slurm", "--ranks", "8"],
        ),
        (["measure", "-o", "run"], ["measure", "-o", "run", "--launcher", "slurm", "--ranks", "8"]),
        # by the ranks of the plan that is there: measure refuses others
        (
            ["measure", "-o", "run", "--resume"],
            ["measure", "-o", "run", "--resume", "--launcher", "slurm"],
        ),
        # the ranks of a training are its p
        (
            ["train", "--model", "vgg16-mini", "-p", "4"],
            ["train", "--model", "vgg16-mini", "-p", "4", "--launcher", "slurm"],
        ),
    ],
)
def test_the_verb_runs_under_srun(words: list[str], line: list[str]) -> None:
    assert rank_line(words[0], words[1:], 8) == [sys.executable, "-m", "calib", *line]


@pytest.mark.parametrize("verb", ["fit", "report", "predict", "sbatch", "nothing", ""])
def test_verbs_without_ranks_are_refused(verb: str) -> None:
    with pytest.raises(InputError, match="is no verb that starts ranks; those are doctor, probe"):
        rank_line(verb, [], 1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--launcher", "local"], "--launcher"),
        (["--launcher", "slurm"], "--launcher"),
        (["-n", "2"], "--ranks"),
        (["--ranks", "1"], "--ranks"),
    ],
)
def test_options_that_the_script_sets_are_refused(options: list[str], named: str) -> None:
    with pytest.raises(InputError, match=rf"{named} is not given after --: .* on .* = 6 ranks"):
        rank_line("calibrate", options, 6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["measure", "-o", "x", "--quik"], "No such option"),
        (["measure"], "'--output'|output"),
        (["train", "--model", "x", "-p", "four"], "four|-p"),
        (["probe", "more"], "more"),
    ],
)
def test_mistakes_are_told_now_and_not_by_the_job(words: list[str], said: str) -> None:
    with pytest.raises(TyperException) as caught:
        rank_line(words[0], words[1:], 1)
    assert any(part in caught.value.format_message() for part in said.split("|"))


@settings(max_examples=20)
@given(words=st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")))))
def test_bash_gives_the_words_back(
    words: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, there = tmp_path_factory.mktemp("spool"), tmp_path_factory.mktemp("sub mit")
    line = [sys.executable, "-c", SHOW, *words, "$HOME", "a b", "'", "*"]
    done = bash(script("probe", line, {}), folder, there)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [str(there), *words, "$HOME", "a b", "'", "*"]


def test_the_script_fails_where_calib_fails(tmp_path: Path) -> None:
    line = [sys.executable, "-c", "raise SystemExit(3)"]
    assert bash(script("probe", line, {}), tmp_path, tmp_path).returncode == 3
    alone = bash(script("probe", line, {}), tmp_path, None)
    assert alone.returncode != 0 and "submit this script with sbatch" in alone.stderr
    gone = bash(script("probe", line, {}), tmp_path, tmp_path / "gone")
    assert gone.returncode not in (0, 3), "it does not run elsewhere"


@pytest.mark.parametrize("value", ["", "a b", "a\n#SBATCH --qos=high", "'a'", "a#b", "a\\", "\x07"])
def test_values_that_are_not_one_word_are_refused(value: str) -> None:
    with pytest.raises(InputError, match=r"--partition .* is not one plain word"):
        script("probe", ["x"], {"--partition": value})


def test_words_with_a_line_break_are_refused() -> None:
    with pytest.raises(InputError, match="line break"):
        rank_line("probe", ["--name", "a\nb"], 1)


def written(path: Path, *words: str, **options: object) -> str:
    """What the verb writes with its defaults but for `options`."""
    defaults: dict[str, object] = {
        "nodes": 1,
        "ranks_per_node": 1,
        "minutes": None,
        "partition": None,
        "account": None,
        "gpus_per_node": None,
        "array": None,
        "requeue": None,
        "pmi": "pmi2",
    }
    command(list(words), path, **{**defaults, **options})
    return path.read_text()


def test_written_whole_and_executable(tmp_path: Path) -> None:
    path = tmp_path / "new" / "job.sh"
    text = written(
        path,
        "probe",
        nodes=2,
        ranks_per_node=4,
        minutes=90,
        partition="p",
        account="a",
        gpus_per_node=4,
    )
    assert os.access(path, os.X_OK)
    directives = [line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH")]
    assert directives == words_of(
        "--job-name=calib-probe --nodes=2 --ntasks-per-node=4 --time=90 --partition=p "
        "--account=a --gpus-per-node=4 --exclusive --open-mode=append --output=calib-probe-%j.log"
    )
    assert text.endswith("-m calib probe --launcher slurm --ranks 8\n")
    plain = written(path, "probe")
    assert [line for line in plain.splitlines() if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=calib-probe",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=calib-probe-%j.log",
    ]


def test_nothing_is_written_where_something_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    for words, options in ((["fit"], {}), (["probe"], {"account": "a b"})):
        with pytest.raises(InputError):
            written(path, *words, **options)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError):
        written(tmp_path / "file" / "job.sh", "probe")


def test_the_verb_after_two_dashes(tmp_path: Path) -> None:
    """As typed: -o before the dashes is the script, after them the run."""
    words = ["-o", "job.sh", "--nodes", "3", "--", "measure", "-o", "run"]
    done = calib(tmp_path, "sbatch", *words)
    assert done.returncode == 0 and "sbatch job.sh" in done.stderr, done.stderr
    text = (tmp_path / "job.sh").read_text()
    assert text.endswith("calib measure -o run --launcher slurm --ranks 3\n")
    assert "No such option" in refused(calib(tmp_path, "sbatch", "--", "measure", "--quik"))
    assert "is no verb that starts ranks" in refused(calib(tmp_path, "sbatch", "--", "fit", "x"))


# job arrays


@pytest.mark.parametrize("array", ["0-3", "1-8%2", "0-15:4", "7", "1,3,5-9", "1-3,8-9%4"])
def test_numbers_of_an_array(array: str) -> None:
    assert first_task(array, ["-o", f"runs/{TASK}"]) == array[0]


@pytest.mark.parametrize(
    "array", ["", "a", "-1", "1-", "1--3", "1 2", "1-3%", "%2", "1,,2", "{task}"]
)
def test_what_is_no_list_of_numbers_is_refused(array: str) -> None:
    with pytest.raises(InputError, match="is no list of numbers"):
        first_task(array, [TASK])


def test_tasks_write_to_places_of_their_own() -> None:
    assert first_task(None, ["-o", "runs/all"]) is None
    with pytest.raises(InputError, match="would write to one place"):
        first_task("1-8", ["-o", "runs/all"])
    with pytest.raises(InputError, match="give --array"):
        first_task(None, ["-o", f"runs/{TASK}"])


@settings(max_examples=20)
@given(words=st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")))))
def test_a_task_has_its_own_words(
    words: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is around the number; bash splits nothing at it."""
    folder = tmp_path_factory.mktemp("spool")
    words = [*words, TASK, f"it's {TASK} of 'x' {TASK}", ""]
    text = script("probe", [sys.executable, "-c", SHOW, *words], {"--array": "1-8"})
    path = folder / "job.sh"
    path.write_text(text)
    done = subprocess.run(
        ["bash", str(path)],
        env={**os.environ, "SLURM_SUBMIT_DIR": str(folder), "SLURM_ARRAY_TASK_ID": "5"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [str(folder), *(word.replace(TASK, "5") for word in words)]
    assert "#SBATCH --array=1-8\n" in text
    assert "#SBATCH --output=calib-probe-%A_%a.log\n" in text


def test_words_with_a_number_are_parsed_in_the_first_task() -> None:
    words = ["--quick", "--seed", TASK, "-o", f"runs/{TASK}"]
    assert rank_line("calibrate", words, 2, task="3")[4:8] == words[:4]
    with pytest.raises(TyperException, match="int"):
        rank_line("calibrate", ["--seed", f"x{TASK}"], 2, task="3")


# jobs that go on in the next


@pytest.mark.parametrize(
    ("verb", "words", "minutes", "said"),
    [
        ("nightly", [], 60, "is for calibrate and measure"),
        ("calibrate", ["--quick"], None, "needs -o RUN"),
        ("measure", ["-o", "run"], 4, "give --time 5 or more"),
    ],
)
def test_what_would_not_go_on_is_refused(
    verb: str, words: list[str], minutes: int | None, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        require_going_on(verb, words, None, minutes)


def requeued(folder: Path, program: str, signals: str, restarts: int, nodes: str = "idle") -> str:
    """What a script with one more start does: its exit status and what it told scontrol.

    `signals` are sent to bash once `program` runs; scontrol and sinfo only say so, or `nodes`.
    """
    for name, text in (("scontrol", 'echo scontrol "$@"'), ("sinfo", f"echo '{nodes}'")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    ready = folder / "ready"
    text = script("measure", [sys.executable, "-c", program.format(ready=ready)], {}, 1)
    (folder / "job.sh").write_text(text)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NODELIST": "h[0-1]",
        "SLURM_RESTART_COUNT": str(restarts),
    }
    with subprocess.Popen(
        ["bash", str(folder / "job.sh")], env=environment, stdout=subprocess.PIPE, text=True
    ) as job:
        until = monotonic() + 30
        while signals and not ready.exists() and monotonic() < until:
            sleep(0.01)
        for name in signals.split():
            job.send_signal(getattr(signal, name))
        said, _ = job.communicate(timeout=30)
    return f"{job.returncode} {said}".strip()


# ends with 2 when it is told to, as calib does
WAITS = """
import signal, sys, time, pathlib
signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
pathlib.Path("{ready}").touch()
time.sleep(30)
"""
AGAIN = "scontrol requeue 12"


@pytest.mark.parametrize(
    ("program", "signals", "restarts", "nodes", "done"),
    [
        ("", "", 0, "idle", "0"),
        ("raise SystemExit(2)", "", 0, "alloc", "2"),
        (WAITS, "SIGUSR1", 0, "alloc", f"2 {AGAIN}"),
        # a node of the job is gone, or was only drained by somebody
        ("raise SystemExit(2)", "", 0, "alloc\nalloc*", f"2 {AGAIN}"),
        ("raise SystemExit(2)", "", 0, "down", f"2 {AGAIN}"),
        ("raise SystemExit(2)", "", 0, "drng", "2"),
        ("raise SystemExit(2)", "", 1, "down*", "2"),
        ("", "", 0, "down*", "0"),
    ],
)
def test_when_a_job_goes_on_in_the_next(
    program: str, signals: str, restarts: int, nodes: str, done: str, tmp_path: Path
) -> None:
    assert requeued(tmp_path, program, signals, restarts, nodes) == done


def test_the_options_of_a_job_that_goes_on(tmp_path: Path) -> None:
    text = written(tmp_path / "job.sh", "measure", "-o", "run", requeue=3, minutes=30)
    directives = [line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH")]
    assert directives[-2:] == ["--requeue", "--signal=B:USR1@60"]
    assert "${SLURM_RESTART_COUNT:-0} < 3" in text
    with pytest.raises(InputError, match="needs -o RUN"):
        written(tmp_path / "job.sh", "calibrate", requeue=3)


def test_ranks_that_are_started_by_pmix(tmp_path: Path) -> None:
    text = written(tmp_path / "job.sh", "probe", nodes=2, pmi="pmix")
    assert text.endswith("-m calib probe --launcher slurm-pmix --ranks 2\n")
