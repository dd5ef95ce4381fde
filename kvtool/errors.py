"""The only error a user sees: one line that says what is wrong, one that says what to do."""


class KvtoolError(Exception):
    """Bad input, configuration or environment. Commands print it as one line and exit with code 2.

    `message` names the file, row and field where there is one; `hint` says what to do about it.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message
