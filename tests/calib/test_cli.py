"""The command line, frozen: verbs, options, imports, and one line for every mistake."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Any

import pytest
from tests.calib import inside
from tests.calib.running import calib, refused
from tests.helpers.words import words_of
from tests.oracle.handmade import machine, mlp
from tests.training.launching import completed, python

from calib import __version__, app
from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division
from calib.oracle.predict import project
from calib.oracle.projection import PHASES

# issue 2: "one file per verb", in the order of the pipeline; each with its options
FROZEN = """
doctor: --watch --ranks --device --launcher --output --json
probe: --output --name --ranks --device --launcher --topology --json
plan: --plan --models --strategies -p --ranks --batch-per-rank --batch --segments --libraries
    --device --execution --sparse --shares --partitions --budget --quick --seed --cluster --measured
    --output --cases --json
measure: --output --plan --resume --models --batch-per-rank -p --ranks --launcher --budget
    --device --execution --env --seed --quick --hang-seconds --json
cluster:
import: --output --operation --ranks --nodes --device-name --library --cluster --name
    --algorithm --protocol --size-unit --time-unit --keep-going --json
compare: --across --output --json
fit: --output --json
show: --layers --collectives --plot --run --json
check: --max-age-days --json
diff: --across --json
parameters:
schema: --list --all --output
export: --to --output --ranks --bytes --nodes --cluster --library --execution --topology
    --calls --list --json
env: --parameters --ranks --json
explain: --model --parameters --strategy --overlap --batch-per-rank --batch --inner
    --optimizer --execution --plot --timeline --json
collective: -p --nodes --ranks-per-node --bytes --library --device --against --parameters --csv
    --plot --json
predict: --model --strategy -p --inner --segments --schedule --boundaries --grid --split-until
    --overlap --sharded-optimizer --sequence-parallel --accumulate --optimizer --execution
    --samples --library --form --set
    --batch-per-rank --batch-per-node --batch --parameters --output --csv --plot --chakra --explain
    --json
sweep: --models --strategies -p --inner --segments --schedule --boundaries --grid --split-until
    --overlap --sharded-optimizer --sequence-parallel --accumulate --optimizer --execution
    --samples --form --set
    --batch-per-rank --batch-per-node --batch --parameters --output
search: --model --space --method --cluster --memory --batch --batch-per-rank --budget
    --evaluations --option --optimizer --execution --seed --form --set --parameters --nominal --output
    --plot --list --json
model:
replay: --authors --holdout --logs --known --epochs --model --single-gpu --links --ranks-per-node
    --segments --samples --output --json
train: --model --strategy -p --batch-per-rank --batch --accumulate --groups --inner --segments --schedule
    --boundaries --grid --split-until --overlap --sharded-optimizer --sequence-parallel --gradients
    --plan --backend --execution --optimizer --sync-batch-norm --ddp --iterations --precision --trace
    --seed --output --launcher --env --hang-seconds --input --outputs --loss --train-function --json
import-run: --output --model --strategy -p --batch --inner --segments --warmup --optimizer
    --execution --library --name --json
report: --output --parameters --csv --markdown --junit --least-accuracy --history --no-history
    --since --baseline --json
history: --history --nights --since --until --machine --csv --openmetrics --json
calibrate: --output --quick --models --strategies --batch-per-rank --ranks --launcher --budget
    --precision --iterations --device --libraries --execution --env --name --seed --json
nightly: --calibration --plan --output --iterations --check-budget --ranks --launcher --name
    --seed --hang-seconds --least-accuracy --history --since --baseline --accept --night --json
sbatch: --output --nodes --ranks-per-node --time --partition --account --gpus-per-node --array
    --requeue --pmi
kube: --output --nodes --ranks-per-node --gpus-per-node --resource --time --image --claim
    --job-name
