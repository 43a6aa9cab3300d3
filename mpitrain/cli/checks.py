"""The commands `verify` and `doctor`: options and handlers. Loads only argparse until one runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from mpitrain.cli.settings import add_settings, add_trust_flag, ranks_of, split_settings
from mpitrain.cluster import print_on_stderr
from mpitrain.errors import UserError, one_line


def add_verify_command(commands: Any) -> None:
    """Add `verify` to argparse's subparsers."""
    verify = commands.add_parser(
        "verify",
        help="check that Python and the C++ program compute the same",
        description="Run both programs and compare all numbers, from the selected samples to the "
        "Jacobian; with --invariance, run the same training in several ways. Exit code 0: all comparisons passed.",
    )
    add_settings(verify)
    verify.add_argument(
        "--config", metavar="FILE.yaml", help="verify your own run on your own data (the same as FILE.yaml)"
    )
    verify.add_argument(
        "--ranks",
        metavar="LIST",
        help="numbers of ranks, comma-separated (default: 1,2,3,4; with --invariance 2,1,3: the first is compared with "
        "all others)",
    )
    verify.add_argument(
        "--output",
        metavar="FOLDER",
        default="mpitrain_verify",
        help="folder of the report and the traces (default: mpitrain_verify)",
    )
    verify.add_argument(
        "--case",
        metavar="NAME",
        action="append",
        default=[],
        help="run only this case of the table, such as 'reference' or 'standard, batch 64/torch'; repeatable; "
        "key.path=value changes its settings",
    )
    ways = verify.add_mutually_exclusive_group()
    ways.add_argument(
        "--invariance",
        action="store_true",
        help="check that the result of a run (yours, or a small one) does not depend on how it is started: REP the "
        "same run again, PEM on other numbers of ranks, ERS stopped and resumed, ERP resumed on another "
        "number of ranks, PET by torchrun instead of MPI; --case PEM selects one of them",
    )
    _add_certificate_flags(verify, ways)
    add_trust_flag(verify)
    verify.set_defaults(handler=_run_verify)


def _add_certificate_flags(verify: argparse.ArgumentParser, ways: Any) -> None:
    ways.add_argument(
        "--certificate",
        metavar="RUN",
        help="train the run in this folder again in the ways given by --gates, and write to RUN/certificate.json which "
        "of them gave the same weights (an in-toto Statement; see mpitrain help certificate)",
    )
    ways.add_argument(
        "--check-certificate",
        metavar="FILE",
        help="compare the files of a run with the certificate in its folder, then run the gates given by --gates; "
        "data.data_path=... is the present path of its data files",
    )
    verify.add_argument(
        "--gates",
        metavar="NAME",
        nargs="+",
        action="extend",
        help="gates of a certificate: repeat (the default of --certificate), restart, ranks:1,3, "
        "instruction-sets:x86-64-v3,x86-64; @steps=N after a name limits it to the first N steps",
    )


def add_doctor_command(commands: Any) -> None:
    """Add `doctor` to argparse's subparsers."""
    doctor = commands.add_parser(
        "doctor",
        help="find errors in the installation, the settings, the data and the launch",
        description="Check the installation, the settings and the data; under mpirun or srun also the ranks, their "
        "network and their speed. Exit codes: 0 no failure, 2 wrong input, 3 wrong installation, launch or network.",
    )
    add_settings(doctor)
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")
    doctor.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=60.0,
        help="time limit in seconds of each step between the ranks, after which the missing rank is named "
        "(default: 60)",
    )
    doctor.add_argument(
        "--static", action="store_true", help="run only the checks that need neither MPI nor other ranks"
    )
    add_trust_flag(doctor)
    doctor.set_defaults(handler=_run_doctor)


def _run_verify(options: argparse.Namespace) -> int:
    from mpitrain.verify.report import render_table, to_json, write_json
    from mpitrain.verify.verify import VerifyRequest, verify

    if options.certificate is not None or options.check_certificate is not None:
        return _run_certificate(options)
    if options.gates:
        raise UserError("--gates: needs --certificate RUN or --check-certificate FILE; give one of them")
    if options.invariance:
        return _run_invariance(options)
    path, overrides = split_settings(options.settings)
    config_path = Path(options.config) if options.config else path
    if options.case and config_path:
        raise UserError(
            f"--case {options.case[0]!r} is a case of the table, {config_path} is your own run; give only one of them"
        )
    request = VerifyRequest(
        Path(options.output),
        tuple(ranks_of("1,2,3,4" if options.ranks is None else options.ranks)),
        config_path,
        tuple(overrides),
        tuple(options.case),
        options.trust_code,
    )
    verification = verify(request, print_on_stderr)
    path = write_json(to_json(verification), request.output / "verify.json")
    sys.stdout.write(f"{render_table(verification)}\nreport: {one_line(str(path))}\n")
    return 0 if verification.passed else 1


def _run_invariance(options: argparse.Namespace) -> int:
    from mpitrain.verify.invariance.checks import named_checks
    from mpitrain.verify.invariance.invariance import InvarianceRequest, check_invariance
    from mpitrain.verify.invariance.report import render_table, to_json
    from mpitrain.verify.report import write_json

    path, overrides = split_settings(options.settings)
    request = InvarianceRequest(
        Path(options.output),
        tuple(ranks_of("2,1,3" if options.ranks is None else options.ranks, in_order=False)),
        Path(options.config) if options.config else path,
        tuple(overrides),
        named_checks(options.case),
        ("--trust-code",) if options.trust_code else (),
    )
    invariance = check_invariance(request, print_on_stderr)
    path = write_json(to_json(invariance), request.output / "invariance.json")
    sys.stdout.write(f"{render_table(invariance)}\nreport: {one_line(str(path))}\n")
    return 0 if invariance.passed else 1


def _run_certificate(options: argparse.Namespace) -> int:
    from mpitrain.config import load_run_config
    from mpitrain.verify.certificate import CertificateRequest, certify, check

    # Settings may also follow the gates.
    arguments = [*options.settings, *(argument for argument in options.gates or () if argument.startswith("data."))]
    gates = [argument for argument in options.gates or () if argument not in arguments]
    path, overrides = split_settings(arguments)
    others = [f"{path}" for path in (path, options.config) if path]
    others += [argument for argument in overrides if not argument.startswith("data.data_path=")]
    if others or options.case or options.ranks:
        given = others[0] if others else "--case" if options.case else "--ranks"
        raise UserError(f"{given}: a certificate has the settings of its run; only data.data_path may be changed")
    is_new = options.certificate is not None
    file = Path(options.certificate if is_new else options.check_certificate)
    request = CertificateRequest(
        file if is_new else file.parent,
        tuple(gates or (["repeat"] if is_new else [])),
        Path(options.output),
        tuple(load_run_config(None, overrides).config.data.entries) if overrides else (),
        options.trust_code,
    )
    if is_new:
        file, verdict = certify(request, print_on_stderr)
    else:
        verdict = check(file, request, print_on_stderr)
    sys.stdout.write(f"{one_line(str(file))}: {verdict}\n")
    return 0 if verdict == "PASSED" else 1


def _run_doctor(options: argparse.Namespace) -> int:
    from mpitrain.doctor.run import run_doctor
    from mpitrain.doctor.steps import DoctorRequest

    path, arguments = split_settings(options.settings)
    flags = options.json, options.timeout, options.static, options.trust_code
    return run_doctor(DoctorRequest(path, tuple(arguments), *flags))
