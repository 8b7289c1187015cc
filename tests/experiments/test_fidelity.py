"""The fidelity study: its measures by hand, its own signals against the project's, what they cost, and a whole run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP, Qwen2RMSNorm

from experiments.fidelity.__main__ import GATED, IMPORTANCE, timed, with_agreement, written
from experiments.fidelity.signals import GradientVariant, HeldKnockout, Surprisal
from experiments.shared.counted_tokens import counted_tokens
from oar.analysis.signals.agreement import (
    AGREEMENT,
    BACKWARD,
    COLUMNS,
    FORWARD,
    MASS,
    SECONDS,
    WEIGHTS,
    agreement,
    agreement_between,
    condition_facts,
    fidelity_table,
    pearson,
)
from oar.analysis.signals.draw import draw
from oar.analysis.signals.recall import OVERLAP, SPEARMAN
from oar.common.errors import ConfigError, DataError
from oar.method.importance import (
    AttentionGradientImportance,
    CreditInputs,
    GradientImportance,
    GradientNormImportance,
    PerturbationImportance,
)
from oar.method.probes import AnswerJointProbe, AnswerMeanProbe, LastTokenProbe, Probe
from oar.tasks.data.sources import load_benchmark
from oar.tasks.embedded.base_model import model_key
from oar.tasks.embedded.teaching import build_model
from oar.tasks.task import Task
from oar.tasks.words import build_tokenizer
from oar.tasks.words.teaching import TeachConfig
from tests.models import MARKER, credit_inputs, random_batch, tiny_model
from tests.programs import run

ROOT = Path(__file__).parents[2]
PROBES = [AnswerMeanProbe(), LastTokenProbe([MARKER]), AnswerJointProbe()]


def inputs(probe: Probe = PROBES[0], rows: int = 4) -> CreditInputs:
    return credit_inputs(random_batch(3, rows), probe)


# --- measures ---------------------------------------------------------------------------------------------------------


def test_agreement_by_hand() -> None:
    """Six tokens, so the top fifth has two: {2, 5} of the reference, {0, 5} of the signal."""
    reference, signal = [0, 1, 6, 2, 3, 8], [9, 1, 3, 2, 4, 8]
    found = agreement(signal, reference, [1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1])
    # Ranks 1 2 5 3 4 6 and 6 1 3 2 4 5: squared differences 25 1 4 1 0 1 sum to 32; 1 - 6 * 32 / (6 * 35).
    assert found[SPEARMAN] == pytest.approx(1 - 6 * 32 / 210)
    assert found[OVERLAP] == 0.5
    assert found[MASS] == pytest.approx((0 + 8) / 20)
    assert found[WEIGHTS] == pytest.approx(-1)


def test_a_constant_signal_agrees_by_chance_and_a_constant_reference_with_nothing() -> None:
    found = agreement(np.ones(5), np.arange(5.0), np.ones(5), np.arange(5.0))
    assert found == {SPEARMAN: 0, OVERLAP: 0.2, WEIGHTS: 0, MASS: pytest.approx(0.2)}
    assert all(np.isnan(value) for value in agreement(np.arange(5.0), np.ones(5), np.arange(5.0), np.ones(5)).values())


def test_pearson_is_of_values_and_not_of_ranks() -> None:
    one, other = [1.0, 2.0, 3.0, 10.0], [2.0, 4.0, 6.0, 7.0]
    deviations = [np.array(each) - np.mean(each) for each in (one, other)]
    by_hand = deviations[0] @ deviations[1] / np.sqrt((deviations[0] ** 2).sum() * (deviations[1] ** 2).sum())
    assert pearson(one, other) == pytest.approx(by_hand)
    assert by_hand < 0.9


def test_draws_are_compared_in_pairs() -> None:
    up = [1.0, 2.0, 3.0]
    assert agreement_between([up, up, up[::-1]]) == pytest.approx((1 - 1 - 1) / 3)


def measurements() -> pd.DataFrame:
    rows = []
    for condition, lift in (("base", 0.0), ("long", 0.1)):
        for signal, height in (("exact", 1.0), ("cheap", 0.5)):
            for at in range(8):
                agreed = dict.fromkeys(AGREEMENT, height + lift + 0.02 * at)
                known = {"problem": f"p{at // 2}", "correct": at < 2, "tokens": 10 + at, "drawn": 9}
                costs = {SECONDS: 0.002, FORWARD: 100.0, BACKWARD: 0.0 if signal == "exact" else 50.0}
                rows.append({"condition": condition, "signal": signal, **known, **agreed, **costs})
    return pd.DataFrame(rows)


def test_the_table_averages_by_split_and_pairs_completions() -> None:
    table = fidelity_table(measurements(), pairs=[("exact", "cheap")], seed=0)
    assert list(table.columns) == COLUMNS
    rows = table.set_index(["condition", "signal", "split", "metric"])
    assert rows.loc[("base", "cheap", "all", SPEARMAN), "value"] == pytest.approx(0.5 + 0.02 * 3.5)
    assert rows.loc[("long", "cheap", "correct", SPEARMAN), "value"] == pytest.approx(0.6 + 0.02 * 0.5)
    assert rows.loc[("base", "cheap", "wrong", SPEARMAN), ["value", "n"]].tolist() == pytest.approx([0.59, 6])
    # The difference is the same in each completion: its interval has no width, that of the signal has.
    difference, alone = (rows.loc[("base", name, "all", SPEARMAN)] for name in ("exact - cheap", "cheap"))
    assert difference[["value", "low", "high"]].tolist() == pytest.approx([0.5] * 3)
    assert alone["low"] < alone["value"] < alone["high"]
    assert rows.loc[("base", "cheap", "all", BACKWARD), "value"] == 50
    assert ("base", "exact - cheap", "all", BACKWARD) not in rows.index
    with pytest.raises(DataError, match="'best' must be one of the signals"):
        fidelity_table(measurements(), pairs=[("exact", "best")], seed=0)


def test_facts_are_of_the_completions_of_a_condition() -> None:
    facts = {"drawn": 9, "completions": 8, "problems": 4, "correct": 2, "reasoning_tokens": 13.5}
    assert condition_facts(measurements(), "exact") == {"base": facts, "long": facts}


def test_what_is_kept_is_held_against_any_reference() -> None:
    """A row for each signal and completion; of draws only their agreement with one another is there, and stays."""
    rising, falling = np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])
    arrays = {"up": [rising, rising], "mixed": [rising, falling]}
    tables = [
        pd.DataFrame({"problem": ["a", "b"], "signal": name, IMPORTANCE: each, GATED: each, SECONDS: 1.0})
        for name, each in arrays.items()
    ]
    drawn = pd.DataFrame({"problem": ["a", "b"], "signal": "up between draws", SPEARMAN: [0.25, 0.75]})
    kept = pd.concat([*tables, drawn], ignore_index=True)
    for reference, expected in (("up", {"up": [1, 1], "mixed": [1, -1]}), ("mixed", {"up": [1, -1], "mixed": [1, 1]})):
        found = with_agreement(kept, reference)
        by_signal = {name: rows[SPEARMAN].tolist() for name, rows in found.groupby("signal")}
        assert by_signal == {**expected, "up between draws": [0.25, 0.75]}
        assert not {IMPORTANCE, GATED} & set(found.columns)


def test_a_solution_is_a_completion_with_an_answer() -> None:
    task = Task(build_tokenizer(), "####")
    problem = load_benchmark("words1", "curve", 1)[0]
    with pytest.raises(DataError, match="needs problems with solutions"):
        written(task, replace(problem, solution=""))
    rollout = written(task, replace(problem, solution="5 + 3 = 8 .", answer="8"))
    assert list(rollout.prompt_ids) == task.encode_prompt(problem)
    assert task.decode(rollout.completion_ids).split() == "5 + 3 = 8 . #### 8".split()
    assert rollout.completion_ids[-1] in task.stop_ids
    found = task.segments(rollout.completion_ids)
    assert found is not None
    assert task.decode(rollout.completion_ids[: found.reasoning_end]).split() == "5 + 3 = 8 .".split()


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("probe", PROBES)
def test_variants_meet_the_estimators_they_stand_between(probe: Probe) -> None:
    given = inputs(probe)
    norm = GradientVariant(None, "squared_norm")(given)
    torch.testing.assert_close(norm, GradientNormImportance()(given), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(GradientVariant(None, "norm")(given).square(), norm, rtol=1e-4, atol=1e-7)
    published = GradientImportance(noise_std=0.1)(given)  # noise enough for float32 to hold all digits
    torch.testing.assert_close(GradientVariant(0.1, "inner_product")(given), published, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(GradientVariant(0.1, "squared_norm")(given), published, rtol=0.1)
    with pytest.raises(ConfigError, match="reduction must be one of"):
        GradientVariant(None, "best")


def test_surprisal_is_the_negative_logprob_of_reasoning_tokens() -> None:
    given = inputs()
    mask = given.batch.reasoning_mask
    assert torch.equal(Surprisal()(given)[mask], -given.scores.logprobs[mask])
    assert not Surprisal()(given)[~mask].any()


def test_tokens_are_counted_by_hand() -> None:
    """One row in a forward, so no padding: each counterfactual recomputes from its token to the end of the answer."""
    given = inputs()
    shown, mask = given.probe.inputs(given.batch), given.batch.reasoning_mask
    clean = int(shown.lengths.sum())
    exact = sum(int(shown.lengths[row] - shown.reasoning_positions[row, token]) for row, token in mask.nonzero())
    from_reasoning_on = int((shown.lengths - shown.reasoning_positions[:, 0]).sum())
    for estimator, forward, backward in (
        (PerturbationImportance(max_tokens_per_forward=1), clean + exact, 0),
        (GradientNormImportance(max_tokens_per_forward=1), clean, clean),
        (AttentionGradientImportance(max_tokens_per_forward=1), clean, clean),  # which stops at the first attention
        (GradientImportance(max_tokens_per_forward=1), clean + from_reasoning_on, from_reasoning_on),
        (GradientVariant(1e-3, "squared_norm", max_tokens_per_forward=1), 2 * clean, clean),
        (Surprisal(), 0, 0),
    ):
        with counted_tokens(given.model) as count:
            estimator(given)
        assert (count.forward, count.backward) == (forward, backward), estimator
    importance, cost = timed(PerturbationImportance(max_tokens_per_forward=1), given, repeats=2)
    assert torch.equal(importance, PerturbationImportance(max_tokens_per_forward=1)(given))
    assert cost[FORWARD] == (clean + exact) / len(given.batch)
    assert cost[SECONDS] > 0


def test_completions_drawn_here_have_the_models_own_logprobs() -> None:
    """Prompts of different lengths in one batch."""
    task = Task(build_tokenizer(), "####")
    model = tiny_model(vocab=len(task.tokenizer))
    problems = [load_benchmark(name, "curve", 1)[0] for name in ("words1", "words5")]
    groups = draw(model, task, problems, temperature=0.7, max_new_tokens=40, seed=1)
    assert groups == draw(model, task, problems, temperature=0.7, max_new_tokens=40, seed=1)
    assert groups != draw(model, task, problems, temperature=0.7, max_new_tokens=40, seed=2)
    model.generation_config.repetition_penalty = 3.0  # as generation_config.json of some instruction models has it
    assert groups == draw(model, task, problems, temperature=0.7, max_new_tokens=40, seed=1)
    assert model.generation_config.repetition_penalty == 3.0  # for others it stays
    for (rollout,), problem in zip(groups, problems, strict=True):
        assert list(rollout.prompt_ids) == task.encode_prompt(problem)
        at = [len(rollout.prompt_ids) - 1 + token for token in range(len(rollout.completion_ids))]
        with torch.no_grad():
            logits = model(torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])).logits[0, at] / 0.7
        expected = logits.log_softmax(-1)[range(len(at)), list(rollout.completion_ids)]
        torch.testing.assert_close(torch.tensor(rollout.sampler_logprobs), expected, rtol=1e-3, atol=1e-4)
        ended = task.tokenizer.eos_token_id in rollout.completion_ids
        assert (rollout.finish_reason == "stop") == ended
        assert rollout.completion_ids.count(task.tokenizer.eos_token_id) == ended


# --- the taught models ------------------------------------------------------------------------------------------------


def test_models_taught_before_embeddings_could_be_tied_keep_their_names() -> None:
    assert model_key(TeachConfig()) == "6652ceb5737f"  # changes with SOURCE_VERSION and the defaults alone
    assert model_key(TeachConfig(tie_embeddings=True)) != model_key(TeachConfig())


def test_tied_embeddings_are_one_matrix() -> None:
    for tied in (True, False):
        model = build_model(TeachConfig(tie_embeddings=tied), build_tokenizer())
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def held_norm(norm: Qwen2RMSNorm, states: Tensor) -> Tensor:
    """Qwen2's, written again: the scale is constant."""
    return norm.weight * states * torch.rsqrt(states.square().mean(-1, keepdim=True) + norm.variance_epsilon).detach()


