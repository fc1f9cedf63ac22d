"""Every way to spoil a good snapshot by one change, by name.

Those in MUTATIONS make the proof fail, each by itself. Those in HARMLESS change what a proof does not depend on, so a
verifier that rejects them is wrong.
"""

import random
from collections.abc import Iterator

from tests.spark import frame_mutations, recording_mutations
from tests.spark.generate import Execution
from tests.spark.spoiling import Frames, Mutation, changed_frame, replace, with_changed_fragment, with_changed_frames

from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.frames import UNORDERED
from strobe.protocol.values.ids import SnapshotId


def mutants(mutation: Mutation, seed: str, count: int, first_counter: int) -> Iterator[Snapshot]:
    """Yield `count` snapshots changed by `mutation`, of executions that it applies to."""
    rng = random.Random(seed)
    counter = first_counter
    while counter < first_counter + count:
        good = Execution(rng).snapshot(SnapshotId(1, counter, "coordinator"))
        mutant = mutation(good, rng)
        if mutant is not None:
            yield mutant
            counter += 1


def reordered_unordered_channel(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    return with_changed_frames(snapshot, rng, lambda frames: frames[::-1], frames_min=2, kind=UNORDERED)


def other_state(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """A proof covers channels only; replay checks that a state follows from its messages."""
    process = rng.choice(snapshot.view.processes)
    state = snapshot.fragments[process].state
    assert state is not None
    return with_changed_fragment(snapshot, process, state=replace(state, data=b"\xc0"))


def other_cut_index(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The cut index and the view of a frame are not hashed."""

    def change(frames: Frames) -> Frames:
        return tuple(changed_frame(item, index=9, view=9) for item in frames)

    return with_changed_frames(snapshot, rng, change)


def by_name(*mutations: Mutation) -> dict[str, Mutation]:
    return {mutation.__name__: mutation for mutation in mutations}  # type: ignore[attr-defined]


MUTATIONS = by_name(
    frame_mutations.wrong_byte,
    frame_mutations.empty_body,
    frame_mutations.other_message,
    frame_mutations.invented_message,
    frame_mutations.missing_frame,
    frame_mutations.extra_frame,
    frame_mutations.duplicated_frame,
    frame_mutations.swapped_frames,
    frame_mutations.moved_frame,
    frame_mutations.changed_message_count,
    frame_mutations.renumbered_frame,
    frame_mutations.frame_from_zero,
    frame_mutations.wrong_consumed,
    recording_mutations.forgotten_sender,
    recording_mutations.forgotten_receiver,
    recording_mutations.forgotten_channel_state,
    recording_mutations.forgotten_process,
    recording_mutations.strange_process,
    recording_mutations.strange_channel,
    recording_mutations.inconsistent_cut,
    recording_mutations.late_sender,
    recording_mutations.wrong_received_count,
    recording_mutations.wrong_sent_hash,
    recording_mutations.wrong_received_hash,
    recording_mutations.longer_received_hash,
    recording_mutations.nothing_sent_but_a_hash,
    recording_mutations.wrong_view,
    recording_mutations.other_snapshot,
    recording_mutations.exchanged_fragments,
    recording_mutations.other_incarnation,
    recording_mutations.other_kind,
    recording_mutations.weaker_hash,
    recording_mutations.impossible_hash,
)
HARMLESS = by_name(reordered_unordered_channel, other_state, other_cut_index)
