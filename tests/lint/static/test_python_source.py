"""Python sources: text is followed, frozen values are silent, positions are exact."""

import contextlib
import textwrap

import pytest

from kvtool.errors import KvtoolError
from kvtool.lint.static.judge import findings
from kvtool.lint.static.python import read_python

HEAD = '''
from datetime import date, datetime
import uuid
TODAY = date.today()
RULES = """%s"""
def clock():
    return datetime.now().isoformat()
''' % ("Never invent a price, ask before you book, and hand over to a person when you cannot help. " * 3)


def found(body: str) -> list[tuple[str, str]]:
    source = HEAD + textwrap.dedent(body)
    return [
        (one.code, source[one.location.start : one.location.end])
        for prompt in read_python(source, "a.py")
        for one in findings(prompt, "a.py")
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('def build():\n    return f"It is {datetime.now()}. {RULES}"', [("KV101", "datetime.now()")]),
        ('def build():\n    now = clock()\n    return "It is " + now + RULES', [("KV101", "now")]),
        ('def build():\n    return "It is {}. ".format(clock()) + RULES', [("KV101", "clock()")]),
        ('def build():\n    return "It is {x}. ".format(x=clock()) + RULES', [("KV101", "clock()")]),
        ('def build():\n    return "It is %s. " % clock() + RULES', [("KV101", "clock()")]),
        ('def build():\n    return ("At @@." + RULES).replace("@@", clock())', [("KV101", "clock()")]),
        (
            'def build():\n    p = [str(uuid.uuid4())]\n    p.append(RULES)\n    return " ".join(p)',
            [("KV103", "uuid.uuid4()")],
        ),
        (
            'def build(user):\n    s = f"User: {user.name}\\n"\n    s += RULES\n    return s',
            [("KV107", "user.name")],
        ),
        (
            'def call(c):\n    c.create(messages=[{"role": "system", "content": f"{clock()} {RULES}"}])',
            [("KV101", "clock()")],
        ),
        ('def build(mood):\n    return f"Be {mood}. {RULES}"', [("KV100", "mood")]),
    ],
)
def test_what_varies_before_stable_text(body: str, expected: list[tuple[str, str]]) -> None:
    assert found(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        'def build():\n    return f"{RULES} Today is {date.today()}"',  # stands last
        'def build():\n    return f"Since {TODAY}. {RULES}"',  # frozen at import
        'PROMPT = f"Started {datetime.now()}. {RULES}"',
        'def build():\n    return f"Rule {3}. {RULES}"',
        'def log(x):\n    print(f"done {x} at {clock()}")',  # no prompt
        'def build():\n    return "Rules\\n" + "-" * 40 + f"{\'=\' * 9}" + RULES',
    ],
)
def test_silent(body: str) -> None:
    assert found(body) == []


def test_a_callable_partial_varies_and_a_called_one_does_not() -> None:
    text = "It is {when}. " + "Follow every rule of the house, which are many and all of them good. " * 4
    assert found(f'P = PromptTemplate(template="{text}", partial_variables={{"when": clock}})') == [
        ("KV101", "{when}")
    ]
    assert found(f'P = PromptTemplate(template="{text}", partial_variables={{"when": clock()}})') == []


def test_a_syntax_error_names_its_line() -> None:
    with pytest.raises(KvtoolError, match=r"a\.py, line 2"):
        read_python("x = 1\ny = (", "a.py")


def test_functions_that_call_each_other_end() -> None:
    names = [f"f{number}" for number in range(12)]
    calls = " + ".join(f"{name}()" for name in names)
    bodies = "".join(f"def {name}():\n    x = {calls}\n    return {calls} + RULES\n" for name in names)
    assert [prompt.path for prompt in read_python(HEAD + bodies, "a.py")] == ["f0"]
    doubling = "def build():\n    p = f'Now {clock()}. ' + RULES\n" + "    p += p\n" * 40 + "    return p\n"
    assert [code for code, _ in found(doubling)][:1] == ["KV101"]


def test_a_method_of_something_else_is_not_the_function_of_that_name() -> None:
    assert found("def build(page):\n    return page.clock_text() + RULES") == [("KV101", "page.clock_text()")]
    get = "def get():\n    return f'{uuid.uuid4()} ' + RULES\n"
    build = "def build(store):\n    return store.get('x') + RULES"
    assert found(get + build) == [("KV103", "uuid.uuid4()"), ("KV100", "store.get('x')")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("failed", "items were refused. Mend what is wrong with each, then send them again. " * 4),
        ("page", "<!doctype html><html><title></title>" + "<p>You are here.</p>" * 40),
        ("error_text", "is unknown. You are asked to name another one of them. " * 9),
        ("rows", "SELECT name, answer FROM prompts WHERE you are ready. " * 9),
    ],
)
def test_texts_for_people_are_no_prompts(name: str, text: str) -> None:
    assert found(f"def {name}(count):\n    return f'{{count}} ' + {text!r}") == []


@pytest.mark.parametrize(
    "source", ["x = 1\0", "x = " + "(" * 3000 + ")" * 3000, "x = " + "1 + " * 9000 + "1"]
)
def test_what_cannot_be_followed_is_an_error_of_the_file(source: str) -> None:
    with contextlib.suppress(KvtoolError):
        assert read_python(source, "a.py") == []
