"""Text or messages -> token ids, with the characters each token came from.

Special tokens cut a prompt into segments that tokenize independently, so each distinct segment is
encoded once. Long segments are cut at line ends too where that changes nothing, so that an edited prompt
costs its changed lines. Both are proven for every tokenizer at load (`kvtool.segments`), and dropped where
they fail.
"""

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
from numpy.typing import NDArray

from kvtool import embedded
from kvtool.blocks import TokenIds, fingerprint
from kvtool.errors import KvtoolError
from kvtool.requests import Request
from kvtool.segments import line_cuts, special_cuts
from kvtool.spans import Rendered, Span
from kvtool.templates import Template, load_template
from kvtool.token_bytes import TokenBytes, token_bytes
from kvtool.token_lengths import Fewest, fewest_tokens

CACHED_CHARACTERS = 64_000_000
"""Text that the segment cache may hold before it starts anew (a few hundred MB with its tokens)."""

ENTRY_CHARACTERS = 200
"""An entry of the segment cache counts as so many characters more: short ones are mostly overhead."""

LONG = 1000
"""Characters from which a segment is cut into lines: system prompts and tools, which come back edited."""

AT_ONCE = 4_000_000
"""Characters that are encoded at a time: the library keeps a hundred bytes and more for each token."""


class Tokenizer(Protocol):
    """`exact` is False when the ids only stand for a model's tokens (the byte fallback)."""

    name: str
    fingerprint: str
    exact: bool
    chat_template: str | None
    special_tokens: dict[str, Any]

    def encode(self, text: str) -> TokenIds:
        """Token ids, uint32 [n]. No special tokens are added; those in the text are recognised."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        """`encode` of each text, on all cores where the tokenizer can."""
        ...

    def ends(self, text: str) -> NDArray[np.int64]:
        """For each token of `encode(text)` the character after its last one, int64 [n], non-decreasing."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens; bytes that are not UTF-8 become U+FFFD."""
        ...

    def spelled(self, token: int) -> bytes:
        """The bytes of one token, also where it is special or only a part of a character."""
        ...

    def fewest(self, text: str) -> int:
        """Tokens that `encode(text)` has at least, told without encoding; 0 where nothing is known."""
        ...


class BytesTokenizer:
    """UTF-8 bytes, four to a token: the stand-in when no tokenizer is at hand. Counts are estimates."""

    name = "bytes"
    fingerprint = fingerprint(b"bytes/4")
    exact = False
    chat_template: str | None = None
    special_tokens: dict[str, Any] = {}  # noqa: RUF012

    def encode(self, text: str) -> TokenIds:
        """Each group of four bytes read as a little-endian uint32, the last one zero-padded."""
        data = text.encode("utf-8", "surrogatepass")
        return np.frombuffer(data + b"\0" * (-len(data) % 4), dtype="<u4").astype(np.uint32)

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        """`encode` of each text."""
        return [self.encode(text) for text in texts]

    def ends(self, text: str) -> NDArray[np.int64]:
        """A token ends with the character that holds its last byte."""
        widths = np.fromiter(
            (len(char.encode("utf-8", "surrogatepass")) for char in text), np.int64, len(text)
        )
        last_byte = np.cumsum(widths)
        total = int(last_byte[-1]) if len(text) else 0
        boundaries = np.minimum(np.arange(4, total + 4, 4), total)
        return np.searchsorted(last_byte, boundaries, side="left") + 1

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes of `ids`, the last one's padding removed."""
        return np.array(ids, dtype="<u4").tobytes().rstrip(b"\0").decode("utf-8", "replace")

    def spelled(self, token: int) -> bytes:
        """The four bytes, the padding removed."""
        return token.to_bytes(4, "little").rstrip(b"\0")

    def fewest(self, text: str) -> int:
        """All there are."""
        return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


