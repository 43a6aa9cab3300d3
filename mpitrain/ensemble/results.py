"""The results of an ensemble: its table, model and best settings, and the lines printed at its end."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from mpitrain.comm import Ranks
from mpitrain.durable_files import write_durably
from mpitrain.ensemble.choice import BEST, choose_best, render_best
from mpitrain.ensemble.held_out import HeldOut, evaluate_held_out
from mpitrain.ensemble.outcome import SKILL, Ended, Outcome, Results
from mpitrain.ensemble.plan.members import EnsemblePlan, Member
from mpitrain.ensemble.report import draw_members, write_ensemble_report
from mpitrain.errors import writing
from mpitrain.inference.ensemble import MEMBERS, load_network
from mpitrain.models import EnsembleNetwork, StoredNetwork, save_model
from mpitrain.models.files.torchscript import scripted_copies
from mpitrain.observe import describe_settings
from mpitrain.train import RunFolder

TABLE = "ensemble.csv"


def finish_ensemble(ranks: Ranks, plan: EnsemblePlan, ended: Ended, trust_code: bool) -> HeldOut | None:
    """Write the table, the combined network, the best settings, skill and report. Collective. Raises UserError.

    `trust_code`: whether members that are code may be loaded. Returns the skill of the ensemble on held-out samples;
    None if it is not known, and after a stop.

    Two ranks share the work: while the root writes the networks, the second rank draws the losses of the members.
    """
    results = ended.results
    table = render_table(plan, results)
    rows = list(csv.DictReader(io.StringIO(table)))
    chosen = _network_members(plan, results)
    draws = ranks.rank == min(1, ranks.world_size - 1)

    def share_the_work() -> tuple[Mapping[str, StoredNetwork], dict[str, str]]:
        if ranks.is_root:
            _write(plan, TABLE, table)  # first: reading a member's damaged file may fail
        networks = _networks_of(plan, chosen, trust_code)
        if ranks.is_root:
            _write_results(plan, results, networks, chosen)
        return networks, draw_members(plan.folder, rows) if draws else {}

    networks, pictures = ranks.on_all_ranks(share_the_work)
    if chosen and not networks:
        ranks.note(
            "skill and model left out: the members are code, and not all of their files are known to be from your own "
            "training; give --resume --trust-code if you trust them"
        )
    held_out = None if ended.signal_name else evaluate_held_out(ranks, chosen, list(networks.values()))

    def write() -> None:
        if ranks.is_root and held_out is not None:
            _write(plan, SKILL, held_out.to_csv())
        if draws:
            write_ensemble_report(plan.folder, rows, len(chosen), pictures, held_out, _description(plan, networks))

    ranks.on_all_ranks(write)
    return held_out


def _description(plan: EnsemblePlan, networks: Mapping[str, StoredNetwork]) -> list[str]:
    """Return sentences that describe what was trained; none if no network of the ensemble names its inputs."""
    known = next((one.description for one in networks.values() if one.description.input_names), None)
    if known is None:
        return []
    return describe_settings(plan.config, known.input_names, known.target_names, {})


def _write_results(
    plan: EnsemblePlan, results: Results, networks: Mapping[str, StoredNetwork], chosen: Sequence[Member]
) -> None:  # fmt: skip
    """Write the names of the ensemble's members, their networks as one TorchScript file, and the best settings."""
    names, path = json.dumps({"members": [member.name for member in chosen]}) + "\n", plan.folder / MEMBERS
    if not path.is_file() or path.read_text() != names:
        with writing(plan.folder / SKILL, "move it away, then --resume"):
            (plan.folder / SKILL).unlink(missing_ok=True)  # it is about other members
    _write(plan, MEMBERS, names)
    members = list(networks.values())
    if members and members[0].description.input_names and all(hasattr(member.module, "jac") for member in members):
        module = EnsembleNetwork(scripted_copies([member.module for member in members]))
        save_model(module, plan.folder / plan.config.output.model_file, members[0].description, may_change=True)
    choice = choose_best(plan, results)
    if choice is not None and choice.members[0].varied:
        _write(plan, BEST, render_best(choice, plan))


