"""plan.toml: read and written whole; every mistake is one line that names the file and the key."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.foundation.errors import FileError, InputError
from calib.planning.request import FULL, QUICK, Request, Sparse, request_of, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("10m", 600.0),
        ("1.5h", 5400.0),
        (" 2 m ", 120.0),
        (".5h", 1800.0),
        ("1", 1.0),
        ("1000000", 1e6),
    ],
)
def test_seconds_of(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "m", "10x", "10 minutes", "-5", "0", "0.5", "1e3", "nan", "inf", "300h", "1:30", "٣m x"],
)
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="is not a time from 1 s to 1000000 s, such as 90s"):
        seconds_of(text)


def everything() -> Request:
    """No field at its default, but for what only CPUs do."""
    return Request(
        models=("resnet50-mini", "some/model.json"),
        strategies=("filter", "data+spatial"),
        p=(2, 4, 8),
        ranks=4,
        batch=64,
        segments=8,
        libraries=("nccl", "mpi"),
        algorithms=("pat",),
        collectives=("allreduce",),
        device="cuda",
        executions=("bfloat16", "tf32+channels_last"),
        optimizers=("adam", "sgd"),
        grid_factor=4,
        contention=False,
        cold=False,
        graphs=True,
        passes_apart=False,
        overlap=1,
        budget_s=90.5,
        launches=3,
        seed=7,
        target=0.01,
        variables={"UCX_TLS": "shm, self", "B": '"'},
    )


def test_toml_round_trip(tmp_path: Path) -> None:
    """All fields survive, and none of them was left at its default."""
    path = tmp_path / "plan.toml"
    request = everything()
    defaults = Request(p=(1,))
    same = [
        name for name in Request.model_fields if getattr(request, name) == getattr(defaults, name)
    ]
    assert same == ["batch_per_rank", "windows", "sparse"]  # batch is given instead; not on GPUs
    request.write(path)
    assert Request.read(path) == request
    assert tomllib.loads(path.read_text())["strategies"] == ["filter", "data+spatial"]
    assert list(tmp_path.iterdir()) == [path]
    defaults.write(path)
    assert Request.read(path) == defaults


@given(
    p=st.lists(st.integers(1, 10_000_000), min_size=1, max_size=5),
    per_rank=st.none() | st.integers(1, 512),
    budget=st.floats(1.0, 1e6),
    seed=st.integers(0, 2**40),
    target=st.floats(1e-6, 0.5),
)
def test_any_request_survives(
    tmp_path_factory: pytest.TempPathFactory,
    p: list[int],
    per_rank: int | None,
    budget: float,
    seed: int,
    target: float,
) -> None:
    path = tmp_path_factory.mktemp("request") / "plan.toml"
    request = request_of(
        FULL, p=p, batch_per_rank=per_rank, budget_s=budget, seed=seed, target=target
    )
    request.write(path)
    assert Request.read(path) == request
    assert request.p == tuple(sorted(set(p)))


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('p = [4, 1, 4]\nbudget_s = "10m"\nmodels = ["vgg16-mini", "vgg16-mini"]\n')
    request = Request.read(path)
    assert (request.p, request.budget_s, request.models) == ((1, 4), 600.0, ("vgg16-mini",))
    assert request.strategies == ("serial", "data")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p = [1", "is not TOML: Unclosed array|is not TOML: .*"),
        ("p = 1", "p = 1: must be a list"),
        ("", "p is missing$"),
        ("p = []", "p = \\[\\]: is empty$"),
        ("p = [0]", "p = 0: must be greater than or equal to 1$"),
        ('p = ["two"]', "p = 'two': must be a whole number$"),
        ("p = [1]\nbudget = 4", "unknown key budget; did you mean budget_s\\?"),
        ("p = [1]\nzzz = 4", "unknown key zzz$"),
        ("p = [1]\nsparse = 3", "sparse = 3: must have named fields$"),
        ('p = [1]\n[variables]\n"A B" = "1"', "variables: 'A B' is no name of a variable"),
        ("p = [1]\n[variables]\nA = 1", "variables.A = 1: must be text"),
        ("p = [1]\n[sparse]\nrow = 4", "unknown key sparse.row; did you mean rows\\?"),
        ("p = [1]\n[sparse]\nshares = [0]", "sparse.shares = 0: must be greater than 0"),
        ("p = [1]\n[sparse]\npartitions = [1, 2, 3, 3]", "sparse: four different numbers of part"),
        ("p = [1]\n[sparse]\nrows = 7", "sparse: 8 partitions are more than 7 rows"),
        ('p = [1]\nbudget_s = "10x"', "budget_s = '10x': '10x' is not a time"),
        ("p = [1]\nbudget_s = nan", "budget_s = nan: "),
        ('p = [1]\nstrategies = ["dat"]', "strategies = 'dat': must be 'serial', 'data'"),
        ('p = [1]\nexecutions = ["int8"]', "unknown item type 'int8'; known: float32, tf32"),
        ('p = [1]\nexecutions = ["float32+x"]', "unknown mark 'x' in 'float32\\+x'"),
        ('p = [1]\nexecutions = ["tf32"]', "tf32 is arithmetic of CUDA devices"),
        ('p = [1]\nlibraries = ["nccl"]', 'library nccl needs device = "cuda"'),
        ('p = [1]\nalgorithms = ["ring"]', "algorithms are told to library nccl, which"),
        ('p = [1]\nalgorithms = ["magic"]', "algorithms = 'magic': must be 'ring', 'tree'"),
        ('p = [1]\ndevice = "cuda"\nwindows = true', 'windows needs device = "cpu"'),
        ('p = [1]\ndevice = "cuda"\n[sparse]\nrows = 9', 'sparse needs device = "cpu"'),
        ('p = [1]\ndevice = "gpu"', "device = 'gpu': must be 'cpu' or 'cuda'"),
        ("p = [1]\nbatch = 4\nbatch_per_rank = 2", "give batch or batch_per_rank, not both"),
        ("p = [1]\ntarget = 0", "target = 0: must be greater than 0"),
        ("p = [1]\nlaunches = 0\nseed = -1", "launches = 0: .*; seed = -1: "),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, text: str, message: str) -> None:
    """One line with the file and every wrong key."""
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(FileError, match=message) as caught:
        Request.read(path)
    assert str(caught.value).startswith(f"plan file {path}")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"plan file .*none.toml does not exist"):
        Request.read(tmp_path / "none.toml")
    path = tmp_path / "plan.toml"
    path.write_bytes(b"p = [1]\n# \xff")
    with pytest.raises(FileError, match="is not TOML"):
        Request.read(path)


def test_mistakes_in_options() -> None:
    with pytest.raises(InputError, match="unknown key pp"):
        request_of(FULL, pp=(1,))
    with pytest.raises(
        InputError, match="optimizers = 'lamb': must be 'sgd', 'momentum' or 'adam'"
    ):
        request_of(FULL, p=(1,), optimizers=("lamb",))


def test_efforts() -> None:
    """An option that is not given is the effort's."""
    full, quick = request_of(FULL, p=(1, 2)), request_of(QUICK, p=(1, 2), budget_s=None, seed=3)
    assert full == Request(p=(1, 2), sparse=Sparse())
    on_gpus = request_of(FULL, p=(1, 2), device="cuda")
    assert on_gpus == Request(p=(1, 2), device="cuda", libraries=("torch_nccl",))
    assert full.libraries == ("torch_mpi",)
    assert (quick.budget_s, quick.launches, quick.grid_factor, quick.seed) == (30.0, 3, 8, 3)
    assert not (
        quick.cold or quick.windows or quick.contention or quick.passes_apart or quick.sparse
    )
    assert quick.overlap == 0
    assert request_of(QUICK, p=(1,), budget_s=5.0).budget_s == 5.0


def test_global_batch() -> None:
    """Weak scaling by default and with batch_per_rank, strong scaling with batch."""
    assert Request(p=(4,)).global_batch(4, 8) == 32
    assert Request(p=(4,), batch_per_rank=3).global_batch(4, 8) == 12
    assert Request(p=(4,), batch=16).global_batch(4, 8) == 16


@pytest.mark.parametrize(
    "text",
    ["p = " + "[" * 50_000, "p = " + "{a=" * 50_000, "p = [" + "9" * 5000 + "]", "p = [1e400]"],
    ids=["brackets", "tables", "digits", "exponent"],
)
def test_what_no_plan_file_nests(tmp_path: Path, text: str) -> None:
    """Deeper than Python calls, longer than it converts: one line."""
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(FileError) as error:
        Request.read(path)
    assert str(error.value).startswith(f"plan file {path}") and len(str(error.value)) < 2100
