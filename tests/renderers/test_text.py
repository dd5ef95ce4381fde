"""text is the terminal's drawing."""

from kvtool.renderers import terminal, text


def test_text_draws_what_terminal_draws() -> None:
    assert text.render is terminal.render
