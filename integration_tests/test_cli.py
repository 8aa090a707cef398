"""The commands as a person types them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from integration_tests_builder import command

import rm_plugins
from rm_plugins import load_reward
from rm_plugins.cli.show import safe
from rm_plugins.errors import OptionError, RmPluginsError
from rm_plugins.reward.function import RewardFunction
from rm_plugins.reward.scorefile import ScoreFile
from rm_plugins.reward.spec import RewardSpec


def chat(answer):
    return {"messages": [{"role": "user", "content": "fox?"}, {"role": "assistant", "content": answer}]}


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


@pytest.fixture
def model(builder):
    return str(builder.classifier())


def test_the_public_names_are_there_sorted():
    assert rm_plugins.__all__ == sorted(rm_plugins.__all__)
    assert all(getattr(rm_plugins, name) for name in rm_plugins.__all__)


def test_the_version_is_shown():
    assert command("--version").stdout == f"rm-plugins {rm_plugins.__version__}\n"


def test_score_keeps_good_lines_and_names_bad_ones(model, tmp_path):
    rows = [
        chat("dog"),
        "{broken",
        {"prompt": "fox?", "completion": "dog"},
        {"prompt": "x"},
        {"messages": [{"role": "user"}]},
    ]
    file = write(tmp_path / "in.jsonl", *rows)
    result = command("score", model, file, "--device", "cpu")
    assert result.exit_code == 1
    assert "line 2: not JSON" in result.stderr and "line 4: needs 'messages'" in result.stderr
    assert "line 5: The conversation ends with a 'user' turn" in result.stderr
    out = [json.loads(line) for line in (tmp_path / "in.scores.jsonl").read_text().splitlines()]
    assert [row["line"] for row in out] == [1, 2, 3, 4, 5]
    [expected] = load_reward(model, device="cpu").score([chat("dog")["messages"]])
    assert out[0]["score"] == pytest.approx(expected.value, abs=1e-5) == pytest.approx(out[2]["score"], abs=1e-5)
    assert [row["score"] is None for row in out] == [False, True, False, True, True]


def test_only_a_newline_ends_a_line_and_bytes_that_are_no_text_are_one_bad_line(model, tmp_path):
    file = tmp_path / "in.jsonl"
    good = json.dumps(chat("a\u2028b\x85c"), ensure_ascii=False).encode()
    file.write_bytes(b"\xef\xbb\xbf" + good + b"\r\n" + b'{"prompt": "\xff"}\n' + good)
    result = command("score", model, file, "--json")
    summary = json.loads(result.stdout)
    assert (summary["rows"], summary["scored"], result.exit_code) == (3, 2, 1)
    assert "line 2: not JSON: 'utf-8' codec can't decode byte 0xff" in summary["errors"][0]


@pytest.mark.parametrize("rows_before", [0, 3, 4, 6, 9])
@pytest.mark.parametrize("torn", [b"", b'{"line": 99, "sco'])
def test_an_interrupted_score_ends_as_the_same_file(model, tmp_path, rows_before, torn):
    file = write(tmp_path / "in.jsonl", *[chat("dog " * n) for n in range(9)])
    reward = load_reward(model, device="cpu")
    whole = tmp_path / "whole.jsonl"
    for _ in ScoreFile(file, whole, reward, chunk=2):
        pass
    lines = whole.read_bytes().splitlines(keepends=True)
    part = tmp_path / "part.jsonl"
    part.write_bytes(b"".join(lines[:rows_before]) + (torn if rows_before < 9 else b""))
    note = (tmp_path / "whole.jsonl.run.json").read_text()
    (tmp_path / "part.jsonl.run.json").write_text(note)
    run = ScoreFile(file, part, reward, chunk=2)
    assert run.done == (9 if rows_before == 9 else rows_before // 2 * 2)
    for _ in run:
        pass
    assert part.read_bytes() == whole.read_bytes()


def test_a_result_with_rows_in_the_wrong_place_is_never_continued(model, tmp_path):
    file = write(tmp_path / "in.jsonl", *[chat("dog " * n) for n in range(4)])
    reward = load_reward(model, device="cpu")
    list(ScoreFile(file, tmp_path / "out", reward, chunk=2))
    lines = (tmp_path / "out").read_text().splitlines(keepends=True)
    (tmp_path / "out").write_text(lines[0] + lines[2])
    with pytest.raises(OptionError, match="has line 3 where 2 belongs"):
        ScoreFile(file, tmp_path / "out", reward, chunk=2)


def test_a_result_of_another_run_is_never_continued(model, tmp_path):
    file = write(tmp_path / "in.jsonl", chat("dog"))
    reward = load_reward(model, device="cpu")
    list(ScoreFile(file, tmp_path / "out.jsonl", reward, chunk=2))
    (Path(model) / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(OptionError, match=r"made by another run \(fingerprint differ\)"):
        ScoreFile(file, tmp_path / "out.jsonl", reward, chunk=2)
    write(file, chat("fox"))
    with pytest.raises(OptionError, match=r"made by another run \(source_sha256, fingerprint differ\)"):
        ScoreFile(file, tmp_path / "out.jsonl", reward, chunk=2)


def test_a_changed_plugin_is_never_continued(tmp_path, monkeypatch):
    from rm_plugins import Family, Score
    from rm_plugins.reward.resolve import Resolved

    module = tmp_path / "polite_family.py"
    module.write_text("def load(spec):\n    return Polite()\nclass Polite:\n    score = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import polite_family

    polite_family.Polite.score = lambda self, rows, progress=None: [Score(1.0) for _ in rows]
    family = Family(name="polite", kind="rule", summary="s", load=polite_family.load)
    monkeypatch.setattr(RewardSpec, "resolve", lambda self: Resolved(family, "", None, None, "test"))
    file = write(tmp_path / "in.jsonl", chat("dog"))
    reward = RewardFunction(RewardSpec("polite:"))
    assert list(ScoreFile(file, tmp_path / "out.jsonl", reward, chunk=2)) == [1]
    assert ScoreFile(file, tmp_path / "out.jsonl", reward, chunk=2).done == 1
    module.write_text(module.read_text() + "# changed\n")
    with pytest.raises(OptionError, match=r"made by another run \(fingerprint differ\)"):
        ScoreFile(file, tmp_path / "out.jsonl", reward, chunk=2)


def test_a_run_that_failed_before_its_first_score_leaves_nothing_in_the_way(model, tmp_path):
    file = write(tmp_path / "in.jsonl", chat("dog") | {"id": "row-7"})
    assert command("score", model, file, "--dtype", "fp16").exit_code == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl"]
    assert command("score", model, file, "--dtype", "float32").exit_code == 0
    assert json.loads((tmp_path / "in.scores.jsonl").read_text())["id"] == "row-7"
    again = command("score", model, file, "--dtype", "float32")
    assert "continuing: 1 of 1 rows were done" in again.stderr


def test_a_bad_row_never_stops_a_file(model, tmp_path):
    rows = [
        "[" * 100_000,
        '{"messages": [{"role": "assistant", "content": "\\ud83d"}]}',
        {"prompt": "a", "completion": None},
    ]
    file = write(tmp_path / "in.jsonl", *rows, {"\ud83d": 1}, chat("dog"))
    summary = json.loads(command("score", model, file, "--json").stdout)
    assert (summary["rows"], summary["scored"], len(summary["errors"])) == (5, 1, 4)


def test_missing_and_empty_files_are_named(model, tmp_path):
    reward = load_reward(model, device="cpu")
    here = write(tmp_path / "here.jsonl", chat("dog"))
    with pytest.raises(OptionError, match="is the file to score"):
        ScoreFile(here, here, reward, chunk=1)
    with pytest.raises(OptionError, match="There is no folder"):
        ScoreFile(here, tmp_path / "no" / "out", reward, chunk=1)
    (tmp_path / "orphan").touch()
    with pytest.raises(OptionError, match=r"has no orphan\.run\.json beside it"):
        ScoreFile(here, tmp_path / "orphan", reward, chunk=1)
    with pytest.raises(OptionError, match="There is no file"):
        ScoreFile(tmp_path / "none.jsonl", tmp_path / "o", reward, chunk=1)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(OptionError, match="is empty"):
        ScoreFile(tmp_path / "empty.jsonl", tmp_path / "o", reward, chunk=1)
    with pytest.raises(RmPluginsError, match="pooling='first' is none of"):
        raise command("score", model, write(tmp_path / "one", chat("dog")), "-o", "pooling=first").exception
    with pytest.raises(RmPluginsError, match="name=value"):
        raise command("score", model, tmp_path / "x", "-o", "bos").exception


def test_an_error_is_one_line_on_stderr_and_exit_code_two():
    script = Path(sys.executable).with_name("rm-plugins")
    result = subprocess.run([script, "inspect", "/no/such"], capture_output=True, text=True)
    assert result.returncode == 2 and result.stderr == "rm-plugins: There is no folder /no/such.\n"


def test_model_text_cannot_drive_a_terminal():
    assert safe("a\x1b[31mb\u202ec\nd") == "a\\x1b[31mb\\u202ec\nd"
