"""The probe of a configuration: all that a trainer which is not ours needs of the learner."""

from transformers import PreTrainedModel

from oar.config import ProbeConfig
from oar.method.probes import Probe, make_probe
from oar.tasks.task import Task


def probe_of(cfg: ProbeConfig, task: Task, step: int, scorer: PreTrainedModel | None = None) -> Probe:
    """The probe of a configuration in training step `step` (from 0)."""
    conclude = task.encode_marker(cfg.conclude)
    return make_probe(
        cfg.name, conclude, step=step, warmup_steps=cfg.warmup_steps, reference=cfg.reference, scorer=scorer
    )
