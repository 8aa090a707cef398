"""reward.yaml: what it says, what it cannot say, and `rm-plugins fit`, which writes one."""

import json
import os
import random
import subprocess
import sys

import pytest
import yaml
from integration_tests_builder import command

from rm_plugins import load_reward
from rm_plugins.errors import OptionError
from rm_plugins.shaping import Clip, Fixed, Linear

RULE = "def f(answer, quality=0.0, **_):\n    return quality + 0.01 * len(answer)\n"


def written(folder, **keys):
    path = folder / "reward.yaml"
    path.write_text(yaml.safe_dump(keys))
    return path


def test_a_file_is_the_reward_that_it_describes(tmp_path, builder):
    folder = builder.classifier()
    steps = [{"fixed": {"mean": 1, "deviation": 2}}, {"clip": {"low": -3}}, {"linear_length": {"slope": 0.1}}]
    path = written(tmp_path, model=str(folder), device="cpu", on_failure=-9, options={"bos": "none"}, shaping=steps)
    same = [Fixed(mean=1, deviation=2), Clip(low=-3), Linear(slope=0.1)]
    expected = load_reward(folder, device="cpu", bos="none", shaping=same)
    found = load_reward(path)
    assert found(["fox?"], ["lazy dog"]) == expected(["fox?"], ["lazy dog"])
    assert found.on_failure == -9 and found.spec.options == {"bos": "none"}
    plain = load_reward(path, shaping=[Clip(high=0)], bos="keep")
    raw = load_reward(folder, device="cpu", bos="keep")(["fox?"], ["lazy dog"])
    assert plain(["fox?"], ["lazy dog"]) == [min(raw[0], 0)]


def test_a_path_in_a_file_is_one_from_its_folder(tmp_path, builder, monkeypatch):
    folder = builder.classifier()
    (tmp_path / "rm").symlink_to(folder)
    path = written(tmp_path, model="./rm", device="cpu")
    monkeypatch.chdir("/")
    assert load_reward(path)(["q"], ["a"]) == load_reward(folder, device="cpu")(["q"], ["a"])


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, r"reward\.yaml: 'model' is missing"),
        ({"model": "x", "modle": 1}, r"there is no 'modle'; it has model, family, record"),
        ({"model": "x", "dtype": "int8"}, r"dtype='int8' should be 'float32', 'bfloat16' or 'float16'"),
        ({"model": "x", "max_length": 0}, r"max_length=0 should be greater than or equal to 1"),
        ({"model": "x", "shaping": ["zscor"]}, r"reward\.yaml: There is no shaping step 'zscor'; there are running"),
        ({"model": "x", "shaping": [{"zscore": {"scope": "row"}}]}, r"scope='row' should be 'group' or 'batch'"),
        ({"model": "x", "shaping": [{"linear_length": {"slope": 1}}, "zscore"]}, r"'zscore' stands behind"),
        ({"model": "verifiable:json", "options": {"colum": 1}}, r"no option colum"),
    ],
)
def test_what_a_file_cannot_say_is_named(tmp_path, keys, says):
    keys = {key: value.replace("x", "verifiable:json") if key == "model" else value for key, value in keys.items()}
    with pytest.raises(OptionError, match=says):
        load_reward(written(tmp_path, **keys))


