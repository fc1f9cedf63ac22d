"""The step-by-step explanations: made by the real code, one rule per step, correct exactly in the scenes meant to
be.
"""

import pytest

from strobe.cli.simulation.explain import page
from strobe.protocol import ChandyLamport
from strobe.simulation.explain.diagram import draw
from strobe.simulation.explain.explanations import SYSTEMS, explain
from strobe.simulation.mutants.protocol_mutants import StatesWithoutChannels


def scenes():
    return [scene for name in SYSTEMS for scene in explain(name)]


@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: scene.title)
def test_a_scene_has_the_outcome_it_announces(scene):
    assert all(outcome.holds == scene.right for outcome in scene.outcomes)
    assert all((outcome.total == outcome.expected_total) == scene.right for outcome in scene.outcomes)
    assert all(moment.rule for moment in scene.moments)


def test_the_three_naive_snapshots_all_fail():
    assert [scene.right for scene in explain("naive")] == [False, False, False]


def test_the_word_count_shows_alignment_and_overtaking_barriers():
    aligned, too_early, unaligned, timed = explain("wordcount")
    assert [scene.right for scene in (aligned, too_early, unaligned, timed)] == [True, False, True, True]
    assert "sum holds one->sum back" in [moment.text for moment in aligned.moments]
    assert not any(aligned.outcomes[0].in_flight.values())
    assert unaligned.outcomes[0].in_flight["one->sum"] == timed.outcomes[0].in_flight["one->sum"] == [2, 3]


def test_chandy_lamport_fails_where_lai_yang_does_not():
    wrong, right = explain("reordering")
    assert "the cut is inconsistent" in wrong.outcomes[0].findings[0]
    assert right.outcomes[0].holds


def test_the_explanation_is_made_by_the_protocol_code(monkeypatch):
    """With a broken protocol in its place, the same script gives a wrong result."""
    assert explain("bank3")[0].outcomes[0].total == 300
    monkeypatch.setattr("strobe.simulation.explain.explanations.ChandyLamport", StatesWithoutChannels)
    assert explain("bank3")[0].outcomes[0].total == 285
    assert ChandyLamport is not StatesWithoutChannels


def test_a_diagram_has_a_line_for_each_moment_and_fits_the_width():
    for scene in scenes():
        lines = draw(scene.processes, scene.moments, width=100)
        assert max(len(line) for line in lines) <= 100
        assert [line[:2].strip() for line in lines if line[:2].strip()] == [
            str(number) for number in range(1, len(scene.moments) + 1)
        ]


def test_the_page_contains_every_scene_and_its_whole_script():
    text = page(scenes())
    assert all(scene.title in text for scene in scenes())
    assert text.count("</script>") == 1
