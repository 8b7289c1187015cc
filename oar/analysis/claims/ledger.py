"""Claims held against runs: what a claim speaks of is measured on the runs it names, and judged by
`oar.analysis.claims.claims.verdict`.

Runs may come from anywhere, the cells of Table 1 or the folders of a sweep: a claim finds its own by their settings.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from oar.analysis.arms import METRICS, Arms, paired
from oar.analysis.claims.claims import MIN_SEEDS, NOT_RUN, TOO_FEW, Claim, verdict
from oar.analysis.claims.quantities import MEASURED, QUANTITIES, NotRunError
from oar.analysis.claims.regimes import regimes
from oar.common.errors import ConfigError
from oar.runs.folder import Run, check_alike

CLAIM = ("claim_id", "paper_claim", "paper_target", "paper_source", "quantity", "tolerance", "metric")
VERDICT = ("verdict", "reason")
RECORD = (
    *("profile", "model", "seeds", "steps", "measure", "template", "data", "versions", "device"),
    *("git_commit", "identities"),
)
REGIMES = "regimes"
COLUMNS = (*CLAIM, *VERDICT, REGIMES, *MEASURED, *RECORD)


def ledger(
    claims: Sequence[Claim], runs: Sequence[Run], full_steps: Mapping[str, int], costs: pd.DataFrame | None = None
) -> pd.DataFrame:
    """A row per claim, and of a claim on accuracy per metric: which of them is the paper's is not known, so both are tested.

    `full_steps`: by profile the steps of a whole run (`oar.runs.folder.full_steps`); shorter ones are no ground for a verdict.
    `costs`: runs to a threshold in the regimes of sheets, where there are some (`oar.analysis.claims.regimes`).

    COLUMNS: the claim, with what the paper says in the columns `paper_...`; the verdict, with the reason where nothing could be
    judged; of a claim that one method beats another the regimes in which it does; what was measured here; and how its runs
    were made (`identities`: by arm the hash of each run's settings, in the order of `seeds`; where runs differ in a column, all
    of their values). Raises DataError where two runs were not evaluated alike, ConfigError for a quantity that is unknown or not
    one of so many arms.
    """
    check_alike(runs)
    rows = []
    for claim in claims:
        _check_quantity(claim)
        metrics = METRICS if QUANTITIES[claim.quantity].on_accuracy else ("",)
        elsewhere = {} if costs is None else {REGIMES: _regimes(claim, costs)}
        rows += [_row(claim, metric, runs, full_steps) | elsewhere for metric in metrics]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"problems": "Int64"})


def _row(claim: Claim, metric: str, runs: Sequence[Run], full_steps: Mapping[str, int]) -> dict[str, Any]:
    quantity = QUANTITIES[claim.quantity]
    stated = {
        "claim_id": claim.id,
        "paper_claim": claim.claim,
        "paper_target": claim.target_text(),
        "paper_source": claim.source,
        "quantity": quantity.text.format(*claim.arms),
        "tolerance": claim.tolerance,
        "metric": metric,
    }
    try:
        arms = quantity.usable(_arms(claim, runs))
        found = quantity.measure(claim, metric, arms)
    except NotRunError as missing:
        return stated | {"verdict": NOT_RUN, "reason": str(missing)}
    made = [(run.settings.profile, run.provenance["step"]) for run in chain(*arms)]
    return stated | judged(claim, found, len(arms[0]), made, full_steps) | found | _record(claim, arms)


def _regimes(claim: Claim, costs: pd.DataFrame) -> str:
    """`one: holds, share: open`, of a claim that one method is more accurate than another."""
    methods = [str(settings["method.name"]) for settings in claim.arms.values()]
    if claim.quantity != "difference" or len(set(methods)) < len(methods):
        return ""
    first, second = methods
    return ", ".join(f"{name}: {how}" for name, how in regimes(first, second, costs).items())


def judged(
    claim: Claim, found: Mapping[str, Any], seeds: int, made: Iterable[tuple[str, int]], full_steps: Mapping[str, int]
) -> dict[str, str]:
    """VERDICT on the interval found from so many seeds; `made`: the profile of each run and the steps it took."""
    lacking = [f"{seeds} of {MIN_SEEDS} seeds"] if seeds < MIN_SEEDS else []
    for profile, steps in made:
        if profile not in full_steps:
            lacking.append(f"how many steps a run of profile {profile} has is not known")
        elif steps < full_steps[profile]:
            lacking.append(f"{steps} of {full_steps[profile]} steps")
    judgement = TOO_FEW if lacking else verdict(found["low"], found["high"], claim.target, claim.tolerance)
    return {"verdict": judgement, "reason": ", ".join(dict.fromkeys(lacking))}


def _arms(claim: Claim, runs: Sequence[Run]) -> Arms:
    """The claim's runs by arm, and by seed those that all arms have. Raises NotRunError where an arm has none."""
    found = []
    for settings in claim.arms.values():
        wanted = {**claim.needs, **settings}
        by_seed: dict[int, Run] = {}
        for run in runs:
            # A control has the method's name and is not the method: its importance stands at other tokens.
            if not run.has(wanted) or OmegaConf.select(run.settings, "method.control", default="none") != "none":
                continue
            if run.seed in by_seed:
                raise NotRunError(f"needs one run of a seed with {_text(wanted)}, but several have seed {run.seed}")
            by_seed[run.seed] = run
        if not by_seed:
            raise NotRunError(f"needs runs with {_text(wanted)}{_made_by(claim.needs)}")
        found.append(by_seed)
    arms = paired(found)
    if not arms[0]:
        raise NotRunError(f"{' and '.join(claim.arms)} have no seed in common")
    return arms


