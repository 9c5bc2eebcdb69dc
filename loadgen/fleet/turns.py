"""Turns of conversations: nobody sends the next turn of a session before the last one is answered."""

from collections import deque

from loadgen.fleet.rows import Planned


class SessionTurns:
    """Sessions with a turn in flight, each with the turns that wait for it to end, in order."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[Planned]] = {}

    def may_start(self, turn: Planned) -> bool:
        """True if its session has no turn in flight; otherwise the turn waits from now on."""
        if turn.session in self._waiting:
            self._waiting[turn.session].append(turn)
            return False
        self._waiting[turn.session] = deque()
        return True

    def waiting(self) -> list[Planned]:
        """All turns that are due and wait."""
        return [turn for turns in self._waiting.values() for turn in turns]

    def next_of(self, session: int) -> Planned | None:
        """The turn to send when the one in flight has ended; None if none waits."""
        if not self._waiting[session]:
            del self._waiting[session]
            return None
        return self._waiting[session].popleft()

    def take_older(self, than_ns: float, session: int | None = None) -> list[Planned]:
        """Remove and return the turns (of one session) that were due before an instant."""
        turns = self.waiting() if session is None else self._waiting[session]
        old = [turn for turn in turns if turn.due_ns < than_ns]
        for turn in old:
            self._waiting[turn.session].remove(turn)
        return old