"""
OPTIONS = {
    verb: set(words.split())
    for verb, words in re.findall(r"^(\S+):((?:.|\n )*)", FROZEN, re.MULTILINE)
}
VERBS = list(OPTIONS)
NET = mlp([12, 8, 3])
HEAVY = set(words_of("torch mpi4py scipy pyarrow plotly pandas numpy jinja2 psutil sqlalchemy"))


# verbs of one look at a file or a table of predictions: they start in a moment
LIGHT = set(
    words_of("env show check parameters schema collective predict sweep search model sbatch kube")
)
# what verbs that measure, fit or report import as a matter of course; scikit-learn imports pandas
NUMERIC = {"numpy", "scipy", "pyarrow", "psutil", "sqlalchemy", "pandas"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """parameters.json and model.json of a hand-made machine and model."""
    machine().write(tmp_path / "parameters.json")
    NET.write(tmp_path / "model.json")
    return tmp_path


PREDICT = tuple(words_of("predict --model model.json --strategy data --parameters parameters.json"))


# what stands in --help


def test_help_lists_exactly_the_verbs(tmp_path: Path) -> None:
    done = calib(tmp_path, "--help")
    assert done.returncode == 0 and done.stderr == ""
    commands = done.stdout.split("Commands:\n")[1]
    assert re.findall(r"^  (\S+)", commands, flags=re.MULTILINE) == VERBS
    assert "..." not in commands  # each line is whole


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_listed_by_the_first_line_of_its_docstring(verb: str) -> None:
    name = verb.replace("-", "_") + "_" * iskeyword(verb)
    found = find_spec(f"calib.commands.{name}")
    assert found is not None and found.origin is not None
    docstring = ast.get_docstring(ast.parse(Path(found.origin).read_text()))
    assert docstring is not None and docstring.splitlines()[0] == app.VERBS[verb]


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb(tmp_path: Path, verb: str) -> None:
    """Its options are frozen: a new one is added here, none is lost by accident."""
    done = inside.calib(tmp_path, verb, "--help", COLUMNS="200")
    assert done.returncode == 0 and done.stderr == ""
    assert re.search(rf"Examples?: calib {verb}", " ".join(done.stdout.split()))
    options = done.stdout.split("Options:\n")[1].split("Commands:\n")[0]
    found = set(re.findall(r"^  (?:-\w, )?(--?[\w-]+)", options, flags=re.MULTILINE))
    assert found - {"--help"} == OPTIONS[verb]


def test_version(tmp_path: Path) -> None:
    done = calib(tmp_path, "--version")
    assert (done.returncode, done.stdout) == (0, f"calib {__version__}\n")


def test_no_arguments_shows_the_help(tmp_path: Path) -> None:
    done = calib(tmp_path)
    assert not done.stderr.startswith("calib: error: Usage:")
    assert "Commands:\n" in done.stdout + done.stderr


# heavy imports


def imported(cwd: Path, *arguments: str) -> set[str]:
    """Top-level modules that a call of the CLI has loaded at its end."""
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('|'.join(sorted(sys.modules)), file=sys.stderr))\n"
        f"sys.argv = ['calib', *{list(arguments)!r}]\n"
        "from calib.cli import main\n"
        "main()\n"
    )
    done = python(cwd, "-c", code)
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split("|")}
    assert "typer" in loaded, "the list of modules is not one"
    return loaded


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_imports_no_verb(tmp_path: Path, option: str) -> None:
    assert imported(tmp_path, option) & (HEAVY | {"pydantic"}) == set()


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_imports_none_of_what_takes_seconds(tmp_path: Path, verb: str) -> None:
    assert imported(tmp_path, verb, "--help") & HEAVY <= (set() if verb in LIGHT else NUMERIC)


@pytest.mark.parametrize("as_json", [True, False])
def test_predict_imports_nothing_heavy(here: Path, as_json: bool) -> None:
    flags = ("--batch-per-rank", "4", *(["--json"] if as_json else []))
    assert imported(here, *PREDICT, *flags) & HEAVY == set()


def test_predict_of_a_registered_model_in_the_cache_imports_nothing_heavy(here: Path) -> None:
    arguments = [word if word != "model.json" else "vgg16-mini" for word in PREDICT]
    first = calib(here, *arguments)  # fills the cache
    assert first.returncode == 0, first.stderr
    assert imported(here, *arguments) & HEAVY == set()


# predict (more in test_predict.py)


def test_predict_prints_the_projection(here: Path) -> None:
    done = inside.calib(
        here, *PREDICT, "-p", "2", "--batch-per-rank", "4", "-o", "out.json", "--json"
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    expected = project(NET, Division("data", 2, 8), machine()).model_dump(mode="json")
    assert found == expected and "calib " not in repr(found["notes"])
    assert [found] == json.loads((here / "out.json").read_text())
    assert list(found["phases"]) == list(PHASES)
    assert found["total"]["value"] > 0 and found["bytes_per_rank"] > 0


def test_predict_of_several_p_at_one_global_batch(here: Path) -> None:
    done = inside.calib(here, *PREDICT, "-p", "4,1,2", "--batch", "8", "--json")
    found = json.loads(done.stdout)
    assert [(x["division"]["p"], x["division"]["batch"]) for x in found] == [(1, 8), (2, 8), (4, 8)]


@pytest.mark.parametrize(
    "command",
    [
        (*PREDICT, "-p", "2", "--batch-per-rank", "4"),  # a table of rich
        (*PREDICT, "-p", "1:512", "--batch-per-rank", "4", "--csv", "-"),
        ("sweep", "--models", "model.json", *PREDICT[-2:], "--batch-per-rank", "4"),
        ("--help",),
    ],
)
def test_a_reader_that_has_gone_is_no_error(here: Path, command: tuple[str, ...]) -> None:
    """`| head -1`: the pipe has no reader any more when the first line is written."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        line = [sys.executable, "-m", "calib", *command]
        done = completed(line, here, capture_output=False, stdout=gone, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr


# mistakes: exit code 2 and one line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nosuch",), "nosuch"),
        (("predict",), "--model"),
        (("predict", "--model", "vgg16"), "--strategy"),
        (("measure",), "--output"),
        (("fit",), "runs"),
        (("report",), "RUN"),
        (("predict", "--nosuch"), "--nosuch"),
        ((*PREDICT, "extra"), "extra"),
        ((*PREDICT, "-p", "x"), "-p 'x'"),
        ((*PREDICT, "-p", "1,x"), "'1,x'"),
        ((*PREDICT, "-p", "1,,2"), "'1,,2'"),
        ((*PREDICT, "-p", ""), "-p ''"),
        ((*PREDICT, "-p", "0"), "from 1 to"),
        ((*PREDICT, "-p", "2,-1"), "from 1 to"),
        ((*PREDICT, "-p", "9" * 400), "-p"),  # beyond all floats
        ((*PREDICT, "--batch-per-rank", "0"), "--batch-per-rank"),
        ((*PREDICT, "--batch-per-rank", "four"), "--batch-per-rank"),
        (PREDICT, "--batch-per-rank"),  # a model file has no batch of its own
        ((*PREDICT[:2], "vgg17", *PREDICT[3:]), "did you mean vgg16"),
        ((*PREDICT[:2], "nosuch.json", *PREDICT[3:]), "nosuch.json does not exist"),
        ((*PREDICT[:2], "parameters.json", *PREDICT[3:]), "parameters.json"),
        ((*PREDICT[:-1], "nosuch.json"), "nosuch.json does not exist"),
        ((*PREDICT[:-1], "."), "is a directory"),
        ((*PREDICT, "--batch-per-rank", "4", "-o", "model.json/out"), "model.json"),
        ((*PREDICT, "--batch-per-rank", "4", "-o", "."), "-o . is a directory"),
        ((*PREDICT, "--batch-per-rank", "4", "-o", ""), "-o . is a directory"),
        ((*PREDICT[:-2], "--batch-per-rank", "4"), "`calib calibrate` makes one"),
        (("fit", "nosuch"), "nosuch does not exist"),
        (("fit", "model.json"), "does not exist"),
        (("fit", "."), "no samples"),
        (("report", "nosuch"), "nosuch does not exist"),
        (("report", "."), "no training runs"),
        (("report", ".", "--least-accuracy", "0.9%x"), "--least-accuracy"),
        (("probe", "-o", "model.json/cluster.json"), "model.json"),
        (("measure", "-o", "model.json/run", "--models", "vgg16-mini"), "model.json"),
        (("measure", "-o", "model.json", "--models", "vgg16-mini"), "model.json"),
        (("measure", "-o", "run", "--models", ","), "no model"),
        (("measure", "-o", "run", "--models", "vgg16-mini,nosuch"), "unknown model 'nosuch'"),
        (("measure", "-o", "run", "-p", "0"), "from 1 to"),
        (("measure", "-o", "run", "-p", "two"), "'two'"),
        (("measure", "-o", "run", "--budget", "0"), "--budget"),
        (("measure", "-o", "run", "-n", "0"), "--ranks"),
        (
            ("measure", "-o", "run", "--env", "OMP_NUM_THREADS"),
            "'OMP_NUM_THREADS' is not NAME=VALUE",
        ),
        (("measure", "-o", "run", "--env", "A B=1"), "'A B' is no name of a variable"),
        (("calibrate", "--precision", "3"), "--precision '3' is not a share"),
        (("calibrate", "--env", "CALIB_RANKS=1"), "'CALIB_RANKS' is no name of a variable"),
        (("train", "--model", "lenet5", "--env", "A=1", "--env", "A=2"), "sets A twice"),
        (("env",), "`calib calibrate` makes one"),
        (("env", "--parameters", "parameters.json"), "does not say in which environment"),
        (("train", "--model", "nosuch"), "unknown model"),
        (("train", "--model", "vgg16-mini", "--batch-per-rank", "0"), "--batch-per-rank"),
        (("train", "--model", "vgg16-mini", "-p", "0"), "-p"),
        (("train", "--model", "vgg16-mini", "--seed", "-1"), "--seed"),
        (("train", "--model", "model.json", "--batch-per-rank", "4"), "nor trained: its file"),
    ],
)
def test_mistakes(here: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(inside.calib(here, *arguments))


@pytest.mark.parametrize("launcher", ["nosuchprogram -n {n}", "bogus", "mpiexec -n '{n}", "{n}"])
@pytest.mark.parametrize(
    "verb",
    [
        ("probe",),
        ("train", "--model", "cosmoflow-mini"),
        ("measure", "-o", "run", "--models", "cosmoflow-mini", "-n", "1"),
    ],
)
def test_launchers_that_are_none(here: Path, verb: tuple[str, ...], launcher: str) -> None:
    done = inside.calib(here, *verb, "--launcher", launcher)
    said = "launcher" if verb[0] == "probe" else "calib: error: launcher"
    if verb[0] == "probe":
        assert said in refused(done)
        return
    # measure and train announce the work before they start it
    errors = [line for line in done.stderr.splitlines() if line.startswith("calib: error: ")]
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert len(errors) == 1 and errors[0].startswith(said)


def test_no_mpiexec_at_all(here: Path) -> None:
    """Nothing on PATH, and none beside the Python that runs (a link in an empty directory)."""
    alone = here / "bin"
    alone.mkdir()
    code = (
        f"import sys; sys.executable = {str(alone / 'python')!r}; "
        "sys.argv = ['calib', 'probe']; from calib.cli import main; main()"
    )
    done = python(here, "-c", code, PATH=str(alone))
    line = refused(done)
    assert "no mpiexec on this machine" in line and "mpich wheel" in line


def test_calibrate_without_mpiexec_says_it_once(here: Path) -> None:
    """The doctor refuses; nothing is written."""
    done = calib(
        here, "calibrate", "--quick", "--json", "--launcher", "nosuchprogram -n {n}", "-o", "r"
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("calib: error: ")]
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert len(errors) == 1 and "nosuchprogram" in errors[0]
    assert not (here / "r").exists()


def test_calibrate_under_mpiexec(here: Path) -> None:
    line = refused(calib(here, "calibrate", "--quick", "-o", "run", PMI_RANK="0"))
    assert "without mpiexec" in line
    assert not (here / "run").exists()


# parameter files


def spoil(change: Callable[[dict[str, Any]], Any]) -> str:
    content = json.loads(machine().model_dump_json())
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (machine().model_dump_json()[:-1], "truncated"),
        (NET.model_dump_json(), "parameters.json"),
        (
            spoil(lambda c: c["collectives"][0]["slope_s_per_byte"].update(value=-1e-9)),
            "collectives.0.slope_s_per_byte",
        ),
    ],
)
def test_parameter_files_that_cannot_be(here: Path, text: str, said: str) -> None:
    """One line with the file; every mistake in one: tests/fitting/parameters/test_parameters.py."""
    (here / "parameters.json").write_text(text)
    line = refused(inside.calib(here, *PREDICT, "--batch-per-rank", "4"))
    assert said in line and "parameter file parameters.json" in line


def test_the_parameter_file_that_they_were_made_from_is_read(here: Path) -> None:
    """So that the test above can fail; and alpha of exactly 10 s is not over 10 s."""
    text = spoil(lambda c: c["collectives"][0].update(intercept_s=dict(value=20, low=20, high=20)))
    (here / "parameters.json").write_text(text)
    assert inside.calib(here, *PREDICT, "--batch-per-rank", "4").returncode == 0
    assert Parameters.read(here / "parameters.json").collectives[0].alpha_s.value == 10


def test_parameters_without_what_is_needed_name_the_case_to_measure(here: Path) -> None:
    machine(collectives=[]).write(here / "parameters.json")
    line = refused(inside.calib(here, *PREDICT, "-p", "2", "--batch-per-rank", "4"))
    assert "no allreduce" in line and "`calib plan --models model.json" in line
