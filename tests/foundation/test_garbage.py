from __future__ import annotations

import gc

import pytest

from calib.foundation.garbage import RARE, rare_collections


def test_the_thresholds_come_back_after_an_error_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), rare_collections():
        assert gc.get_threshold() == RARE
        raise ZeroDivisionError
    assert gc.get_threshold() == before
