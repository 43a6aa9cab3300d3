"""Hostile settings by number: values that no key expects, in files and on the command line, and flipped bits in files.

`python tests/lab/campaign/hostile_values.py FOLDER FIRST COUNT` tries them and prints how many ended in which way.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from mpitrain.config import RunConfig, load_run_config, render_yaml
from mpitrain.config.messages import known_keys
from mpitrain.errors import ConfigError, LaunchError

EXPECTED = {"refused", "taken"}
LONGEST_LINE, LONGEST_S = 2000, 5.0
VALUES = (
    "", "null", "~", "true", "no", "0", "-0", "-1", "1", "2", "64", "64.0", "1e3", "1e400", "-1e-400", ".nan", ".inf",
    "0x10", "0o7", "1_000", "9223372036854775807", "9223372036854775808", "1" * 400, "1e" + "9" * 30, "12:30:00",
    "2026-11-22", "3e-4", "'3e-4'", "[]", "{}", "[[]]", "[null]", "[1, a, {}]", "{a: 1}", "{null: null}", "{1: 2}",
    "{[1]: 2}", "&a [*a]", "*a", "!!python/object/apply:os.system [touch x]", "!!binary aGk=", "!!set {a}", "!x y",
    "{<<: 1}", "{a: 1, a: 2}", "\x1b[2J", "\"\\e[2J\"", "\"\\u202e\"", "\x00", "\ud800", "\U0001f9ca", "a\nb",
    "a: b: c", "# no", "%YAML 9", "---", "--- a\n--- b", "- a", "|", ">", "'", "\"", "[", "{", "@x", "`x`",
    "../../etc/passwd", "/dev/full", "/dev/zero", "~/x", "$(touch x)", "; touch x", "{x}", "%s", "x" * 5000,
    "[" * 2000, "[" * 200 + "]" * 200, "icenet", "adam", "cosine", "os:system", "mpitrain.errors:UserError", "none",
    "auto", "full",
)  # fmt: skip


KEYS = (
    *(".".join(key) for key in known_keys()),
    "",
    ".",
    "training.",
    "training.epochs.x",
    "none_such",
    "training.none_such",
    "\x1b",
    "a b",
    "__class__",
)


def hostile(number: int, folder: Path) -> tuple[Path | None, list[str]]:
    """Return the file and the overrides of schedule `number`."""
    draw = random.Random(number)
    pairs = [(draw.choice(KEYS), draw.choice(VALUES)) for _ in range(draw.choice((1, 1, 1, 2, 5)))]
    how = draw.choice(("command line", "command line", "file", "flipped bits"))
    if how == "command line":
        return None, [f"{key}={value}" for key, value in pairs]
    path = folder / f"{number}.yaml"
    if how == "file":
        path.write_bytes("".join(f"{key}: {value}\n" for key, value in pairs).encode("utf-8", "surrogatepass"))
        return path, []
    content = bytearray(render_yaml(RunConfig()).encode())
    for _ in range(draw.choice((1, 3, 30))):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return path, []


def outcome(number: int, folder: Path) -> str:
    """Load the settings of schedule `number`; tell what became of them."""
    path, overrides = hostile(number, folder)
    started_s = time.process_time()
    try:
        loaded = load_run_config(path, overrides)
        said, lines = "taken", loaded.notices
        again = folder / f"{number}-again.yaml"
        again.write_text(render_yaml(loaded.config))
        if load_run_config(again).config != loaded.config:
            return "READ BACK OTHERWISE"
        again.unlink()
    except (ConfigError, LaunchError) as error:
        said, lines = "refused", (str(error),)
    except BaseException:
        return "TRACEBACK " + " | ".join(traceback.format_exc().splitlines()[-3:])
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
    if any(not line.isprintable() or len(line) > LONGEST_LINE for line in lines):
        return f"A LINE THAT IS NONE: {lines!r}"
    if time.process_time() - started_s > LONGEST_S:
        return "TOOK TOO LONG"
    return said


def main(folder: Path, first: int, count: int) -> int:
    """Try `count` settings from number `first`; print a table; return how many ended as none may."""
    folder.mkdir(parents=True, exist_ok=True)
    said = {number: outcome(number, folder) for number in range(first, first + count)}
    findings = {number: what for number, what in said.items() if what not in EXPECTED}
    print(dict(Counter(what if what in EXPECTED else "FINDING" for what in said.values())))
    for number, what in list(findings.items())[:20]:
        print(number, hostile(number, folder)[1], what[:500])
    return len(findings)


if __name__ == "__main__":
    sys.exit(min(1, main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
