"""Result files of rccl-tests."""

from __future__ import annotations

from typing import Any

from tests.microbench.importers.logs import TIMES

OF_MPI = {"nodes": 1, "ranks": 8, "ranksPerNode": 8, "gpusPerRank": 1}


FACTORS = {
    "AllReduce": 1.75,
    "ReduceScatter": 0.875,
    "AllGather": 0.875,
    "AlltoAll": 0.875,
    "Broadcast": 1.0,
    "Gather": 0.875,
    "SendRecv": 1.0,
}


def entries(
    name: str = "AllReduce",
    setting: dict[str, Any] = OF_MPI,
    part: int = 1,
    cycles: int = 1,
    factor: float = 0.0,
) -> list[dict[str, Any]]:
    """What addResult keeps, all rows on 8 ranks; `part`: the size is one of so many parts."""
    found = []
    for cycle in range(cycles):
        for size, time in TIMES:
            for place in (0, 1):
                micros = time + cycle - place
                rate = size / micros * 1e-3
                found.append(
                    {
                        "numCycle": cycle,
                        "name": name,
                        **setting,
                        "size": size // part,
                        "type": "float",
                        "redop": "sum" if "educe" in name else "none",
                        "inPlace": place,
                        "time": micros,
                        "algBw": rate,
                        "busBw": rate * (factor or FACTORS[name]),
                        "wrong": "0",
                    }
                )
    return found


def value(content: Any) -> str:
    """std::to_string of C++, strings in quotes."""
    if isinstance(content, str):
        return f'"{content}"'
    return f"{content:.6f}" if isinstance(content, float) else str(content)


def as_csv(rows: list[dict[str, Any]], comma: str = ",", skip: str = "") -> str:
    names = [name for name in rows[0] if name != skip]
    words = {
        "name": "collective",
        "inPlace": "inplace",
        "algBw": "algbw",
        "busBw": "busbw",
        "wrong": "#wrong",
    }
    lines = [comma.join(words.get(name, name) for name in names)]
    lines += [comma.join(value(row[name]) for name in names) for row in rows]
    return "\n".join(lines) + "\n"


def as_json(rows: list[dict[str, Any]]) -> str:
    lines = ["{" + ", ".join(f'"{name}":{value(row[name])}' for name in row) + "}" for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n"
