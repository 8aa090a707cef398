"""Tiny random checkpoints of exact architectures, and small real tokenizers trained here."""

import json
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

CORPUS = ["the quick brown fox jumps over the lazy dog " * 3, "user assistant system model tool x y z 0 1 2 3 ?!."]

GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
LLAMA = (
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "<|start|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
STYLES = {
    "gemma": (GEMMA, "<bos>", "<eos>", "<pad>", ["<start_of_turn>", "<end_of_turn>"]),
    "llama": (LLAMA, "<|bos|>", "<|eot|>", "<|pad|>", ["<|start|>", "<|end|>"]),
    "chatml": (CHATML, None, "<|im_end|>", "<|endoftext|>", ["<|im_start|>"]),
    "mistral": (MISTRAL, "<s>", "</s>", None, ["[INST]", "[/INST]"]),
}

OTHERS = {
    "athene": (LLAMA, "<|bos|>", "<|eot|>", "<|pad|>", ["<|start|>", "<|end|>", "<|cls|>"]),
    "plain": (None, "<s>", "</s>", None, ["<unk>"]),
    "unk first": (None, "<s>", "</s>", "<unk>", []),
    "steps": (CHATML, None, "<|im_end|>", "<|endoftext|>", ["<|im_start|>", "<extra_0>"]),
    "lines": (None, "<|im_end|>", "<|im_end|>", "<|endoftext|>", []),
    "sentencepiece": (None, "<s>", "</s>", None, ["<unk>"]),
}
"""Styles of models whose records say more of the text: a token in it or behind it, or all of it."""


@cache
def tokenizer(style, pad="own"):
    """A byte-level BPE tokenizer trained on a few lines; adds a BOS of its own where the style has one."""
    template, bos, eos, own_pad, more = (STYLES | OTHERS)[style]
    specials = [token for token in (own_pad, bos, eos, *more) if token]
    backend = Tokenizer(models.BPE(unk_token="<unk>" if style == "sentencepiece" else None))
    spaced = style == "sentencepiece"  # words carry the space before them, as Llama 2's and Mistral's do
    backend.pre_tokenizer = pre_tokenizers.Metaspace() if spaced else pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.Metaspace() if spaced else decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([*CORPUS, "ки + - Step 1: \n Sural?" * 9] if spaced else CORPUS, trainer)
    if bos and bos != eos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        eos_token=eos,
        pad_token=eos if pad == "eos" else own_pad,
        cls_token="<|cls|>" if "<|cls|>" in more else None,
        extra_special_tokens=more,
    )
    made.chat_template = template
    return made


def tiny_config(architecture, vocab, **changes):
    kind = CONFIG_MAPPING[architecture]
    settings = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "attn_implementation": "eager",
    }
    return kind(**(settings | changes))


class Builder:
    """Writes tiny classifier checkpoints under one folder."""

    def __init__(self, root):
        self.root = Path(root)
        self._count = 0

    def folder(self, name="rm"):
        self._count += 1
        return self.root / f"{name}-{self._count}"

    def classifier(
        self, architecture="llama", style="llama", tok=None, labels=1, seed=0, dtype=torch.float32, **config
    ):
        tok = tok or tokenizer(style)
        torch.manual_seed(seed)
        settings = {"num_labels": labels, "pad_token_id": tok.pad_token_id, "eos_token_id": tok.eos_token_id} | config
        model = AutoModelForSequenceClassification.from_config(tiny_config(architecture, len(tok), **settings))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.2)
        folder = self.folder(architecture)
        model.to(dtype).save_pretrained(folder)
        tok.save_pretrained(folder)
        return folder

    def policy(self, architecture="qwen3", style="chatml"):
        tok = tokenizer(style)
        torch.manual_seed(0)
        config = tiny_config(architecture, len(tok), pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id)
        folder = self.folder("policy")
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        tok.save_pretrained(folder)
        return folder


def rewrite(folder, edit):
    """Edits the tensors of a checkpoint in place."""
    path = folder / "model.safetensors"
    save_file(edit(load_file(path)), path, metadata={"format": "pt"})
    return folder


def real_tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


class _HubRequest(BaseHTTPRequestHandler):
    """The four routes of the hub that a download uses; `server.repositories` maps ids to folders."""

    protocol_version = "HTTP/1.1"
    COMMIT = "c" * 40

    def do_GET(self):
        self.server.asked.append((self.path.split("?")[0], self.headers.get("Range")))
        parts = self.path.split("?")[0].strip("/").split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if name == "some/gated":
            return self._send(403, headers={"X-Error-Code": "GatedRepo"})
        if name not in self.server.repositories:
            return self._send(404, headers={"X-Error-Code": "RepoNotFound"})
        if parts[-1] == "no-such-revision":
            return self._send(404, headers={"X-Error-Code": "RevisionNotFound"})
        folder = self.server.repositories[name]
        if parts[0] == "api":
            tree = [{"type": "file", "path": p.name, "size": p.stat().st_size, "oid": p.name} for p in folder.iterdir()]
            return self._send(200, json.dumps(tree if "tree" in parts else {"id": name, "sha": self.COMMIT}).encode())
        body, span = (folder / parts[-1]).read_bytes(), self.headers.get("Range")
        headers = {"ETag": f'"{parts[-1]}"', "X-Repo-Commit": self.COMMIT}
        if span:
            first, last = span.removeprefix("bytes=").split("-")
            return self._send(206, body[int(first) : int(last or len(body)) + 1], headers)
        return self._send(200, body, headers)

    do_HEAD = do_GET

    def _send(self, status, body=b"", headers=None):
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def hub_server(**repositories):
    """A hub on this machine; yields its address and the list of (path, range) that were asked."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _HubRequest)
    server.repositories, server.asked = {f"some/{name}": folder for name, folder in repositories.items()}, []
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.asked
    finally:
        server.shutdown()
        server.server_close()


class _JsonRequest(BaseHTTPRequestHandler):
    """Answers as `server.say(path, body, number)` says: (status, what becomes JSON)."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        with self.server.lock:
            self.server.asked.append((self.path, body))
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
            number = len(self.server.asked)
        status, said = self.server.say(self.path, body, number)
        with self.server.lock:
            self.server.now -= 1
        data = json.dumps(said).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@contextmanager
def json_server(say):
    """A server on this machine; yields its address, and itself: `asked` and `most` calls at once."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _JsonRequest)
    server.say, server.asked, server.lock, server.now, server.most = say, [], Lock(), 0, 0
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server
    finally:
        server.shutdown()
        server.server_close()


def command(*arguments):
    """Runs rm-plugins in this process."""
    from typer.testing import CliRunner

    from rm_plugins.cli.main import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments])
