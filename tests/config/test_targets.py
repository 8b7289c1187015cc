"""What a configuration may build: our own classes, and those of modules that the user named now; never what a folder asks for."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments.dashboard.logged import read_logged
from experiments.inspect_credit import __main__ as inspect_credit
from experiments.stability.gathering import gather
from oar.common.errors import ConfigError, DataError, OarError
from oar.config import TrainConfig, build, validated
from oar.config.saved import saved_settings
from oar.method.importance import ShuffledImportance, UniformImportance
from oar.runs.folder import read_run
from tests.analysis.test_examine import RIGHT, WRONG
from tests.config.test_config import CONF, composed
from tests.experiments.made_runs import make_run
from tests.experiments.test_inspect_credit import weights_in
from tests.experiments.test_inspect_signals import kept, settings


@pytest.fixture
def sprung(tmp_path: Path) -> Path:
    """Exists once a trap has been sprung."""
    return tmp_path / "sprung"


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's with an estimator; importing it leaves a file behind, as foreign code could."""
    (tmp_path / "own_estimators.py").write_text(
        "from dataclasses import dataclass\nfrom pathlib import Path\n"
        f"Path({str(tmp_path / 'imported')!r}).touch()\n\n"
        "@dataclass\nclass Mine:\n    scale: float = 1.0\n\n"
        "    def __call__(self, inputs):\n        return self.scale * inputs.batch.reasoning_mask.float()\n\n"
        "def made(): return Mine()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_estimators"
    sys.modules.pop("own_estimators", None)


def traps(mark: Path) -> dict[str, dict[str, Any]]:
    """Targets that leave `mark` behind when they are made."""
    command = ["mkdir", str(mark)]
    return {
        "evaluates": {"_target_": "sympy.sympify", "a": f"__import__('os').mkdir({str(mark)!r})"},
        "runs": {"_target_": "torch.utils.collect_env.run", "command": " ".join(command)},
        "starts": {"_target_": "oar.common.processes.ChildProcess", "command": command},
        "makes": {"_target_": "os.mkdir", "path": str(mark)},
        "by place": {"_target_": "os.mkdir", "_args_": [str(mark)]},
        "later": {"_target_": "os.mkdir", "_args_": [str(mark)], "_partial_": True},
        "walks through modules": {"_target_": "oar.tasks.data.sources.Path.mkdir", "self": str(mark)},
        "walks to torch": {"_target_": "oar.method.importance.base.torch.hub.load", "repo_or_dir": str(mark)},
        "is ours by its first letters": {"_target_": "oar.importances.Mine"},
        "is imported by ours": {"_target_": "oar.method.importance.gradient.Tensor"},
        "is a function of ours": {"_target_": "oar.tasks.sheets.generator.demonstration"},
        "is a path": {"_target_": f"oar.method.importance.{mark}.Mine"},
        "is nothing": {"_target_": ".Mine"},
        "has no target": {"path": str(mark)},
    }


WHERE = {
    "itself": lambda trap: trap,
    "in an argument": lambda trap: {"_target_": "oar.method.importance.ShuffledImportance", "of": trap},
    "in a list": lambda trap: {"_target_": "oar.method.importance.ShuffledImportance", "of": [[{"deep": trap}]]},
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", traps(Path()))
def test_nothing_else_is_built(name: str, where: str, sprung: Path) -> None:
    if name == "has no target" and where != "itself":
        return  # a plain mapping
    with pytest.raises(ConfigError, match=r"method\.estimator") as caught:
        build("method.estimator", WHERE[where](traps(sprung)[name]))
    assert "\n" not in str(caught.value)
    assert not sprung.exists()


def test_what_is_ours_is_built_at_any_depth() -> None:
    uniform = {"_target_": "oar.method.importance.UniformImportance"}
    shuffled = {"_target_": "oar.method.importance.controls.ShuffledImportance", "of": uniform}
    assert build("it", shuffled) == ShuffledImportance(UniformImportance())
    with pytest.raises(ConfigError, match=r"it cannot be built from .*_partial_"):
        build("it", uniform | {"_partial_": True})


def test_a_class_of_the_users_needs_its_module_named(own_module: str, tmp_path: Path) -> None:
    target = {"_target_": f"{own_module}.Mine", "scale": 2.0}
    for allowed in ([], [""], ["own"], ["own_estimator"], [f"{own_module}.Mine"], ["mypkg"]):
        with pytest.raises(ConfigError, match=r"type allow_targets=\[its name\]"):
            build("method.estimator", target, allowed)
    assert not (tmp_path / "imported").exists()
    assert build("method.estimator", target, [own_module]).scale == 2.0
    inside = build(
        "method.estimator", {"_target_": "oar.method.importance.ShuffledImportance", "of": target}, [own_module]
    )
    assert inside.of.scale == 2.0
    for name in ("made", "Path", "None_such"):  # a function, a class from elsewhere, nothing
        with pytest.raises(ConfigError, match=r"method\.estimator"):
            build("method.estimator", {"_target_": f"{own_module}.{name}"}, [own_module])


def test_the_key_is_one_of_every_training_run_and_changes_nothing_it_computes() -> None:
    cfg = validated(composed("allow_targets=[mypkg]"), TrainConfig)
    assert cfg.allow_targets == ["mypkg"]
    assert cfg.identity() == validated(composed(), TrainConfig).identity()


# A run's folder of somebody else's


def foreign(folder: Path, target: dict[str, Any], allows: list[str]) -> Path:
    """A run's folder with completions, weights and a config.yaml that names `target` and allows it."""
    kept(folder, settings(), RIGHT, WRONG)
    weights_in(folder / "checkpoints" / "step_000005")
    config = OmegaConf.structured(settings())
    config.allow_targets = allows
    text = OmegaConf.to_container(config)
    text["method"] |= {"name": "theirs", "estimator": target}
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(text)))
    return folder


