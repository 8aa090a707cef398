"""vLLM's pooling server as a peer; vLLM lives in an environment of its own (`make .venv-vllm/ready`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.world import Turns

_PORT, _PATIENCE = 8123, 600


class VllmPath:
    """Classification by a local server: all texts in one request, raw logits, prefix caching on as it comes.

    Args:
        python: interpreter of the environment that has vLLM.
        folder: checkpoint.
    """

    def __init__(self, python: str, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._log = (folder.parent / "benchmark-vllm.log").open("w")
        raw = json.dumps({"use_activation": False})
        options = {"model": folder, "runner": "pooling", "dtype": "float32", "port": _PORT, "pooler-config": raw}
        command = [python, "-m", "vllm.entrypoints.openai.api_server"]
        command += [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        settings = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "0-1"}
        settings |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        self._server = subprocess.Popen(
            command, env=os.environ | settings, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._wait()
        self._signal(signal.SIGSTOP)

    def _wait(self) -> None:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until and self._server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/health")
            except (urllib.error.URLError, ConnectionError):
                time.sleep(1)
            else:
                return
        self._server.kill()
        sys.exit(f"vLLM did not start in {_PATIENCE} s; its words are in {self._log.name}")

    def __call__(self, prompts: list[Turns], completions: list[Turns]) -> list[float]:
        """Scores of the rendered conversations, in order, from an empty prefix cache.

        Between calls its processes are held, because they wait in loops that would slow down the others.
        """
        self._signal(signal.SIGCONT)
        self._post("/reset_prefix_cache", {})
        talks = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
        texts = [self._tokenizer.apply_chat_template(talk, tokenize=False) for talk in talks]
        found = self._post("/classify", {"input": texts, "add_special_tokens": False})
        self._signal(signal.SIGSTOP)
        return [float(row["probs"][0]) for row in sorted(found["data"], key=lambda row: row["index"])]

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{_PORT}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read() or "null")

    def _signal(self, number: int) -> None:
        os.killpg(self._server.pid, number)

    def close(self) -> None:
        """Stops the server."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._server.wait(60)
        self._log.close()
