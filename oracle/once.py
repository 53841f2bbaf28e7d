"""Memoization that lives and dies with a model or a table of costs.

A model repeats its layers, and a sweep asks for the same parts, messages and sums again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from calib.foundation.division import Division

# answers held at once; beyond that all are dropped (most take 1 kB or less)
MOST = 50_000


class Keeper(Protocol):
    """An object that holds the cached answers about itself."""

    @property
    def cache(self) -> dict[Any, Any]:
        """Answers, keyed by the function and its other arguments."""


Of = TypeVar("Of", bound=Keeper)
Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


def once(
    function: Callable[Concatenate[Of, Asked], Answer],
) -> Callable[Concatenate[Of, Asked], Answer]:
    """Cache a function in its first argument's `cache`; its other arguments must be hashable."""

    @wraps(function)
    def kept(of: Of, /, *asked: Asked.args, **named: Asked.kwargs) -> Answer:
        key = (function, asked, *named.items()) if named else (function, asked)
        try:
            answer: Answer = of.cache[key]
        except KeyError:
            pass
        else:
            return answer
        return _keep(of.cache, key, function(of, *asked, **named))

    return kept


def once_per_geometry(
    function: Callable[Concatenate[Of, Division, Asked], Answer],
) -> Callable[Concatenate[Of, Division, Asked], Answer]:
    """Cache by the division's geometry: for what depends on the cut, not on the batch or p1."""

    @wraps(function)
    def kept(of: Of, division: Division, /, *asked: Asked.args, **named: Asked.kwargs) -> Answer:
        key = (function, division.geometry, asked, *named.items())
        try:
            answer: Answer = of.cache[key]
        except KeyError:
            pass
        else:
            return answer
        return _keep(of.cache, key, function(of, division, *asked, **named))

    return kept


def _keep(cache: dict[Any, Any], key: tuple[object, ...], answer: Answer) -> Answer:
    if len(cache) >= MOST:
        cache.clear()
    cache[key] = answer
    return answer
