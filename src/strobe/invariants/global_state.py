"""The global state that a snapshot has recorded, as invariants see it: every process, and every message in flight."""

from typing import Any

import msgspec

SHOWN_MAX = 60
"""Maximum number of characters shown of one state."""
_PROCESSES_SHOWN_MAX = 8


class GlobalState(msgspec.Struct, frozen=True):
    """The states of all processes at a consistent cut, and the messages in flight between them.

    `states` has the state of each process as its `capture` returned it. `in_flight` has the messages in flight on each
    channel, oldest first; a channel without any has an empty list. `events` counts the events of each process before
    the cut; `sent` and `received` count the messages of each channel. Do not change anything in it.
    """

    states: dict[str, Any]
    in_flight: dict[str, list[Any]] = {}
    events: dict[str, int] = {}
    sent: dict[str, int] = {}
    received: dict[str, int] = {}

    @property
    def messages(self) -> list[Any]:
        """All messages in flight."""
        return [message for messages in self.in_flight.values() for message in messages]

    def brief(self) -> str:
        """Describe it in one line: the first states, cut short, and how many messages are in flight."""
        shown = [f"{name} = {_shown(state)}" for name, state in list(self.states.items())[:_PROCESSES_SHOWN_MAX]]
        more = len(self.states) - len(shown)
        shown += [f"{more} more"] if more > 0 else []
        return f"{', '.join(shown)}; {len(self.messages):,} in flight"


def _shown(state: Any) -> str:
    try:
        text = repr(state)
    except Exception:  # noqa: BLE001 -- the user's own class
        text = f"a {type(state).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."