def test_a_file_that_is_none_is_named(tmp_path):
    with pytest.raises(OptionError, match="is no readable YAML"):
        load_reward(tmp_path / "no.yaml")
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(OptionError, match="holds list, not keys"):
        load_reward(tmp_path / "list.yaml")
    (tmp_path / "code.yaml").write_text("model: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(OptionError, match="is no readable YAML: could not determine a constructor"):
        load_reward(tmp_path / "code.yaml")


@pytest.fixture
def scored(tmp_path):
    """A pool in which longer answers are rewarded more, whatever their quality; two answers to each prompt."""
    pytest.importorskip("statsmodels", reason="the extra 'fit' is not installed")
    rule, rows, draw = tmp_path / "rule.py", tmp_path / "rows.jsonl", random.Random(0)
    rule.write_text(RULE)
    answers = ("x" * draw.randint(10, 400) for _ in range(200))
    rows.write_text(
        "".join(
            json.dumps({"prompt": f"p{n // 2}", "completion": answer, "quality": draw.gauss(0, 1)}) + "\n"
            for n, answer in enumerate(answers)
        )
    )
    assert command("score", f"verifiable:{rule}:f", rows).exit_code == 0
    return tmp_path / "rows.scores.jsonl", rows


def test_a_fitted_curve_takes_length_out_and_is_written_as_a_reward(tmp_path, scored):
    out = tmp_path / "fitted.yaml"
    shown = json.loads(
        command("fit", *scored, "--step", "length_curve", "--gold", "quality", "--out", out, "--json").stdout
    )
    assert shown["length correlation before (Spearman)"] > 0.5
    assert abs(shown["length correlation after (Spearman)"]) < 0.1
    assert shown["agreement with gold after"] > 0.9 and shown["gain in agreement"] > 0.1
    assert (tmp_path / "fitted.png").read_bytes().startswith(b"\x89PNG")
    assert "# answers: 200" in out.read_text()
    reward = load_reward(out)
    short, long = reward(["q", "q"], ["x" * 50, "x" * 350], quality=[0.5, 0.5])
    assert short == pytest.approx(long, abs=0.3)  # the raw rewards differ by 3
    table = command("fit", *scored, "--step", "length_curve", "-o", "alpha=0.5", "--out", out).stdout
    assert "length correlation after (Spearman)" in table and load_reward(out)._shaper.steps[0].alpha == 0.5


@pytest.mark.parametrize("step", ["fixed", "reference"])
def test_statistics_and_references_are_fitted_too(tmp_path, scored, step):
    out = tmp_path / "fitted.yaml"
    shown = json.loads(command("fit", *scored, "--step", step, "--out", out, "--json").stdout)
    raw = load_reward(f"verifiable:{tmp_path / 'rule.py'}:f")(["q"], ["x" * 205], quality=[0.0])
    [found] = load_reward(out)(["q"], ["x" * 205], quality=[0.0])
    expected = (raw[0] - shown["mean"]) / shown["deviation"]
    assert found == pytest.approx(expected if step == "fixed" else 0.5, abs=1e-6 if step == "fixed" else 0.1)
    assert shown["source sha256"] and "gain in agreement" not in shown


def test_a_pool_of_another_file_is_refused(tmp_path, scored):
    scores, rows = scored
    with pytest.raises(OptionError, match="No scored row has a number in column 'merit'"):
        raise command("fit", scores, rows, "--step", "fixed", "--gold", "merit").exception
    rows.write_text(rows.read_text() + "\n")
    with pytest.raises(OptionError, match="was not made from"):
        raise command("fit", scores, rows, "--step", "fixed").exception
    with pytest.raises(OptionError, match=r"There is no file .*none\.jsonl"):
        raise command("fit", tmp_path / "none.jsonl", rows, "--step", "fixed").exception


@pytest.mark.slow
def test_trl_s_command_line_runs_a_reward_file(tmp_path, builder):
    path = written(tmp_path, model=str(builder.classifier()), device="cpu", shaping=[{"tanh": {}}])
    (tmp_path / "data").mkdir()
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in ("quick fox?", "lazy dog!")]
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = {
        "model_name_or_path": builder.policy(),
        "dataset_name": tmp_path / "data",
        "reward_funcs": "rm_plugins.from_file.reward",
        "output_dir": tmp_path / "out",
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "max_completion_length": 8,
        "report_to": "none",
        "save_strategy": "no",
        "bf16": False,
        "use_cpu": True,
        "logging_steps": 1,
    }
    words = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    ran = subprocess.run(
        [sys.executable, "-m", "trl.scripts.grpo", *words],
        env=os.environ | {"RM_PLUGINS_REWARD": str(path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "1-tanh/mean" in ran.stdout
