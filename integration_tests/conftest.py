import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_tokenizers():
    folder = SHARED / "tokenizers"
    if not folder.is_dir():
        pytest.skip(f"the real tokenizers are not at {folder}")
    return folder


@pytest.fixture(scope="session")
def builder(tmp_path_factory):
    from integration_tests_builder import Builder

    return Builder(tmp_path_factory.mktemp("checkpoints"))
