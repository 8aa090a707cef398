"""What a checkpoint is, read from its config files and tensor headers, without loading a weight or importing torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rm_plugins import hub
from rm_plugins.errors import CheckpointError
from rm_plugins.packaged import how_to_get, packaged_folder

_SMALL_FILES = ("config.json", "adapter_config.json", "tokenizer_config.json")
_BLOCK = re.compile(r"(^|\.)(layers|h|layer|block|blocks)\.\d+\.\w+\.")
"""A module inside a numbered block; a stack of plain layers is a head."""
_PARTS_OF_BACKBONE = {"embed_tokens", "norm", "wte", "wpe", "ln_f", "embeddings", "encoder", "rotary_emb"}
_PICKLES = (".bin", ".pt")
_ADAPTER_PREFIX = "base_model.model."


@dataclass(frozen=True)
class Checkpoint:
    """A model folder, opened for reading its description only.

    Attributes:
        name: what the user called it.
        folder: where its files lie.
        config: `config.json`; empty for an adapter that has none.
        adapter: `adapter_config.json` of a peft adapter, or None.
        tokenizer: `tokenizer_config.json`, or empty.
        tensors: name -> shape of every tensor in its safetensors files; empty for other formats.
        repository: hub id that the folder is a snapshot of, or None.
    """

    name: str
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] | None = None
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    repository: str | None = None

    @property
    def architecture(self) -> str:
        """First entry of `architectures`, or an empty string."""
        return str((self.config.get("architectures") or [""])[0])

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language part of the config."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, Mapping) else self.config

    @property
    def hidden_size(self) -> int:
        """Width of the backbone's states."""
        return int(self.text_config["hidden_size"])

    def base(self) -> Checkpoint:
        """The checkpoint that holds the backbone: an adapter's base, or this one.

        Raises:
            CheckpointError: the adapter names no base, or its base cannot be had.
        """
        if self.adapter is None:
            return self
        name = self.adapter.get("base_model_name_or_path")
        if not name:
            raise CheckpointError(f"Adapter {self.name} names no base_model_name_or_path in adapter_config.json.")
        return Checkpoint.open(str(name), self.adapter.get("revision"))

    def heads(self) -> dict[str, tuple[int, ...]]:
        """Tensors that belong to no backbone, adapter layer or vocabulary projection: the candidates for a head.

        Names are as the model would call them: an adapter's wrapping is taken off.
        """
        tensors = {bare_name(name): shape for name, shape in self.tensors.items()}
        blocks = {name.split(".")[0] for name in tensors if _BLOCK.search(name)}
        known = _PARTS_OF_BACKBONE | blocks | {"lm_head"}
        return {n: s for n, s in tensors.items() if n.split(".")[0] not in known and ".lora_" not in n}

    @classmethod
    def open(cls, model: str, revision: str | None = None, *, bare: bool = False) -> Checkpoint:
        """Opens a local folder, or a hub repository, of which only small files and tensor headers are fetched.

        Args:
            model: folder, hub id, or name of a shipped model.
            revision: hub revision.
            bare: for a pickle without a config, and for a model of which the config alone is wanted: take the small
                files that are there, and read no headers.

        Raises:
            UnknownModelError: no such folder, and the hub has no such repository.
            CheckpointError: a file is missing, corrupt, gated or out of reach.
        """
        local = Path(model) if Path(model).is_dir() else packaged_folder(model)
        try:
            folder = local or hub.fetch_description(model, revision)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{how_to_get(model)}") from error
        config, adapter, tokenizer = (_read_json(folder / name) for name in _SMALL_FILES)
        if config is None and adapter is None and not bare:
            raise CheckpointError(
                f"{folder} has neither config.json nor adapter_config.json, so it is not a model folder."
            )
        here = local is not None or bare or _complete(folder)
        tensors = dict(_headers(folder)) if here else hub.fetch_headers(model, folder, _remote_weights(model, folder))
        return cls(model, folder, config or {}, adapter, tokenizer or {}, tensors, None if local else model)

    def files(self) -> list[str]:
        """Names of its files, those that are still on the hub too; none from subfolders."""
        if self.repository and not _complete(self.folder):
            return hub.list_files(self.repository, self.folder)
        return [path.name for path in self.folder.iterdir()]

    def file(self, name: str) -> Path:
        """A file beside its safetensors, brought from the hub if it is not there yet."""
        if self.repository and not (self.folder / name).exists():
            hub.fetch_files(self.repository, self.folder, [name])
        return self.folder / name

    def fingerprint(self) -> str:
        """Changes with any config, template or tokenizer file, and with the weights: their commit, or size and time."""
        digest = hashlib.sha256((self.folder.name if self.repository else "").encode())
        for path in sorted(p for p in self.folder.iterdir() if p.suffix in (".json", ".jinja", ".model", ".txt")):
            digest.update(path.name.encode() + path.read_bytes())
        for path in [] if self.repository else self._weights_here():
            digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
        if self.adapter:
            digest.update(self.base().fingerprint().encode())
        return digest.hexdigest()

    def _weights_here(self) -> list[Path]:
        pickles = sorted(path for path in self.folder.iterdir() if path.suffix in _PICKLES)
        return [*(self.folder / name for name in weight_files(self.folder)), *pickles]

    def with_weights(self) -> Path:
        """The folder with its weights in it, brought from the hub if they are not there yet."""
        if self.repository and not _complete(self.folder):
            hub.fetch_files(self.repository, self.folder, _remote_weights(self.repository, self.folder))
        return self.folder


def _complete(folder: Path) -> bool:
    """Whether every weight file of a hub snapshot has been fetched."""
    try:
        return bool(weight_files(folder))
    except CheckpointError:
        return False


def _remote_weights(model: str, folder: Path) -> list[str]:
    return weight_files(folder, hub.list_files(model, folder))


def bare_name(name: str) -> str:
    """Tensor name without what peft wraps around it."""
    if name.startswith(_ADAPTER_PREFIX):
        name = name.removeprefix(_ADAPTER_PREFIX)
    return name.replace(".modules_to_save.default", "").replace(".base_layer", "")


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}.") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds {type(data).__name__}, not a JSON object.")
    return data


def weight_files(folder: Path, names: Collection[str] | None = None) -> list[str]:
    """Names of the safetensors files that hold a folder's model: those that transformers and peft read, no others.

    A separate `value_head.safetensors` counts too, so that the head in it is named and not overlooked.

    Args:
        folder: where the small files lie.
        names: every file of the repository; those in the folder by default.

    Raises:
        CheckpointError: the index names a shard that is not there.
    """
    there = {path.name for path in folder.iterdir()} if names is None else set(names)
    index = folder / "model.safetensors.index.json"
    single = "adapter_model.safetensors" if "adapter_config.json" in there else "model.safetensors"
    files = {single} & there
    if not files and (listed := _read_json(index)):
        files = set(listed.get("weight_map", {}).values())
        if lost := sorted(files - there):
            raise CheckpointError(f"{folder} lacks {lost[0]}, which {index.name} names; it may be a partial download.")
    return sorted(files | ({"value_head.safetensors"} & there))


def _headers(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    from safetensors import SafetensorError, safe_open

    for path in (folder / name for name in weight_files(folder)):
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118  (safe_open is not a mapping)
                    yield name, tuple(file.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} is not a readable safetensors file ({error}); it may be a partial download."
            ) from error
