"""The ModelSpec of a registered model or of a model.json; traced once, then read without torch.

Traces are kept in $CALIB_CACHE, else $XDG_CACHE_HOME/calib/models, else ~/.cache/calib/models, in
files named by the sources that make them, so that an edited model is never read from an old trace.
A cache that cannot be read or written is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from importlib import import_module
from pathlib import Path

from calib.foundation.errors import FileError, MachineError
from calib.foundation.files import read_bytes
from calib.oracle.model.spec import ModelSpec
from calib.training.models import ModelEntry, entry, model_names


def spec(name: str) -> ModelSpec:
    """The ModelSpec of the file `name` (a model.json) or of the registered model `name`.

    A registered name means the model even where a file of that name lies in the current directory.
    Raises FileError for a wrong file, InputError for an unknown name, and MachineError where the
    model must be traced and torch is missing.
    """
    if name.endswith(".json") or (name not in model_names() and os.path.isfile(name)):
        return ModelSpec.read(Path(name))
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
        import_module("torch")
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
        *(house / f"oracle/{name}.py" for name in ("trace/tracing", "trace/layers", "model/spec")),
        house / "foundation/layers.py",
    ]
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + read_bytes(source, "source file") + b"\0")
    return digest.hexdigest()


if __name__ == "__main__":  # make setup
    warm_cache()
