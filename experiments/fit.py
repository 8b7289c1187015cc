"""The largest micro-batch of each profile and method that a GPU holds: `python -m experiments.fit gpu=4090`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import pandas as pd
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments.shared.planned import credit_signals, method_settings, planned
from oar.command_line.entry import entry
from oar.command_line.overrides import key_of, overrides_of_runs
from oar.common.errors import ConfigError
from oar.config import validated
from oar.config.checks import one_of, require
from oar.config.composed import composed
from oar.learner.credit import Method
from oar.plan.fit import largest_fit

CACHE = "rollout.kv_cache_gib"
FIT_SAYS = {
    "profile": "type profiles=[paper]",
    "lora": "type loras=[r64]",
    "method": "type methods=[oar_g]",
    "assume.memory_gib": "type gpu=4090, or +gpus.MINE=24 gpu=MINE",
    "learner.micro_batch_tokens": "it is what is looked for",
}


@dataclass
class FitConfig:
    """What conf/fit.yaml has beside a plan's own keys; they are explained there."""

    gpu: str
    gpus: dict[str, float]
    profiles: list[str]
    loras: list[str]
    methods: list[str]
    json: bool

    def __post_init__(self) -> None:
        one_of("gpu", self.gpu, tuple(self.gpus))
        for key in ("profiles", "loras", "methods"):
            require(getattr(self, key) != [], key, "a list of one or more", [])


@entry
def main(config: DictConfig) -> None:
    """Plan every run with micro-batches of growing size, print which the GPU holds."""
    own = list(FitConfig.__dataclass_fields__)
    cfg = validated(OmegaConf.masked_copy(config, own), FitConfig)
    found = list(fits(cfg, overrides_of_runs(HydraConfig.get().overrides.task, own, FIT_SAYS)))
    if cfg.json:
        print(json.dumps({"gpu": cfg.gpu, "memory_gib": cfg.gpus[cfg.gpu], "fits": found}))
        return
    frame = pd.DataFrame(found)
    tokens = frame["micro_batch_tokens"].astype(float)  # NaN where none fits
    frame["fit"] = tokens.map("{:,.0f}".format).where(
        tokens.notna(), frame["least_gib"].astype(float).map("{:.0f} GiB".format)
    )
    frame["fit"] = frame["fit"].where(frame["refused"].isna(), "refused")
    run = ["profile", "model", "lora", "gpus", CACHE]
    table = frame.pivot_table("fit", run, "method", aggfunc="first", sort=False).reset_index().rename_axis(columns=None)
    print(
        f"The largest learner.micro_batch_tokens on {cfg.gpu} ({cfg.gpus[cfg.gpu]:g} GiB), worked out as in `make plan` and not "
        f"measured.\n\n{table.to_string(index=False)}\n\n"
        "GiB: too much; what one completion of full length takes.\n"
        f"The engine's cache is the profile's, scaled with the GPU; {CACHE}=2 changes it."
    )
    for (method, reason), _ in frame.dropna(subset="refused").groupby(["method", "refused"], sort=False):
        print(f"refused, {method}: {reason}")


def fits(cfg: FitConfig, typed: Sequence[str]) -> Iterator[dict[str, object]]:
    """A row for each profile, adapter and method; `refused`: why a run of it is. `typed`: overrides of conf/plan for all."""
    gib = cfg.gpus[cfg.gpu]
    runs = list(product(cfg.profiles, cfg.loras))
    plans = [planned(composed("plan", [*typed, f"profile={profile}", f"lora={lora}"])) for profile, lora in runs]
    settings = method_settings(cfg.methods, plans[0].run)
    signals = credit_signals(settings, plans[0].run)
    for (profile, lora), plan in zip(runs, plans, strict=True):
        run, assume = plan.run, replace(plan.settings.assume, memory_gib=gib)
        if CACHE not in map(key_of, typed):
            scaled = round(run.rollout.kv_cache_gib * gib / plan.settings.assume.memory_gib, 1)
            run = replace(run, rollout=replace(run.rollout, kv_cache_gib=scaled))
        about = {"profile": profile, "model": run.model.name, "lora": lora, "gpus": assume.devices}
        for method in cfg.methods:
            sizes: dict[str, object] = {"micro_batch_tokens": None, "least_gib": None}
            refused = None
            try:
                own = replace(run, method=settings[method])  # it may hold a teacher, or add a loss
                Method.built(own)
                sizes = asdict(largest_fit(own, plan.model, assume, signals[method], plan.scorer))
            except ConfigError as error:
                refused = str(error)
            yield {**about, CACHE: run.rollout.kv_cache_gib, "method": method, **sizes, "refused": refused}


if __name__ == "__main__":
    main()
