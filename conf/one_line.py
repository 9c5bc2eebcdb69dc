"""The command line's way of refusing words, the same in every room; knows no verb."""

import argparse
from typing import NoReturn

EXIT_USAGE = 2


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, like every other error here."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"error: {message}; see --help\n")
