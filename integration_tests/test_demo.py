"""The demonstration's command, on tiny models; `make demo` runs it on the real ones."""

import re
import subprocess
import sys
from pathlib import Path


def test_the_demo_plays_its_three_acts_on_any_folder(builder):
    script = Path(sys.executable).with_name("rm-plugins")
    models = ["--policy", builder.policy(), "--reward", builder.classifier("qwen3", "chatml")]
    result = subprocess.run([script, "demo", *models, "-n", "2", "--steps", "2"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "flags: control_tokens" in result.stdout
    assert result.stdout.count("│ best ") == result.stdout.count("│ worst ") == 4  # one pair a prompt
    assert "step 2/2: reward " in result.stdout
    assert re.search(r"mean reward before [+-]\d\.\d{3} ± \d\.\d{3}, after [+-]\d\.\d{3} ± \d", result.stdout)
