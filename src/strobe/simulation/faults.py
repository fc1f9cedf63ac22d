"""The faults that a simulation injects, and their rates."""

import msgspec

from strobe.errors import UsageError

KINDS = ("delays", "partitions", "crashes", "coordinator", "membership", "initiators")
ROLLBACKS = "rollbacks"
"""Part of `all` only on request: processes must be copied for it, and a trace, with its one history, cannot hold it."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Mean time between faults of each kind, in simulated microseconds; 0 means never.

    `delays`: the ratio of the slowest to the fastest message. `initiators`: besides the coordinator, any process starts
    a snapshot by itself now and then. `rollbacks`: a crash loses the state of processes, or an older snapshot is
    requested; all processes go back (R1).
    """

    delay_us_min: int = 100
    delay_us_max: int = 200
    partition_every_us: int = 0
    partition_us: int = 30_000
    crash_every_us: int = 0
    crash_us: int = 20_000
    coordinator_crash_every_us: int = 0
    coordinator_crash_us: int = 40_000
    membership_every_us: int = 0
    initiator_every_us: int = 0
    rollback_every_us: int = 0

    @classmethod
    def parse(cls, text: str, *, rollbacks: bool = False) -> "Faults":
        """Return the faults named in `text`: `none`, `all` (with or without rollbacks), or a comma-separated list."""
        names = {name.strip() for name in text.split(",") if name.strip()}
        unknown = names - {*KINDS, ROLLBACKS, "all", "none"}
        if unknown or not names:
            kinds = ", ".join((*KINDS, ROLLBACKS))
            raise UsageError(f"unknown faults {', '.join(sorted(unknown)) or repr(text)}; choose: none, all, {kinds}")
        wanted = names | set(KINDS) if "all" in names else names
        if "all" in names and rollbacks:
            wanted.add(ROLLBACKS)

        def every(kind: str, us: int) -> int:
            return us if kind in wanted else 0

        return cls(
            delay_us_max=20_000 if "delays" in wanted else 200,
            partition_every_us=every("partitions", 200_000),
            crash_every_us=every("crashes", 300_000),
            coordinator_crash_every_us=every("coordinator", 400_000),
            membership_every_us=every("membership", 700_000),
            initiator_every_us=every("initiators", 250_000),
            rollback_every_us=every(ROLLBACKS, 350_000),
        )

    def describe(self) -> str:
        """Return every parameter, for the first line of a run."""
        return " ".join(f"{field}={getattr(self, field)}" for field in self.__struct_fields__)
