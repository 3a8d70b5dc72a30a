"""What is wrong with what a user gave."""


class InputError(ValueError):
    """A fault in the input; the message says what is wrong, where, and which values are allowed, one line per fault. A
    command that meets one prints the message and ends with exit code 2."""
