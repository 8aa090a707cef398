"""Files whose answers are compared: those to one prompt are scored together, in whatever run."""

import json

import pytest
from test_pairs import Judge, longer, talks

from rm_plugins import Family
from rm_plugins.errors import OptionError
from rm_plugins.judging.pairs import Pairwise
from rm_plugins.reward.chunks import chunk_ends, group_ends
from rm_plugins.reward.function import RewardFunction
from rm_plugins.reward.resolve import Resolved
from rm_plugins.reward.scorefile import ScoreFile
from rm_plugins.reward.spec import RewardSpec

ROWS = [("p", "a"), ("p", "bb"), ("p", "ccc"), ("q", "d"), ("q", "ee"), ("r", "f"), ("r", "gg")]


@pytest.mark.parametrize(("total", "size", "ends"), [(5, 2, [2, 4, 5]), (4, 2, [2, 4]), (1, 9, [1])])
def test_chunks_end_every_so_many_rows(total, size, ends):
    assert chunk_ends(total, size) == ends


@pytest.mark.parametrize(("size", "ends"), [(1, [3, 5, 7]), (2, [3, 5, 7]), (3, [3, 7]), (4, [5, 7]), (9, [7])])
def test_a_chunk_ends_where_a_prompt_does(size, ends):
    assert group_ends(talks(*ROWS), size) == ends


def test_a_row_without_a_conversation_is_no_answer_to_the_prompt_beside_it():
    assert group_ends([*talks(("p", "a")), None, None, *talks(("q", "b"))], 1) == [1, 3, 4]


def test_answers_that_do_not_stand_together_are_named_by_their_rows():
    with pytest.raises(OptionError, match="Rows 1 and 3 answer one prompt"):
        group_ends(talks(("p", "a"), ("q", "b"), ("p", "c")), 1)


@pytest.fixture
def reward(monkeypatch):
    judge = Pairwise(Judge(longer))
    family = Family(name="longer", kind="pairwise", summary="s", load=lambda spec: judge)
    monkeypatch.setattr(RewardSpec, "resolve", lambda self: Resolved(family, "", None, None, "test"))
    return RewardFunction(RewardSpec("longer:"))


def write(path, rows):
    path.write_text("".join(json.dumps({"messages": row.messages}) + "\n" for row in talks(*rows)))
    return path


def test_a_run_of_comparisons_that_was_stopped_gives_the_file_of_one_that_was_not(reward, tmp_path):
    source, whole, stopped = write(tmp_path / "in.jsonl", ROWS), tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    assert list(ScoreFile(source, whole, reward, chunk=2)) == [3, 2, 2]
    scores = [json.loads(line)["score"] for line in whole.read_text().splitlines()]
    assert scores == pytest.approx([0.1, 0.5, 0.9, 0.1, 0.9, 0.1, 0.9])
    assert next(iter(ScoreFile(source, stopped, reward, chunk=2))) == 3
    stopped.write_text(stopped.read_text() + "".join(whole.read_text().splitlines(keepends=True)[3:4]))  # half a chunk
    assert list(ScoreFile(source, stopped, reward, chunk=2)) == [2, 2]
    assert stopped.read_bytes() == whole.read_bytes()


def test_a_file_whose_answers_are_scattered_is_refused_before_anything_is_written(reward, tmp_path):
    source = write(tmp_path / "in.jsonl", [ROWS[0], ROWS[3], ROWS[1]])
    with pytest.raises(OptionError, match=r"Rows 1 and 3 .* sort the file"):
        list(ScoreFile(source, tmp_path / "out.jsonl", reward, chunk=1))
    assert not (tmp_path / "out.jsonl").exists()
