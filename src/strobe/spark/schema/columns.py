"""The names of tables and columns, and their types.

Users query the tables `snapshots` to `frontiers`; checks produce `verdicts` and `violations`. The other tables are
input of the proof: the view, so that missing parts are found (P1), and which process recorded what.
"""

from typing import Final

SNAPSHOT_ID: Final = "snapshot_id"
LOG_POSITION: Final = "log_position"
VIEW_ID: Final = "view_id"
PROCESS: Final = "process"
CHANNEL: Final = "channel"
SOURCE: Final = "source"
TARGET: Final = "target"
KIND: Final = "kind"
INCARNATION: Final = "incarnation"
HASH: Final = "hash"
"""The hash algorithm for the frames of a channel."""
UNUSED_HASH: Final = "unused_hash"
"""The hash of an unused channel: h(0) of `values/frames.py`. NULL: `hash` is not valid for this kind of channel."""
SENT_COUNT: Final = "sent_count"
SENT_HASH: Final = "sent_hash"
RECEIVED_COUNT: Final = "received_count"
RECEIVED_HASH: Final = "received_hash"
IN_FLIGHT_FRAMES: Final = "in_flight_frames"
FRAME: Final = "frame"
FIRST_ORDINAL: Final = "first_ordinal"
MESSAGE_COUNT: Final = "message_count"
CONSUMED: Final = "consumed"
BYTES: Final = "bytes"
RECORDED_BY: Final = "recorded_by"
RECORDED_SNAPSHOT: Final = "recorded_snapshot"
RECORDED_VIEW: Final = "recorded_view"
KEY: Final = "key"
POSITION: Final = "position"
ENCODING: Final = "encoding"
STATE: Final = "state"
STATE_BYTES: Final = "state_bytes"
STATE_HASH: Final = "state_hash"
ORDINAL: Final = "ordinal"
PAYLOAD: Final = "payload"
PAYLOAD_BYTES: Final = "payload_bytes"
ACTIVE: Final = "active"
TIMERS: Final = "timers"
IN_FLIGHT: Final = "in_flight"
TERM: Final = "term"
ANY_SUFFICES: Final = "any_suffices"
TIMES_OUT: Final = "times_out"
MEMBER: Final = "member"
MEMBER_TERM: Final = "member_term"
MET: Final = "met"
HOLDER: Final = "holder"
NAME: Final = "name"
WAITS_FOR: Final = "waits_for"
TRACE_ID: Final = "trace_id"
MESSAGE_ID: Final = "message_id"
VECTOR_CLOCK: Final = "vector_clock"
CHECK: Final = "check"
SUBJECT: Final = "subject"
DETAIL: Final = "detail"
VERDICT: Final = "verdict"
REASON: Final = "reason"
CHECKED_AT: Final = "checked_at"
BATCH_ID: Final = "batch_id"
FIRST_SEEN: Final = "first_seen"
URI: Final = "uri"

HOLDS: Final = "holds"
VIOLATED: Final = "violated"
UNDECIDED: Final = "undecided"
ERROR: Final = "error"
PROOF: Final = "proof"
"""The value of `check` in the verdicts of dataframe_proof.py."""

Columns = dict[str, str]

SNAPSHOTS: Columns = {
    SNAPSHOT_ID: "string",
    LOG_POSITION: "bigint",
    "parent_id": "string",
    "protocol": "string",
    "initiators": "array<string>",
    VIEW_ID: "bigint",
    "epoch": "bigint",
    "started_at": "timestamp",
    "completed_at": "timestamp",
    STATE_BYTES: "bigint",
    "in_flight_bytes": "bigint",
}
PROCESS_STATES: Columns = {
    SNAPSHOT_ID: "string",
    PROCESS: "string",
    KEY: "string",
    STATE: "variant",
    STATE_BYTES: "binary",
    ENCODING: "string",
    STATE_HASH: "binary",
    POSITION: "bigint",
}
CHANNEL_FRAMES: Columns = {
    SNAPSHOT_ID: "string",
    CHANNEL: "string",
    FRAME: "bigint",
    FIRST_ORDINAL: "bigint",
    MESSAGE_COUNT: "int",
    CONSUMED: "int",
    BYTES: "binary",
    PROCESS: "string",
}
CHANNEL_MESSAGES: Columns = {
    SNAPSHOT_ID: "string",
    CHANNEL: "string",
    SOURCE: "string",
    TARGET: "string",
    ORDINAL: "bigint",
    PAYLOAD: "variant",
    PAYLOAD_BYTES: "binary",
}
FRONTIERS: Columns = {
    SNAPSHOT_ID: "string",
    CHANNEL: "string",
    KIND: "string",
    SENT_COUNT: "bigint",
    SENT_HASH: "binary",
    RECEIVED_COUNT: "bigint",
    RECEIVED_HASH: "binary",
}
FRONTIER_DETAILS: Columns = {
    **FRONTIERS,
    IN_FLIGHT_FRAMES: "bigint",
    SOURCE: "string",
    TARGET: "string",
    INCARNATION: "bigint",
    HASH: "string",
    UNUSED_HASH: "binary",
}
"""The frontiers with the view's columns for each channel: the input of the proof."""

