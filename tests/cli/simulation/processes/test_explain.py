"""`strobe explain`: the algorithm step by step, in the terminal, as JSON and as a page."""

from tests.cli.command_line import refused, run

from strobe.simulation.mutants.protocol_mutants import StatesWithoutChannels


def test_the_word_count_shows_an_input_blocked_until_alignment():
    result = run("explain", "--system", "wordcount")
    assert (result.code, result.err) == (0, "")
    text = " ".join(result.out.split())
    held, recorded, resumed = map(
        text.index, ("sum holds one->sum back", "sum records its", "sum continues to receive on one->sum")
    )
    assert held < recorded < resumed
    assert "in flight nothing" in text
    assert "S1: the proof holds" in text


def test_json_has_every_moment_and_the_outcomes():
    result = run("explain", "--system", "wordcount", "--json")
    assert result.code == 0
    aligned, too_early, *_ = result.document
    assert "sum holds one->sum back" in [moment["text"] for moment in aligned["moments"]]
    assert [outcome["holds"] for outcome in aligned["outcomes"]] == [True]
    assert [outcome["holds"] for outcome in too_early["outcomes"]] == [False]


def test_a_page_is_written_to_a_file(tmp_path):
    file = tmp_path / "explain.html"
    result = run("explain", "--system", "wordcount", "--html", file)
    assert (result.code, f"written: {file}" in result.out) == (0, True)
    text = file.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "sum holds one->sum back" in text.replace("\\u003e", ">")


def test_an_unexpected_outcome_of_a_scene_is_exit_code_1(monkeypatch):
    monkeypatch.setattr("strobe.simulation.explain.explanations.ChandyLamport", StatesWithoutChannels)
    result = run("explain", "--system", "bank3")
    assert (result.code, "the proof fails" in result.out) == (1, True)


def test_an_unknown_system_or_unwritable_page_is_refused(tmp_path):
    refused(run("explain", "--system", "wordcounts"), "wordcount")
    refused(run("explain", "--system", "wordcount", "--html", tmp_path / "none" / "x.html"), "cannot write")
