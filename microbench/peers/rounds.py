"""Which pairs of nodes work at once: rounds of disjoint pairs, so that no node is in two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Pair = tuple[int, int]  # of nodes, the smaller first
Round = list[Pair]


def all_rounds(nodes: int) -> list[Round]:
    """Every pair of nodes once: n - 1 rounds of n / 2 pairs, n rounds where n is odd.

    The circle method: one node stays, the others move on by a place each round.

    References
    ----------
    E. Lucas, Recreations mathematiques 2 (1883), the promenades of boarding school girls.
    """
    if nodes < 2:
        return []
    even = nodes + nodes % 2
    rounds = []
    for turn in range(even - 1):
        circle = [0, *(1 + (turn + place) % (even - 1) for place in range(even - 1))]
        pairs = [_ordered(circle[k], circle[even - 1 - k]) for k in range(even // 2)]
        rounds.append(sorted(pair for pair in pairs if pair[1] < nodes))
    return rounds


def quick_rounds(nodes: int) -> list[Round]:
    """ceil(log2 n) rounds: in round k nodes that are 2^k apart, so that each meets as many others.

    Every node is in each round; where n is no power of two, those that are left over meet in pairs.
    """
    rounds, apart = [], 1
    while apart < nodes:
        pairs, free = [], set(range(nodes))
        for node in range(nodes):
            other = node ^ apart
            if node in free and other in free and node < other:
                pairs.append((node, other))
                free -= {node, other}
        left = sorted(free)
        pairs += [_ordered(*each) for each in zip(left[::2], left[1::2], strict=False)]
        rounds.append(sorted(pairs))
        apart *= 2
    return rounds


def in_rounds(pairs: Iterable[Pair]) -> list[Round]:
    """Pairs in as many rounds as are needed: each goes into the first where both nodes are free."""
    rounds: list[Round] = []
    for pair in dict.fromkeys(_ordered(*each) for each in pairs):
        free = (r for r in rounds if not any(node in other for other in r for node in pair))
        place = next(free, None)
        if place is None:
            rounds.append([pair])
        else:
            place.append(pair)
    return rounds


def towards(suspects: Sequence[int], good: Sequence[int], met: Iterable[Pair]) -> list[Round]:
    """Rounds in which each suspected node meets two good ones that it has not met yet."""
    known = {_ordered(*pair) for pair in met}
    wanted, turn = list[Pair](), 0
    for node in suspects:
        new = [g for g in good if _ordered(node, g) not in known]
        new = new[turn % len(new) :] + new[: turn % len(new)] if new else []  # not all the same two
        wanted += [_ordered(node, g) for g in new[:2]]
        turn += 2
    return in_rounds(wanted)


def _ordered(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)