def inspected(folder: Path, *overrides: str) -> None:
    """The program as it is called, without further methods."""
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("inspect_credit", [f"run={folder}", "wandb=false", "signals={}", *overrides])
        inspect_credit.main(config)


@pytest.mark.parametrize(
    ("name", "where"),
    [("evaluates", "itself"), ("runs", "in a list"), ("starts", "in an argument"), ("makes", "itself")],
)
def test_the_inspector_runs_nothing_that_a_folder_asks_for(
    name: str, where: str, sprung: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = WHERE[where](traps(sprung)[name])
    folder = foreign(tmp_path / "theirs", target, ["sympy", "torch", "oar", "os", "posix"])
    with pytest.raises(SystemExit) as ended:
        inspected(folder)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: method.estimator must name a class of ")
    assert not sprung.exists()


def test_the_inspector_builds_what_was_allowed_now(own_module: str, tmp_path: Path) -> None:
    folder = foreign(tmp_path / "run", {"_target_": f"{own_module}.Mine"}, [own_module])
    with pytest.raises(SystemExit):
        inspected(folder)
    assert not (tmp_path / "imported").exists()
    inspected(folder, f"allow_targets=[{own_module}]")
    assert "Weights of theirs" in (folder / "inspector" / "step_000007.html").read_text()


READERS = {
    "gather": lambda folder: gather([folder]),
    "a finished run": read_run,
    "the dashboard": read_logged,
    "a training run": lambda folder: saved_settings(folder / "config.yaml", []),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_looks_nothing_up_on_this_machine(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SECRET", "5ec4e7")
    folder = make_run(tmp_path / "run", "grpo", 1, {"words1": [1.0]})
    with (folder / "config.yaml").open("a") as config:
        config.write("note: ${oc.env:SOME_SECRET}\n")
    with pytest.raises(DataError, match=r"config\.yaml must hold plain values.*SOME_SECRET") as caught:
        READERS[reader](folder)
    assert "5ec4e7" not in str(caught.value)


def test_a_multirun_looks_nothing_up_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "{sweep: {subdir: '${hydra.job.num}'}, overrides: {task: [seed=5ec4e7]}}")
    make_run(tmp_path / "0", "grpo", 1, {"words1": [1.0]})
    (tmp_path / "multirun.yaml").write_text("hydra: ${oc.decode:${oc.env:SOME_SECRET}}\n")
    with pytest.raises(OarError, match=r"multirun.yaml") as caught:
        gather([tmp_path])
    assert "5ec4e7" not in str(caught.value)


@pytest.mark.parametrize("text", ["- a list\n", "a: [\n", "!!python/object/apply:os.mkdir [sprung]\n"])
def test_a_file_that_is_no_configuration_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(DataError, match=r"config\.yaml must hold") as caught:
        saved_settings(tmp_path / "config.yaml", [])
    assert "\n" not in str(caught.value)