class FastTokenizer:
    """A Hugging Face `tokenizers` file, with a bounded cache of encoded segments. Threads may share it."""

    exact = True

    def __init__(
        self, backend: Any, name: str, chat_template: str | None, special_tokens: dict[str, Any]
    ) -> None:
        self._backend = backend
        self.name = name
        self.fingerprint = fingerprint(backend.to_str().encode())
        self.chat_template = chat_template
        self.special_tokens = special_tokens
        self._cache: dict[str, TokenIds] = {}
        self._cached_characters = 0
        self._specials = special_cuts(backend)
        self._lines = line_cuts(backend)

    def to_json(self) -> str:
        """The tokenizer.json that it would be written as."""
        return str(self._backend.to_str())

    def encode(self, text: str) -> TokenIds:
        """Token ids, uint32 [n]."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        """Ids of each text; segments seen before are not encoded again."""
        if self._specials is None:
            return list(self._encoded(texts))
        if self._cached_characters > CACHED_CHARACTERS:
            self._cache = {}  # another one: a thread may be in the middle of the old one
            self._cached_characters = 0
        cut = [self._specials.split(text) for text in texts]
        cache = self._cache
        new = {
            segment: self._pieces(segment) for segments in cut for segment in segments if segment not in cache
        }
        missing = list({piece: None for pieces in new.values() for piece in pieces if piece not in cache})
        for piece, ids in zip(missing, self._encoded(missing), strict=True):
            cache[piece] = ids
            self._cached_characters += len(piece) + ENTRY_CHARACTERS
        for segment, pieces in new.items():
            if len(pieces) > 1:
                cache[segment] = np.concatenate([cache[piece] for piece in pieces])
                self._cached_characters += len(segment) + ENTRY_CHARACTERS
        return [np.concatenate([cache[segment] for segment in segments]) for segments in cut]

    def ends(self, text: str) -> NDArray[np.int64]:
        """Ends of the tokens in characters; a character split over several tokens counts for each."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        ends = np.fromiter((end for _, end in encoding.offsets), np.int64, len(encoding.ids))
        return np.maximum.accumulate(ends) if len(ends) else ends

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens; what the model's own decoder makes of invalid bytes."""
        return str(self._backend.decode([int(token) for token in ids], skip_special_tokens=True))

    def spelled(self, token: int) -> bytes:
        """From the vocabulary (see `kvtool.token_bytes`), else as it is decoded alone."""
        found = self._bytes(token)
        return self.decode([token]).encode() if found is None else found

    def fewest(self, text: str) -> int:
        """By the length of the longest token (see `kvtool.token_lengths`)."""
        return 0 if self._fewest is None else self._fewest(text)

    @cached_property
    def _bytes(self) -> TokenBytes:
        return token_bytes(self._backend)

    @cached_property
    def _fewest(self) -> Fewest | None:
        return fewest_tokens(self._backend)

    def _pieces(self, segment: str) -> list[str]:
        return self._lines.split(segment) if self._lines and len(segment) >= LONG else [segment]

    def _encoded(self, texts: Sequence[str]) -> Iterator[TokenIds]:
        """Ids of each text, AT_ONCE characters at a time."""
        start = 0
        while start < len(texts):
            stop, characters = start + 1, len(texts[start])
            while stop < len(texts) and characters + len(texts[stop]) <= AT_ONCE:
                characters += len(texts[stop])
                stop += 1
            part = list(texts[start:stop])
            yield from map(_ids, self._backend.encode_batch(part, add_special_tokens=False))
            start = stop


def _ids(encoding: Any) -> TokenIds:
    return np.array(encoding.ids, dtype=np.uint32)


def load_tokenizer(spec: str | None) -> Tokenizer:
    """The tokenizer for `--tokenizer`: `embedded`, `bytes`, a directory, a tokenizer.json, or a hub id.

    None takes the embedded model's where it is installed, else bytes.
    """
    if spec is None:
        spec = "embedded" if embedded.installed() else "bytes"
    if spec == "bytes":
        return BytesTokenizer()
    if spec == "embedded":
        return _from_directory(embedded.tokenizer_directory(), "embedded")
    path = Path(spec)
    if path.is_dir():
        return _from_directory(path, path.name)
    if path.is_file():
        return FastTokenizer(_read_backend(path), path.parent.name or path.name, *_settings(path.parent))
    return _from_hub(spec)