def held_gates(mlp: Qwen2MLP, states: Tensor) -> Tensor:
    gate, up = mlp.gate_proj(states), mlp.up_proj(states)
    product = gate * torch.sigmoid(gate).detach() * up
    return mlp.down_proj(product / 2 + product.detach() / 2)


def test_what_is_held_changes_gradients_as_a_model_written_so_would(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs()
    free = AttentionGradientImportance()(given)
    norms, both = (HeldKnockout(hold)(given) for hold in (["norms"], ["norms", "gates"]))
    assert torch.equal(AttentionGradientImportance()(given), free), "nothing stays behind"
    monkeypatch.setattr(Qwen2RMSNorm, "forward", held_norm)
    torch.testing.assert_close(norms, AttentionGradientImportance()(given))
    monkeypatch.setattr(Qwen2MLP, "forward", held_gates)
    torch.testing.assert_close(both, AttentionGradientImportance()(given))
    for one, other in ((free, norms), (norms, both)):
        assert not torch.allclose(one, other, rtol=0.1)


def test_attention_is_held_in_later_layers_alone() -> None:
    """With one layer nothing attends behind the knock-out, so nothing is to be held."""
    for layers, same in ((1, True), (2, False)):
        given = credit_inputs(random_batch(3, 4), PROBES[0], model=tiny_model(layers=layers))
        found = [HeldKnockout(["attention"])(given), AttentionGradientImportance()(given)]
        assert torch.allclose(*found, rtol=1e-4) == same


def test_what_cannot_be_held_is_refused() -> None:
    with pytest.raises(ConfigError, match="hold must name some of norms, gates, attention"):
        HeldKnockout(["mlp"])
    given = inputs()
    for name, module in list(given.model.named_modules()):
        if name.endswith(".mlp"):
            module.add_module("activation", module._modules.pop("act_fn"))
    with pytest.raises(ConfigError, match="there is no act_fn"):
        HeldKnockout(["gates"])(given)


@pytest.mark.system
def test_a_whole_run_keeps_what_is_finished(tmp_path: Path) -> None:
    """On the default base model, which `make test` has taught; a few conditions that need no other."""
    dropped = [f"~conditions.{name}" for name in ("long", "deep", "wide", "tied", "tied_untrained", "as_joint")]
    command = ["fidelity", "problems=1", "repeats=1", *dropped, f"output_dir={tmp_path}", f"work_dir={tmp_path}"]
    code, output = run(*command)
    assert code == 0, output
    assert "trained: left out, its weights are null" in output
    table = pd.read_csv(tmp_path / "fidelity.csv")
    assert set(table["condition"]) == {"base", "lt_logits", "untrained"}
    values = table.set_index(["condition", "signal", "split", "metric"])["value"]
    for condition in ("base", "lt_logits", "untrained"):
        assert values[condition, "oar_p", "all", SPEARMAN] == pytest.approx(1)
        assert values[condition, "window_16", "all", SPEARMAN] > values[condition, "random", "all", SPEARMAN]
        assert values[condition, "oar_gn", "all", SPEARMAN] > 0.4
    assert values["base", "oar_p", "all", FORWARD] > values["base", "window_4", "all", FORWARD]
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "signals").iterdir()}
    signals = len(OmegaConf.load(ROOT / "conf/compared/embedded.yaml").signals)
    assert len(kept) == 3 * signals

    one_more = "+signals.of_the_policy={_target_: oar.method.importance.EntropyImportance}"
    code, output = run(*command, one_more)
    assert code == 0, output
    again = {file: file.stat().st_mtime_ns for file in (tmp_path / "signals").iterdir()}
    assert {file: again[file] for file in kept} == kept, "what is there is not measured again"
    assert len(again) == 3 * (signals + 1)
    more = pd.read_csv(tmp_path / "fidelity.csv")
    assert "of_the_policy" in set(more["signal"])

    code, output = run(*command)
    assert code == 0, output
    assert pd.read_csv(tmp_path / "fidelity.csv").equals(table)
