"""How ranks are written for people."""

from collections.abc import Iterable

SHOWN = 12
"""Runs of ranks written out; the rest is counted."""


def listed(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-6, 8`."""
    order = sorted(set(ranks))
    return f"rank{'' if len(order) == 1 else 's'} {numbers(order)}"


def numbers(ranks: Iterable[int]) -> str:
    """`0-6, 8`."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    told = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    left = f" and {len(told) - SHOWN} more runs" if len(told) > SHOWN else ""
    return ", ".join(told[:SHOWN]) + left
