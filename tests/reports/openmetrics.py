"""OpenMetrics text, read by the grammar of its specification (ABNF)."""

from __future__ import annotations

import re

# https://prometheus.io/docs/specs/om/open_metrics_spec/#abnf
NAME, LABEL = "[a-zA-Z_:][a-zA-Z0-9_:]*", "[a-zA-Z_][a-zA-Z0-9_]*"
ESCAPED = r'(?:[^\\"\n]|\\n|\\"|\\\\)*'
REAL = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|[0-9]*\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
NUMBER = rf"(?:{REAL}|[+-]?[Ii][Nn][Ff](?:[Ii][Nn][Ii][Tt][Yy])?|[Nn][Aa][Nn])"
ONE_LABEL = rf'({LABEL})="({ESCAPED})"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{ONE_LABEL},)*{ONE_LABEL})?\}})? ({NUMBER})")
DESCRIPTOR = re.compile(rf"# (TYPE|UNIT|HELP) ({NAME}) ({ESCAPED})")
Key = tuple[str, frozenset[tuple[str, str]]]
UNESCAPED = {r"\n": "\n", r"\"": '"', r"\\": "\\"}


def parsed(text: str) -> dict[Key, float]:
    """All samples by name and labels; whatever the specification forbids is an error."""
    *lines, end = text.removesuffix("\n").split("\n")
    assert end == "# EOF" and text.endswith("\n")
    found: dict[Key, float] = {}
    known: dict[str, dict[str, str]] = {}
    family = ""
    for line in lines:
        about = DESCRIPTOR.fullmatch(line)
        if about is not None:
            what, name, value = about.groups()
            assert name == family or name not in known, f"{name} is interleaved"
            assert not any(sample[0] == name for sample in found), "descriptors come first"
            family = name
            assert known.setdefault(name, {}).setdefault(what, value) is value, f"two {what}"
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample is not None, line
        name = sample[1]
        assert name == family and known[name]["TYPE"] == "gauge" and known[name]["HELP"]
        unit = known[name].get("UNIT", "")
        assert not unit or name.endswith(f"_{unit}")
        labels = [
            (label, re.sub(r"\\.", lambda x: UNESCAPED[x[0]], value))
            for label, value in re.findall(ONE_LABEL, sample[2] or "")
        ]
        assert len(dict(labels)) == len(labels), f"a label twice: {line}"
        key = name, frozenset(labels)
        assert key not in found, f"twice: {line}"
        found[key] = float(sample[sample.re.groups])
    return found


def of(found: dict[Key, float], name: str, **labels: str) -> list[float]:
    """The values of a metric where these labels are so."""
    return [x for (n, has), x in found.items() if n == name and labels.items() <= dict(has).items()]
