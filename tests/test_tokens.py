"""Tokenizers: the segment cache changes nothing, ends fit, loading fails with the reason."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from kvtool import tokens
from kvtool.errors import KvtoolError
from kvtool.requests import Request, Source
from kvtool.templates import ChatMLTools
from kvtool.tokens import BytesTokenizer, FastTokenizer, PromptEncoder, batches, load_tokenizer

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PIECES = [*SPECIALS, " ", "\n", "hello", "wor", "1", "é", "漢字", "don't", "🙂", "  "]


@pytest.fixture(scope="module")
def backend() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    corpus = ["hello world, don't say 123 words twice\n\n" * 3, "été 漢字 🙂"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        corpus, BpeTrainer(vocab_size=320, special_tokens=SPECIALS, initial_alphabet=alphabet)
    )
    return made


texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@settings(deadline=None)
@given(text=texts)
def test_cached_segments_give_the_ids_of_the_whole(backend: Tokenizer, text: str) -> None:
    tokenizer = FastTokenizer(backend, "t", None, {})
    whole = backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text).tolist() == whole
    assert tokenizer.encode(text).tolist() == whole, "the second time comes from the cache"
    assert tokenizer.encode_batch([text, text + "x"])[0].tolist() == whole


@settings(deadline=None)
@given(text=texts)
def test_ends_cut_the_text_where_its_tokens_do(backend: Tokenizer, text: str) -> None:
    for tokenizer in (FastTokenizer(backend, "t", None, {}), BytesTokenizer()):
        ids, ends = tokenizer.encode(text), tokenizer.ends(text)
        assert len(ids) == len(ends)
        assert (np.diff(ends) >= 0).all() and (not len(ends) or ends[-1] == len(text))
        for number, end in enumerate(ends.tolist()):
            shared = tokenizer.encode(text[:end])[: number + 1]
            if isinstance(tokenizer, BytesTokenizer) and number + 1 < len(ends):
                assert shared.tolist() == ids[: number + 1].tolist()


def test_a_tokenizer_whose_segments_depend_on_each_other_is_not_cut() -> None:
    made = Tokenizer(models.BPE())
    # Metaspace marks only the first piece of the whole text: a cut segment would be marked again.
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.train_from_iterator(["hello world é 1 don't"], BpeTrainer(special_tokens=["<s>"]))
    tokenizer = FastTokenizer(made, "t", None, {})
    for text in ("hello<s>world", "a<s> b<s>c"):
        assert tokenizer.encode(text).tolist() == made.encode(text, add_special_tokens=False).ids


@settings(deadline=None)
@given(
    text=st.lists(st.sampled_from([*PIECES, "a\n", ".\n", "\r\n", "\t", "'s", "- x", "\u0301", "\x1c"])).map(
        "".join
    )
)
def test_cutting_at_line_ends_gives_the_ids_of_the_whole(backend: Tokenizer, text: str) -> None:
    tokenizer = FastTokenizer(backend, "t", None, {})
    assert tokenizer._lines is not None
    with mock.patch.object(tokens, "LONG", 1):
        assert tokenizer.encode(text).tolist() == backend.encode(text, add_special_tokens=False).ids


def test_an_edited_line_alone_is_encoded_again(backend: Tokenizer) -> None:
    tokenizer = FastTokenizer(backend, "t", None, {})
    lines = [f"hello {number} world\n" for number in range(100)]
    tokenizer.encode("".join(lines))
    before = set(tokenizer._cache)
    tokenizer.encode("".join([*lines[:50], "twice\n", *lines[51:]]))
    assert sorted(set(tokenizer._cache) - before, key=len)[:-1] == ["twice\n"], "and the text as a whole"


def test_a_tokenizer_with_tokens_that_span_lines_is_not_cut_there() -> None:
    made = Tokenizer(models.BPE())  # without a pre-tokenizer merges go across everything
    made.train_from_iterator(["a\nb" * 9], BpeTrainer(special_tokens=["<s>"], vocab_size=8))
    assert any("\nb" in token for token in made.get_vocab())
    tokenizer = FastTokenizer(made, "t", None, {})
    text = "a\nb" * 900
    assert tokenizer.encode(text).tolist() == made.encode(text, add_special_tokens=False).ids
    assert tokenizer._lines is None


def test_bytes_are_four_to_a_token_little_endian() -> None:
    tokenizer = BytesTokenizer()
    assert tokenizer.encode("abcde").tolist() == [0x64636261, 0x65]
    assert not tokenizer.exact and len(tokenizer.encode("")) == 0
    assert tokenizer.ends("aéé").tolist() == [3, 3]


def test_the_encoder_takes_messages_text_and_ids(backend: Tokenizer) -> None:
    encoder = PromptEncoder(FastTokenizer(backend, "t", None, {}), ChatMLTools())
    here = Source("f", 1)
    requests = [
        Request("1", here, text="hello"),
        Request("2", here, token_ids=np.array([7, 8], np.uint32)),
        Request("3", here, messages=[{"role": "user", "content": "hi"}]),
    ]
    text, ids, chat = encoder.encode(requests)
    assert text.tolist() == backend.encode("hello").ids and ids.tolist() == [7, 8]
    assert chat.tolist() == backend.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n").ids


def test_batches_keep_order_and_lose_nothing() -> None:
    requests = [Request(str(n), Source("f", n)) for n in range(7)]
    assert [[r.id for r in batch] for batch in batches(requests, 3)] == [
        ["0", "1", "2"],
        ["3", "4", "5"],
        ["6"],
    ]


def test_loading_from_a_folder_reads_template_and_special_tokens(backend: Tokenizer, tmp_path: Path) -> None:
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<|im_start|>"}, "chat_template": "old"}'
    )
    (tmp_path / "chat_template.jinja").write_text("new")
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.chat_template == "new" and loaded.special_tokens == {"bos_token": "<|im_start|>"}
    assert loaded.fingerprint == load_tokenizer(str(tmp_path / "tokenizer.json")).fingerprint


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(KvtoolError, match=r"tokenizer\.json: not a tokenizer"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))
    with pytest.raises(KvtoolError, match="no such file or directory"):
        load_tokenizer("./nowhere/at/all")


def test_a_hub_id_without_a_network_is_said_at_once(monkeypatch):
    def unknown(*_):
        raise OSError("Name or service not known")

    monkeypatch.setattr(tokens, "getproxies", dict)
    monkeypatch.setattr(tokens.socket, "getaddrinfo", unknown)
    monkeypatch.setattr(tokens, "_through_transformers", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(KvtoolError, match=r"--tokenizer no/such-model: no such folder here, and https://"):
        tokens.load_tokenizer("no/such-model")
    with pytest.raises(KvtoolError, match=r"--tokenizer -x: no such file or directory, and no hub id"):
        tokens.load_tokenizer("-x")
