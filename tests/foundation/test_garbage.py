"""When Python looks for garbage, and where it never does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from calib.foundation.garbage import RARE, loaded, rare_collections


def test_the_thresholds_come_back_after_an_error_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), rare_collections():
        assert gc.get_threshold() == RARE
        raise ZeroDivisionError
    assert gc.get_threshold() == before


MADE = "import gc\nenabled = gc.isenabled()\nlist_of_its_own = [[]]\n"


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two modules, of which one cannot be imported."""
    (tmp_path / "garbage_good.py").write_text(MADE)
    (tmp_path / "garbage_bad.py").write_text(f"{MADE}raise ValueError\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("garbage_good", "garbage_bad"):
        sys.modules.pop(name, None)


def seen(made: object) -> bool:
    """Whether the collector looks at it."""
    return any(one is made for one in gc.get_objects())


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("enabled", [True, False])
def test_what_an_import_makes_is_never_looked_at(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        module = loaded("garbage_good")
        after = gc.isenabled()
        with pytest.raises(ValueError):
            loaded("garbage_bad")
        still = gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()
    assert (after, still) == (enabled, enabled)
    assert module is sys.modules["garbage_good"] and not module.enabled
    assert not seen(module.list_of_its_own)


@pytest.mark.usefixtures("there")
def test_what_is_imported_already_freezes_nothing() -> None:
    loaded("garbage_good")
    mine: list[list[object]] = [[]]
    assert loaded("garbage_good") is sys.modules["garbage_good"]
    assert seen(mine)


def test_a_module_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was, and somebody has said that it is not."""
    monkeypatch.setitem(sys.modules, "json", None)
    for name in ("json", "garbage_nowhere"):
        with pytest.raises(ImportError):
            loaded(name)
