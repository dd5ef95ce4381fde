"""A prompt template as pieces: fixed text and expressions, in the order in which they are printed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Fixed text (`expression` None) or an expression, as written in the source.

    line: 1-based. start, end: characters of the source. constant: the expression has one value for all
    requests of a process (frozen at import, an upper-case constant, a loop over a literal).
    hint: what the surrounding code says about the value (a variable's name, a called function's body).
    """

    text: str
    expression: str | None
    line: int
    start: int
    end: int
    constant: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One template in a file. `path` names it: a variable, a JSON path, or nothing for a whole file.

    role: of the message that it becomes, None where the file does not tell.
    """

    path: str
    role: str | None
    pieces: tuple[Piece, ...]

    def stable_after(self, number: int) -> int:
        """Characters of fixed text behind piece `number`."""
        return sum(len(piece.text) for piece in self.pieces[number + 1 :] if piece.expression is None)


def line_of(source: str, position: int) -> int:
    """1-based line of a character."""
    return source.count("\n", 0, position) + 1
