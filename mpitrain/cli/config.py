"""`mpitrain config`: show, check and explain settings."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from mpitrain.cli.settings import add_settings, add_trust_flag, is_file, split_settings
from mpitrain.cluster import note_on_stderr
from mpitrain.errors import one_line


def add_config_command(commands: Any) -> None:
    """Add `config` to argparse's subparsers."""
    config = commands.add_parser("config", help="show, check or explain settings", description="Settings of a run.")
    actions = config.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, text, handler in (
        ("show", "print every setting with its value", _run_config_show),
        ("check", "check the settings without training", _run_config_check),
    ):
        action = actions.add_parser(name, help=text, description=text)
        add_settings(action)
        if name == "check":
            add_trust_flag(action)
        action.set_defaults(handler=handler, one_process=True)
    explain = actions.add_parser(
        "explain",
        help="show a setting's meaning, allowed values and default",
        description="Show the meaning, allowed values and default of settings. KEY is a key, a section, a part of a "
        "name or another trainer's name; without KEY, all settings are shown. With FILE.yaml or key.path=value, the "
        "settings given there are shown, and the options of the library code or your own code that they name.",
    )
    explain.add_argument(
        "keys", nargs="*", metavar="KEY | FILE.yaml", help="for example training.epochs, scheduler or warmup"
    )
    add_trust_flag(explain)
    explain.set_defaults(handler=_run_config_explain, one_process=True)
    schema = actions.add_parser(
        "schema", help="print the JSON schema of all settings", description="Print the JSON schema."
    )
    schema.set_defaults(handler=_run_config_schema, one_process=True)


def _run_config_show(options: argparse.Namespace) -> int:
    from mpitrain.config import OpenSettings, load_run_config

    loaded = load_run_config(*split_settings(options.settings))
    sys.stdout.write(OpenSettings(loaded.config).render())
    note_on_stderr(*loaded.notices)
    return 0


def _run_config_check(options: argparse.Namespace) -> int:
    from mpitrain.train.folder.settings import load_settings_to_read

    path, overrides = split_settings(options.settings)
    loaded = load_settings_to_read(path, overrides, options.trust_code)
    loaded.config.check_code()
    note_on_stderr(*loaded.notices)
    sys.stdout.write(f"{one_line(str(path or 'settings'))}: valid\n")
    return 0


def _run_config_explain(options: argparse.Namespace) -> int:
    from mpitrain.config.advice.explain import explain_settings

    settings = [argument for argument in options.keys if "=" in argument or is_file(argument)]
    keys = [argument for argument in options.keys if argument not in settings]
    texts = _explained(settings, not keys, options.trust_code) if settings else []
    sys.stdout.write("\n".join([*texts, *([explain_settings(keys)] if keys or not settings else [])]))
    return 0


def _explained(settings: list[str], with_keys: bool, trust_code: bool) -> list[str]:
    """Return paragraphs on the keys given in the settings (if `with_keys`) and on the code that the settings name."""
    from mpitrain.config import CodeComponent
    from mpitrain.config.advice.explain import explain_code, explain_settings, keys_in
    from mpitrain.config.section import stated_values
    from mpitrain.train.folder.settings import load_settings_to_read

    config = load_settings_to_read(*split_settings(settings), trust_code).config
    named = [one for _, one in config.components.values() if isinstance(one, CodeComponent)]
    keys = list(keys_in(stated_values(config)))
    return [*([explain_settings(keys)] if with_keys and keys else []), *map(explain_code, named)]


def _run_config_schema(options: argparse.Namespace) -> int:
    from mpitrain.config import render_schema

    sys.stdout.write(render_schema())
    return 0
