"""Import and build a user's module given as MODULE:FUNCTION.

Output of the user's code goes to stderr, so that --json stays clean.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calib.foundation.errors import InputError
from calib.oracle.trace.lines import OURS, at, failed_at, line_of

MAIN = ("logits", "out")  # in a dictionary of outputs
OWN = "calib"  # the one name that a user's package cannot have


def build_module(words: str) -> nn.Module:
    """Build the module that `words` (such as my_pkg.net:build) name, and return it as it is.

    After the colon comes a function or class that needs no arguments, or a module. Raises InputError
    that says what cannot be imported or called, and which line of the user's code is the reason.
    """
    found = member(words)
    with _from_here(), aside():
        module = found if isinstance(found, nn.Module) else _called(found, words)
    if not isinstance(module, nn.Module):
        raise InputError(f"{words} gives {type(module).__name__}, which is not a torch.nn.Module")
    return module


def build_plain(words: str) -> nn.Module:
    """The same as a module of one tensor to one: of a dictionary that it returns, the main one.

    transformers' models return their logits in one, torchvision's of segmentation their out. Raises
    InputError where it must be given more than one tensor.
    """
    module = build_module(words)
    needed = _needed(module.forward)
    if len(needed) > 1:
        raise InputError(
            f"{words} reads {', '.join(needed)}: calib gives a model one tensor; wrap it in a module "
            "that takes one and slices it (docs/other-training.md, Several inputs)"
        )
    if not isinstance(module, torch.jit.ScriptModule):  # which takes no hook
        module.register_forward_hook(_main_tensor)
    return module


def _main_tensor(_module: nn.Module, _given: Any, output: Any) -> Any:
    """The tensor of a dictionary of outputs that a loss is of. Raises InputError where none is."""
    if not isinstance(output, Mapping):
        return output
    tensors = {name: of for name, of in output.items() if isinstance(of, torch.Tensor)}
    names = [name for name in tensors if name in MAIN or len(tensors) == 1]
    if not names:
        raise InputError(
            f"the model returns {', '.join(output)}: let its forward return one of them, as "
            f"self.model(x).{next(iter(output), 'logits')}"
        )
    return tensors[names[0]]


def member(words: str) -> Any:
    """Import what MODULE:FUNCTION names, without calling it. Raises InputError."""
    path, colon, name = words.partition(":")
    if not colon or not name.isidentifier() or not all(x.isidentifier() for x in path.split(".")):
        raise InputError(
            f"{words!r} is not MODULE:FUNCTION, a module as in an import and a name in it, such as "
            "my_pkg.net:build"
        )
    _require_no_clash(path)
    with _from_here(), aside():
        return _member(_imported(path), path, name)


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Send stdout to stderr, also at the file descriptor and in child processes."""
    with contextlib.ExitStack() as stack:
        for stream in (sys.stdout, sys.__stdout__):
            _flush(stream)
        try:
            stdout = os.dup(1)
            stack.callback(os.close, stdout)
            os.dup2(2, 1)
            stack.callback(os.dup2, stdout, 1)
        except OSError:  # stdout or stderr is closed
            pass
        stack.callback(_flush_everything)  # before stdout is restored
        with contextlib.redirect_stdout(sys.stderr):
            yield


def _flush_everything() -> None:
    """Flush Python's original stdout and C's buffers."""
    _flush(sys.__stdout__)
    with contextlib.suppress(OSError, AttributeError):  # no such C library
        ctypes.CDLL(None).fflush(None)


def _flush(stream: Any) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
        stream.flush()


def _require_no_clash(path: str) -> None:
    """Raise InputError if the user's package is called calib."""
    mine = [Path.cwd() / OWN, Path.cwd() / f"{OWN}.py"]
    ours = Path(OURS).resolve()
    if path.partition(".")[0] == OWN and any(x.exists() and x.resolve() != ours for x in mine):
        raise InputError(f"cannot import {path}: {CLASH}")


CLASH = f"{OWN} is the name of calib's own package; rename yours, or put it in a package of another name"


@contextlib.contextmanager
def _from_here() -> Iterator[None]:
    """Search the current directory first, as `python -m` does."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _imported(path: str) -> Any:
    """Import the Python module `path`. Raises InputError."""
    importlib.invalidate_caches()
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if path == missing or path.startswith(f"{missing}."):
            if path.partition(".")[0] == OWN:
                raise InputError(f"cannot import {path}: {CLASH}") from error
            where = f"neither installed nor in {Path.cwd()}"
            raise InputError(f"there is no Python module {missing}: it is {where}") from error
        raise _failure(f"cannot import {path}", error) from error
    except (Exception, SystemExit) as error:  # a script may call sys.exit
        raise _failure(f"cannot import {path}", error) from error


def _member(imported: Any, path: str, name: str) -> Any:
    """The attribute `name` of an imported module. Raises InputError with the nearest name."""
    if hasattr(imported, name):
        return getattr(imported, name)
    near = difflib.get_close_matches(name, [x for x in vars(imported) if x[0] != "_"], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"the Python module {path} has no {name!r}{hint}")


def _called(function: Callable[[], Any], words: str) -> Any:
    """Call a function or class without arguments, leaving torch's generators as they were."""
    if not callable(function):
        raise InputError(f"{words} is {type(function).__name__}, neither a function nor a class")
    needed = _needed(function)
    if needed:
        raise InputError(f"{words} needs {', '.join(needed)}: give a function without arguments")
    try:
        with torch.random.fork_rng(devices=[]):
            return function()
    except (Exception, SystemExit) as error:
        raise _failure(f"cannot call {words}", error) from error


def _needed(function: Callable[[], Any]) -> list[str]:
    """The required arguments of a function."""
    try:
        arguments = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C: the call will tell
        return []
    various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [x.name for x in arguments if x.default is x.empty and x.kind not in various]


def _failure(what: str, error: BaseException) -> InputError:
    """An InputError of `what`, the line of the user's code that failed, and its error."""
    top = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    hint = f"; {CLASH}" if top == OWN else ""
    kind = type(error).__name__
    return InputError(f"{what}{at(failed_at(error))}: {kind}: {line_of(error)}{hint}")
