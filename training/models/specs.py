"""What users' words for models mean: registered names and model.json files -> ModelSpec, ModelEntry.

A registered model is traced once, then read without torch. A model.json that says how it is built is
trained like a registered one.

Traces are kept in $CALIB_CACHE, else $XDG_CACHE_HOME/calib/models, else ~/.cache/calib/models, in
files named by the sources that make them, so that an edited model is never read from an old trace.
A cache that cannot be read or written is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from calib.foundation.errors import FileError, InputError, MachineError
from calib.foundation.files import ensure_directory, read_bytes
from calib.foundation.garbage import loaded
from calib.foundation.run_files import MODELS
from calib.oracle.model.spec import ModelSpec
from calib.training.models import ModelEntry, entry, model_names


def spec(name: str, run: Path | None = None) -> ModelSpec:
    """The ModelSpec of the file `name` (a model.json) or of the registered model `name`.

    A registered name means the model even where a file of that name lies in the current directory; a
    name in the records of the run directory `run` means what it keeps (`keep_models`) before a file.
    Raises FileError for a wrong file, InputError for an unknown name, and MachineError where the
    model must be traced and torch is missing.
    """
    registered = name in model_names()
    kept = _kept(run, name) if run and _is_file_name(name) else None
    if kept is not None and not registered and kept.is_file():
        return ModelSpec.read(kept)
    if name.endswith(".json") or (not registered and os.path.isfile(name)):
        return ModelSpec.read(Path(name))
    return _registered(name)


def entry_of(model: ModelSpec) -> ModelEntry | None:
    """How a model is built and trained; None where it is not registered and does not say it."""
    if model.own is not None:
        return entry(model.name, model.own)
    return entry(model.name) if model.name in model_names() else None


def batch_of(model: ModelSpec, batch_per_rank: int | None) -> int:
    """Samples per rank: what was asked for, else the model's own. Raises InputError."""
    if batch_per_rank is not None:
        return batch_per_rank
    if (found := entry_of(model)) is not None:
        return found.batch_per_rank
    raise InputError(f"the model {model.name} has no batch of its own", "batch_per_rank")


def why_not_built(model: ModelSpec) -> str:
    """Why a model's iterations are neither timed nor trained; "" where they are."""
    if entry_of(model) is not None:
        return ""
    return (
        f"{model.name} is predicted from its layers alone, neither run in place nor trained: its "
        "file does not say how it is built (built_by)"
    )


def named(words: Iterable[str]) -> dict[str, ModelSpec]:
    """The models of a run, by what a user calls them: registered names and files.

    Raises what `spec` does, and InputError for a file whose model's name is another's, or no name of a
    file.
    """
    found = {word: spec(word) for word in words}
    of_name: dict[str, str] = {}
    for word, model in found.items():
        if not _is_file_name(model.name):
            raise InputError(
                f"{word} calls its model {model.name!r}, which cannot be part of a file's name: "
                "letters, digits, . _ and - are"
            )
        other = of_name.setdefault(model.name, word)
        if other != word:
            raise InputError(
                f"{other} and {word} both call their model {model.name}; give one another name"
            )
        if word != model.name in model_names() and spec(model.name).layers != model.layers:
            raise InputError(f"{word} calls its model {model.name}, as a registered one is called")
    return found


def keep_models(run: Path, models: Iterable[ModelSpec]) -> None:
    """Write the models that are not registered into a run directory, for its reports.

    Raises InputError where it has another model of such a name.
    """
    for model in dict.fromkeys(models):
        if model.name in model_names():
            continue
        path = _kept(ensure_directory(run), model.name)
        if path.exists() and ModelSpec.read(path) != model:
            raise InputError(f"{run} has another model called {model.name}; choose another -o")
        ensure_directory(path.parent)
        model.write(path)


def _kept(run: Path, name: str) -> Path:
    return run / MODELS / f"{name}.json"


def _is_file_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", name) is not None


def _registered(name: str) -> ModelSpec:
    """Of a registered model, from the cache or traced."""
    found = entry(name)
    path = _cache_file(name)
    cached = _read(path, found) if path else None
    if cached is not None:
        return cached
    traced = _trace(found)
    if path:
        with contextlib.suppress(FileError):  # the next call traces again
            traced.write(path)
    return traced


def warm_cache() -> tuple[str, ...]:
    """Trace every registered model that is not in the cache yet; their names."""
    for name in model_names():
        spec(name)
    return model_names()


def require_torch(why: str) -> None:
    """Raise MachineError where PyTorch, which is needed as `why` says, cannot be imported."""
    try:
        loaded("torch")
    except (ImportError, OSError) as error:  # OSError: a shared library of torch is missing
        raise MachineError(
            f"{why} needs PyTorch, which cannot be imported here ({error}); install torch, or pass a "
            "model.json made elsewhere"
        ) from error


def _trace(found: ModelEntry) -> ModelSpec:
    """Trace a registered model on the meta device. Raises MachineError without torch."""
    require_torch(f"the layers of {found.name} are not in the cache and finding them")
    import torch

    from calib.oracle.trace.tracing import trace

    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        module = found.build()
    return trace(module, found.input_shape, found.name, found.loss, found.auxiliary_weight)


def _read(path: Path, found: ModelEntry) -> ModelSpec | None:
    """The cached trace, or None where there is none or it is not what it should be."""
    try:
        cached = ModelSpec.read(path)
    except FileError:
        return None
    matches = cached.name == found.name and cached.input_shape == found.input_shape
    return cached if matches else None


def _cache_file(name: str) -> Path | None:
    """Where the trace of `name` is kept, or None where this user has no place for it."""
    chosen = os.environ.get("CALIB_CACHE")
    if chosen:
        directory = Path(chosen).expanduser()
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        directory = Path(base) / "calib" / "models"
        if not directory.is_absolute():  # no home directory
            return None
    try:
        return directory / f"{name}-{_sources_sha256()[:16]}.json"
    except FileError:  # installed without sources
        return None


def _sources_sha256() -> str:
    """Hex SHA-256 of the source files that determine a trace."""
    house = Path(__file__).parents[2]
    sources = [
        *sorted((house / "training/models").glob("*.py")),
        *sorted((house / "oracle/trace").glob("*.py")),
        house / "oracle/model/spec.py",
        house / "foundation/layers.py",
    ]
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + read_bytes(source, "source file") + b"\0")
    return digest.hexdigest()


if __name__ == "__main__":  # make setup
    warm_cache()
