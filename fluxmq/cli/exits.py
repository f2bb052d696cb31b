"""Exit codes of fluxmqctl, and the error that ends it with one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final, NoReturn

EXIT_DONE: Final = 0
EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_RUNNING: Final = 3
EXIT_NO_ANSWER: Final = 4


class ExitError(Exception):
    """Ends the program with an exit code and a sentence on standard error.

    ``rabbitmq_code``: the code instead under the name of one of RabbitMQ's programs; 0 for the usual one.
    """

    def __init__(self, code: int, text: str, rabbitmq_code: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.rabbitmq_code = rabbitmq_code


def leave(command: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its code; with 0 if its output is closed, as by ``| head``."""
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        # Otherwise the interpreter complains when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_DONE
    raise SystemExit(code)
