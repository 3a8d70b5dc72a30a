"""What is wrong with what a user gave."""

from workflow_scripts.common.printable import printable_lines


class InputError(ValueError):
    """A fault in the input; the message says what is wrong, where, and which values are allowed, one line per fault. It
    is printable, whatever it quotes. A command that meets one prints the message and ends with exit code 2."""

    def __str__(self) -> str:
        return printable_lines(super().__str__())
