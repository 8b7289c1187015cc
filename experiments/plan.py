"""What a run will need and cost, without running it: `python -m experiments.plan profile=paper method=oar_g`."""

import json
import sys
from dataclasses import asdict

from omegaconf import DictConfig

from experiments.shared.planned import credit_signals, method_settings, planned
from oar.command_line.entry import entry
from oar.plan import plan_run
from oar.plan.text import plan_text
from oar.plan.work import is_known


@entry
def main(config: DictConfig) -> None:
    """Compose, work it out, print."""
    found = planned(config)
    settings, cfg = found.settings, found.run
    methods = method_settings(settings.methods, cfg)
    signals = credit_signals(methods, cfg)
    for name, estimator in signals.items():
        if not is_known(estimator):
            print(
                f"{name} does not say what it computes (SaysItsWork in oar/plan/work.py): as nothing.", file=sys.stderr
            )
    plan = plan_run(cfg, found.model, settings.assume, signals, settings.problems, methods, found.scorer)
    if settings.json:
        model = {"name": cfg.model.name, "sizes_from": found.source, **asdict(found.model)}
        print(
            json.dumps({"profile": cfg.profile, "model": model, **asdict(plan), "assumptions": asdict(settings.assume)})
        )
    else:
        print(plan_text(plan, cfg, found.source, settings.assume), end="")


if __name__ == "__main__":
    main()
