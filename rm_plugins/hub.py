"""A hub repository, read in two steps: small files and tensor headers to decide, weights only to load."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rm_plugins.errors import CheckpointError, UnknownModelError

_SMALL = ["*.json", "*.model", "*.jinja", "*.txt", "README.md"]
"""The card is among them so that a repository of weights alone has a folder."""
_SUBFOLDERS = ["*/*"]


def fetch_description(model: str, revision: str | None) -> Path:
    """Brings configs and tokenizer into the hub cache; returns the folder, which is named by its commit.

    Raises:
        UnknownModelError: `model` is no hub id, or the hub has no such repository or revision.
        CheckpointError: the repository is gated, or neither cached nor in reach.
    """
    if model.count("/") != 1 or any(c.isspace() for c in model) or model.startswith(("/", ".")):
        raise UnknownModelError(f"No folder, record or hub repository is called {model!r}; a hub id is 'owner/name'.")
    return _snapshot(model, revision, _SMALL)


def fetch_files(model: str, folder: Path, names: list[str]) -> Path:
    """Brings files of the same commit into the folder."""
    return _snapshot(model, folder.name, names)


def list_files(model: str, folder: Path) -> list[str]:
    """Names of the commit's files, those in subfolders left out."""
    from huggingface_hub import HfApi

    with _explained(model, folder.name):
        return [entry.path for entry in HfApi().list_repo_tree(model, revision=folder.name)]


def fetch_headers(model: str, folder: Path, names: list[str]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the named safetensors files, read by range requests from their heads."""
    from huggingface_hub import HfApi

    api, commit = HfApi(), folder.name

    def shapes(name: str) -> dict[str, tuple[int, ...]]:
        tensors = api.parse_safetensors_file_metadata(model, name, revision=commit).tensors
        return {tensor: tuple(info.shape) for tensor, info in tensors.items()}

    with _explained(model, commit), ThreadPoolExecutor(8) as pool:
        return {tensor: shape for part in pool.map(shapes, names) for tensor, shape in part.items()}


def _snapshot(model: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    with _explained(model, revision):
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns, ignore_patterns=_SUBFOLDERS))


@contextmanager
def _explained(model: str, revision: str | None) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{model} is gated: accept its licence on its hub page, then log in with 'hf auth login'."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UnknownModelError(f"{model} has no revision {revision!r} on the hub.") from error
    except errors.RepositoryNotFoundError as error:
        raise UnknownModelError(
            f"The hub has no repository {model!r} that you may read, and no folder has it."
        ) from error
    except errors.SafetensorsParsingError as error:
        raise CheckpointError(f"A safetensors file of {model} has no readable header: {error}") from error
    except Exception as error:  # two HTTP clients are possible, neither imported here; what is not theirs goes on
        if not _is_network(error):
            raise
        raise CheckpointError(
            f"{model} is not on this machine and the hub cannot be reached ({type(error).__name__}). "
            "Check the network, or give the path of a local copy."
        ) from error


def _is_network(error: Exception) -> bool:
    """Hub errors are OSErrors; the client's own come from httpx or httpx2, by the version of huggingface_hub."""
    return isinstance(error, OSError) or any(kind.__name__ == "TransportError" for kind in type(error).__mro__)