def _read_backend(path: Path) -> Any:
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception for any unreadable file
        raise KvtoolError(f"{path}: not a tokenizer.json: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    return backend


def _from_directory(folder: Path, name: str) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        return FastTokenizer(_read_backend(folder / "tokenizer.json"), name, *_settings(folder))
    return _through_transformers(str(folder), name)


def _from_hub(spec: str) -> Tokenizer:
    if spec.count("/") > 1 or spec.startswith((".", "/", "~")):
        raise KvtoolError(f"--tokenizer {spec}: no such file or directory")
    from huggingface_hub import constants, try_to_load_from_cache

    try:
        cached = isinstance(try_to_load_from_cache(spec, "tokenizer_config.json"), str)
    except ValueError as error:
        raise KvtoolError(f"--tokenizer {spec}: no such file or directory, and no hub id") from error
    if not cached and not getproxies() and not _is_reachable(constants.ENDPOINT):
        raise KvtoolError(  # the library would try for minutes
            f"--tokenizer {spec}: no such folder here, and {constants.ENDPOINT} cannot be reached",
            "name a folder, a tokenizer.json, embedded or bytes; a hub id needs the network or its cache",
        )
    return _through_transformers(spec, spec)


def _is_reachable(url: str) -> bool:
    """Whether the host's name can be looked up."""
    address = urlsplit(url)
    try:
        socket.getaddrinfo(address.hostname, address.port or 443)
    except OSError:
        return False
    return True


def _through_transformers(source: str, name: str) -> Tokenizer:
    """For what has no tokenizer.json on disk: transformers converts or downloads it."""
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(source)
        backend = loaded.backend_tokenizer
    except (OSError, ValueError, AttributeError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise KvtoolError(
            f"--tokenizer {source}: {reason}",
            "name a directory, a tokenizer.json, embedded, bytes or a hub id",
        ) from error
    backend.no_padding()
    backend.no_truncation()
    template = loaded.chat_template if isinstance(loaded.chat_template, str) else None
    return FastTokenizer(backend, name, template, dict(loaded.special_tokens_map))


def _settings(folder: Path) -> tuple[str | None, dict[str, Any]]:
    """(chat template, special tokens by name) from tokenizer_config.json and chat_template.jinja."""
    config: dict[str, Any] = {}
    if (folder / "tokenizer_config.json").is_file():
        try:
            config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise KvtoolError(f"{folder / 'tokenizer_config.json'}: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    special: dict[str, Any] = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(key)
        if value is not None:
            special[key] = value["content"] if isinstance(value, dict) else value
    return template, special


class PromptEncoder:
    """A tokenizer and a chat template: Request -> what the model would see."""

    def __init__(self, tokenizer: Tokenizer, template: Template) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.fingerprint = fingerprint(tokenizer.fingerprint.encode(), template.fingerprint.encode())

    def render(self, request: Request) -> Rendered:
        """Prompt text and its spans. Prompts given as ids have no text: an empty one comes back."""
        if request.messages is not None:
            return self.template.render(request.messages, request.tools)
        text = request.text or ""
        return Rendered(text, (Span(0, len(text), "text", "user"),) if text else ())

    def taken(self, requests: Sequence[Request]) -> tuple[list[Request], list[tuple[Request, KvtoolError]]]:
        """Those that the chat template takes (many want roles to alternate); the others with the reason."""
        taken: list[Request] = []
        refused: list[tuple[Request, KvtoolError]] = []
        for request in requests:
            try:
                self.render(request)
            except KvtoolError as error:
                refused.append((request, error))
            else:
                taken.append(request)
        return taken, refused

    def encode(self, requests: Sequence[Request]) -> list[TokenIds]:
        """Prompt token ids of each request, which must not be a block-id trace's."""
        texts = [self.render(request).text for request in requests if request.token_ids is None]
        encoded = iter(self.tokenizer.encode_batch(texts))
        return [next(encoded) if request.token_ids is None else request.token_ids for request in requests]


def load_encoder(
    tokenizer: str | None = None, template: str = "auto", warn: Callable[[str], None] = lambda _: None
) -> PromptEncoder:
    """The encoder for `--tokenizer` and `--chat-template`. `warn` gets what the user must know."""
    loaded = load_tokenizer(tokenizer)
    return PromptEncoder(loaded, load_template(template, loaded.chat_template, loaded.special_tokens, warn))


def batches(requests: Iterable[Request], size: int = 256) -> Iterable[list[Request]]:
    """Requests in lists of `size`, so that the tokenizer's threads have something to share."""
    batch: list[Request] = []
    for request in requests:
        batch.append(request)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
