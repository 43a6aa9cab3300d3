"""What runs from streamed files have said."""

import re


def sha_of(finished):
    return re.search(r"SHA-256 (\w+)", finished.stdout).group(1)