def _made_by(needs: Mapping[str, Any]) -> str:
    """The command that makes the runs of a claim on one model; nothing for a claim on any."""
    if "profile" not in needs:
        return ""
    model = _text({key: value for key, value in needs.items() if key != "profile"})
    return f": `make reproduce-table1 PROFILE={needs['profile']} ARGS='{model} model.path=FOLDER'`"


def _text(settings: Mapping[str, Any]) -> str:
    """As overrides on the command line."""
    return " ".join(f"{key.removesuffix('.name')}={value}" for key, value in settings.items())


def _record(claim: Claim, arms: Arms) -> dict[str, str]:
    made = [_made(run) for runs in arms for run in runs]
    record = {key: "; ".join(dict.fromkeys(one[key] for one in made)) for key in made[0]}
    by_arm = zip(claim.arms, arms, strict=True)
    identities = {name: [run.provenance["identity"] for run in runs] for name, runs in by_arm}
    seeds = ", ".join(str(run.seed) for run in arms[0])
    return record | {"seeds": seeds, "identities": json.dumps(identities, ensure_ascii=False)}


def _made(run: Run) -> dict[str, str]:
    """How a run was made; an empty text where an older one does not record it."""
    made, template = run.provenance, run.provenance.get("template")
    return {
        "profile": run.settings.profile,
        "model": run.settings.model.name,
        "steps": str(made["step"]),
        "measure": made["measure"],
        "template": f"{template['name']} {template['digest']}" if template else "",
        "data": json.dumps(made["data"], sort_keys=True) if "data" in made else "",
        "versions": ", ".join(f"{name} {version}" for name, version in made["versions"].items() if version),
        "device": made["gpu"] or f"{made['cpu']}, {made['cores']} cores",
        "git_commit": f"{made['git_commit'] or 'unknown'}{' with changes' if made['git_dirty'] else ''}",
    }


def _check_quantity(claim: Claim) -> None:
    if claim.quantity not in QUANTITIES:
        known = ", ".join(QUANTITIES)
        raise ConfigError(f"The claim {claim.id!r} must be on one of {known}, but is on {claim.quantity!r}.")
    needed = QUANTITIES[claim.quantity].arms
    if len(claim.arms) != needed:
        raise ConfigError(f"The claim {claim.id!r} must have {needed} different arms, but has {', '.join(claim.arms)}.")