def _networks_of(plan: EnsemblePlan, chosen: Sequence[Member], trust_code: bool) -> Mapping[str, StoredNetwork]:
    """Return the networks of the members in `chosen` by name; none if they are code and `trust_code` is False."""
    config = chosen[0].config if chosen else None
    is_code = config is not None and ":" in str(config.network.name)
    if config is None or (is_code and not trust_code):
        return {}
    activation = getattr(config.network, "hidden_activation", None) or "none"
    files = {one.name: RunFolder(plan.folder_of(one), plan.config.output.model_file).stored_model for one in chosen}
    return {name: load_network(path, activation, is_code) for name, path in files.items()}


def _network_members(plan: EnsemblePlan, results: Results) -> list[Member]:
    """Return the trained members of the best setting; if there is none, of the setting with the most of them."""
    done = [one for one in plan.members if one.number in results and results[one.number].status == "done"]
    counts = Counter(member.setting for member in done)
    choice = choose_best(plan, results)
    setting = choice.setting if choice is not None else max(counts, key=lambda one: (counts[one], -one), default=-1)
    return [member for member in done if member.setting == setting]


def _write(plan: EnsemblePlan, name: str, text: str) -> None:
    path = plan.folder / name
    with writing(path, "free space, then --resume"):
        write_durably(path, text.encode())


def render_table(plan: EnsemblePlan, outcomes: Results) -> str:
    """Return CSV with one line per member: its settings and outcome, independent of timing and number of ranks."""
    keys = list(dict.fromkeys(key for member in plan.members for key in member.varied))
    names = ("status", "epochs", "train_loss", "validation_loss", "best_epoch", "weights_sha256", "message")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["member", "seed", "fold", *keys, *names])
    for member in plan.members:
        outcome = outcomes.get(member.number)
        values = ["not trained"] + [""] * 6 if outcome is None else [getattr(outcome, name) for name in names]
        fixed = [member.name, member.seed, member.fold]
        writer.writerow([*fixed, *(member.varied.get(key) for key in keys), *values])
    return text.getvalue()


def describe_end(
    plan: EnsemblePlan, ended: Ended, held_out: HeldOut | None, wall_time_s: float, world_size: int
) -> Sequence[str]:  # fmt: skip
    """Return the lines that are printed at the end of an ensemble."""
    outcomes = dict(sorted(ended.results.items()))
    done = [outcome for outcome in outcomes.values() if outcome.status == "done"]
    failed = [outcome for outcome in outcomes.values() if outcome.is_failure]
    lines = [
        f"Trained  {len(done)} of {len(plan.members)} members in {wall_time_s:.1f} s on {world_size} "
        f"rank{'s' if world_size > 1 else ''}"
    ]
    lines += [f"         member {one.number:04d} {one.status}: {one.message}" for one in failed[:3]]
    lines += [f"         and {len(failed) - 3} more, see the table"] if len(failed) > 3 else []
    lines += _describe_losses(plan.members, done)
    of_samples = [] if held_out is None else held_out.lines()
    lines += [f"{'' if number else 'Skill':<9}{line}" for number, line in enumerate(of_samples)]
    choice = choose_best(plan, ended.results)
    if choice is not None and choice.members[0].varied:
        lines += [f"Best     {choice.members[0].settings_text}: {choice.description}", f"         {plan.folder / BEST}"]
    model = plan.folder / plan.config.output.model_file
    lines += [f"Model    {model}   # mean, spread and derivatives of both"] if model.is_file() else []
    return [*lines, f"Table    {plan.folder / TABLE}", f"Report   {plan.folder / 'report.html'}"]


def _describe_losses(members: Sequence[Member], done: Sequence[Outcome]) -> list[str]:
    scores = [one.score for one in done if one.score is not None and math.isfinite(one.score)]
    if not scores:
        return []
    best = min((one for one in done if one.score is not None), key=lambda one: (one.score, one.number))
    spread = f" +- {statistics.stdev(scores):.1e}" if len(scores) > 1 else ""
    which = "validation" if best.validation_loss is not None else "train"
    mean = f"Loss     {which} {statistics.fmean(scores):.4e}{spread} over members"
    return [f"{mean}, best {best.score:.4e} (member {best.number:04d})"]