EVENTS: Columns = {
    TRACE_ID: "string",
    PROCESS: "string",
    POSITION: "bigint",
    KIND: "string",
    CHANNEL: "string",
    ORDINAL: "bigint",
    MESSAGE_ID: "string",
    VECTOR_CLOCK: "map<string,bigint>",
}

VIEW_PROCESSES: Columns = {SNAPSHOT_ID: "string", PROCESS: "string"}
VIEW_CHANNELS: Columns = {
    SNAPSHOT_ID: "string",
    CHANNEL: "string",
    SOURCE: "string",
    TARGET: "string",
    KIND: "string",
    INCARNATION: "bigint",
    HASH: "string",
    UNUSED_HASH: "binary",
}
FRAGMENTS: Columns = {
    SNAPSHOT_ID: "string",
    PROCESS: "string",
    RECORDED_BY: "string",
    RECORDED_SNAPSHOT: "string",
    RECORDED_VIEW: "bigint",
}
CHANNEL_ENDS: Columns = {
    SNAPSHOT_ID: "string",
    PROCESS: "string",
    CHANNEL: "string",
    SENT_COUNT: "bigint",
    SENT_HASH: "binary",
    RECEIVED_COUNT: "bigint",
    RECEIVED_HASH: "binary",
    IN_FLIGHT_FRAMES: "bigint",
}
ACTIVITY: Columns = {
    SNAPSHOT_ID: "string",
    PROCESS: "string",
    ACTIVE: "boolean",
    TIMERS: "bigint",
    IN_FLIGHT: "bigint",
}
"""Whether a process is active, its number of pending timers, and the number of messages in flight to it."""
DECLARED_WAITS: Columns = {
    SNAPSHOT_ID: "string",
    PROCESS: "string",
    TERM: "bigint",
    ANY_SUFFICES: "boolean",
    TIMES_OUT: "boolean",
    MEMBER: "string",
    MEMBER_TERM: "bigint",
    MET: "boolean",
}
"""The waits of a process: term 0 and its nested terms. One row for each member, a process or another term.

`met`: the wait for this process is ignored, because a grant or the request is in flight, or it is not in the view.
"""
DECLARED_REFERENCES: Columns = {SNAPSHOT_ID: "string", PROCESS: "string", HOLDER: "string", NAME: "string"}
"""The references of a holder (NULL: none) and its process; without a holder, the references in messages."""
READING_ERRORS: Columns = {SNAPSHOT_ID: "string", LOG_POSITION: "bigint", URI: "string", REASON: "string"}
COMMITS: Columns = {LOG_POSITION: "bigint", SNAPSHOT_ID: "string", URI: "string", REASON: "string"}
"""The output of a log follower: an entry that commits a snapshot, or an unreadable entry (`reason`)."""

TABLES: dict[str, Columns] = {
    "snapshots": SNAPSHOTS,
    "process_states": PROCESS_STATES,
    "channel_frames": CHANNEL_FRAMES,
    "channel_messages": CHANNEL_MESSAGES,
    "frontiers": FRONTIERS,
    "events": EVENTS,
    "frontier_details": FRONTIER_DETAILS,
    "view_processes": VIEW_PROCESSES,
    "view_channels": VIEW_CHANNELS,
    "fragments": FRAGMENTS,
    "channel_ends": CHANNEL_ENDS,
    "activity": ACTIVITY,
    "declared_waits": DECLARED_WAITS,
    "declared_references": DECLARED_REFERENCES,
    "reading_errors": READING_ERRORS,
}
"""Every table of a store, with its columns in order; also the names of the SQL views."""

READABLE: dict[str, Columns] = {**TABLES, "commits": COMMITS}
"""The tables that `format("strobe")` reads."""

VERDICTS: Columns = {SNAPSHOT_ID: "string", CHECK: "string", VERDICT: "string", REASON: "string"}
VIOLATIONS: Columns = {SNAPSHOT_ID: "string", CHECK: "string", SUBJECT: "string", DETAIL: "variant"}
QUARANTINE: Columns = {URI: "string", SNAPSHOT_ID: "string", REASON: "string", FIRST_SEEN: "timestamp"}

OUTPUTS: dict[str, Columns] = {
    # A check itself has no time and no batch number.
    "verdicts": {**VERDICTS, CHECKED_AT: "timestamp", BATCH_ID: "bigint"},
    "violations": VIOLATIONS,
    "quarantine": QUARANTINE,
}
"""Every table that the pipeline writes."""
