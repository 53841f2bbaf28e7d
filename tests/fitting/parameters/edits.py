"""Edits of a parameter file by hand."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from typing import Any


def by_hand(value: Any) -> str:
    """RFC 8785 once more: of text in ASCII, and numbers by ECMAScript's rules (ECMA-262, 6.1.6.1.20)."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{by_hand(k)}:{by_hand(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(by_hand, value)) + "]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(float(value))
    return json.dumps(value)


def number(value: float) -> str:
    """By its shortest digits: 0.digits * 10^k."""
    if value <= 0:
        return "0" if value == 0 else "-" + number(-value)
    _, figures, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    digits, k = "".join(map(str, figures)).rstrip("0"), len(figures) + exponent
    if len(digits) <= k <= 21:
        return digits.ljust(k, "0")
    if 0 < k <= 21:
        return f"{digits[:k]}.{digits[k:]}"
    if -6 < k <= 0:
        return "0." + "0" * -k + digits
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{tail}e{k - 1:+d}"


def sha(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
