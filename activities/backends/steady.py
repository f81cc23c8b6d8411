"""How long a node's daemon has answered without a break: what a proof by silence-free time rests on."""


class Steadiness:
    """Since when each node's daemon answers without a break, as far as *this* process has looked.

    A restart of the process forgets it, which only makes a proof wait longer.
    """

    def __init__(self, gap: float) -> None:
        self.gap = gap
        """Longest time between two readings that still counts as having looked."""
        self._since: dict[str, tuple[float, float]] = {}
        self._bad: dict[str, float] = {}

    def saw(self, node: str, good: bool, at: float) -> None:
        if not good:
            self._since.pop(node, None)
            self._bad[node] = at
            return
        first, last = self._since.get(node, (at, at))
        self._since[node] = (at if at - last > self.gap else first, at)

    def since(self, node: str) -> float | None:
        """First reading of the present steady time; None when the last reading was bad or there was none."""
        return self._since[node][0] if node in self._since else None

    def bad_at(self, node: str) -> float | None:
        """The last reading in which its daemon did not answer."""
        return self._bad.get(node)
