"""Parameters, bytes and operations: against torch and transformers, against what the code does, against hand-computed numbers."""

import csv
from contextlib import ExitStack
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from experiments.shared.counted_tokens import counted_tokens
from oar.config import LoraConfig, ProbeConfig, build
from oar.learner.distributed import ALONE
from oar.method.auxiliary import CertifiedCloning, KlByClass, TeacherDivergence, TopDivergence
from oar.method.forward.logprobs import pack_completions, run_forward
from oar.method.forward.packing import Packing
from oar.method.importance import (
    ActionWeights,
    AttentionGradientImportance,
    ContinuationAdvantages,
    CounterfactualDrop,
    EntropyBonusWeights,
    EntropyImportance,
    GradientImportance,
    GradientNormImportance,
    GrailWeights,
    HighEntropyWeights,
    ImplicitReward,
    ImplicitRewardAdvantages,
    InformationAdvantages,
    InvertedImportance,
    PerturbationImportance,
    SelfDistilledWeights,
    ShearWeights,
    ShuffledImportance,
    SignMatchedImportance,
    TokenBaseline,
    gives,
)
from oar.method.importance import gradient as gradient_module
from oar.method.importance import perturbation as perturbation_module
from oar.method.probes import AnswerMeanProbe
from oar.plan import Architecture, Work, importance_work, memory_of, plan_run, step_costs
from oar.plan.work import (
    Lengths,
    auxiliary_work,
    forward,
    is_known,
    probed,
    reads_outcome,
    recomputed,
    to_inputs,
    update_work,
)
from tests.learner.on_ranks import learner_of, start_model
from tests.models import credit_inputs, random_batch, tiny_model
from tests.plan.plans import GRPO, ROOT, SMALL, composed, random_model

STEP = ["learner.batch_size=24", "learner.num_generations=4", "sync.max_logprob_diff=100", "probe=as_mean"]
LENGTHS = Lengths(5, 10, 2, 3)  # a tail of 4 positions, 19 are shown


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen2_5_7b", 7.62), ("qwen2_5_math_7b", 7.62), ("qwen2_5_1_5b", 1.54)]
)
def test_parameters_are_those_of_the_real_architecture(name, billions):
    """transformers builds the model without memory for it; the published counts are those of the model cards."""
    sizes = Architecture(**composed()[2].architectures[name])
    with torch.device("meta"):
        model = random_model(sizes)
    assert Architecture.from_config(model.config.to_dict(), "config.json") == sizes
    assert sizes.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert round(sizes.parameters / 1e9, 2) == billions


def test_llama_has_no_biases():
    sizes = replace(SMALL, biased=False)
    model = LlamaForCausalLM(LlamaConfig(**sizes.config()))
    assert Architecture.from_config(model.config.to_dict(), "config.json") == sizes
    assert sizes.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_bytes_of_a_token_are_those_of_a_real_cache():
    model = random_model(SMALL)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.zeros(3, 20, dtype=torch.long), past_key_values=cache)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert SMALL.kv_bytes(4) == held / (3 * 20)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
@pytest.mark.parametrize("intermediate", [64, 160])
def test_activations_are_what_autograd_saves(dtype, size, intermediate):
    """Of one block: two models of one block more and less, and every storage saved by the learner's own forward, once."""
    sizes = replace(SMALL, intermediate=intermediate)

    def saved(layers):
        model = random_model(replace(sizes, layers=layers)).to(dtype)
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        storages = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage
            return tensor

        embeddings = model.get_input_embeddings()(torch.zeros(96, dtype=torch.long))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            found = run_forward(model, embeddings, Packing.of([96], embeddings.device))
        return sum(storage.nbytes() for storage in storages.values()), found.layers[0]

    (three, layer), (two, _) = saved(3), saved(2)
    assert (three - two) / 96 == sizes.layer_activation_bytes(size)
    assert sizes.recorded_bytes(size) == (layer.query.nbytes + layer.key.nbytes + layer.value.nbytes) / 96


def test_operations_are_those_that_torch_counts():
    """Unfused attention computes all pairs, the upper half included, so that torch's counter sees every product."""
    model, length = random_model(SMALL), 32
    model.set_attn_implementation("eager")
    ids = torch.zeros(1, length, dtype=torch.long)
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
    forward_only = Work(length, length**2, length)

    def counted(run):
        with FlopCounterMode(display=False) as counter:
            run()
        return counter.get_total_flops()

    def forward_and_backward():
        model(inputs_embeds=embeddings).logits.sum().backward()

    model.requires_grad_(False)
    assert counted(lambda: model(input_ids=ids)) == forward_only.flops(SMALL)
    assert counted(forward_and_backward) == (forward_only + to_inputs(forward_only)).flops(SMALL)  # no weight asks
    model.requires_grad_(True)
    assert counted(forward_and_backward) == (forward_only * 3).flops(SMALL)


def test_operations_of_an_update_by_hand():
    cfg, assume, _ = composed("learner.batch_size=16", "learner.num_generations=2")
    assume.prompt_tokens, assume.completion_tokens, assume.contributing_share = 4, 6, 0.5
    once = forward(10, 6)
    assert once == Work(10, 55, 6)  # 10 tokens: 1 + 2 + ... + 10 pairs
    once_more = Work(read=6)  # the backward computes the logits again
    cfg.learner.micro_batch_tokens = 16  # 3 + 2 x 7 = 17 tokens do not fit: each has a prompt of its own
    assert update_work(cfg, assume) == (once * 3 + once_more) * 8 + once * 4  # of two that do not learn one is scored
    assert update_work(cfg, assume, scores_all=True) == (once * 3 + once_more) * 8 + once * 8
    cfg.model.lora = LoraConfig(
        r=4, alpha=8, targets=["q_proj"]
    )  # the backward asks for no gradient of the model's own weights
    assert update_work(cfg, assume) == (once + to_inputs(once) + once_more) * 8 + once * 4
    cfg.model.lora = None
    cfg.learner.updates_per_rollout = 2  # those that learn are scored first
    assert update_work(cfg, assume) == (once * 3 + once_more) * 8 + once * 12
    cfg.learner.kl_coef = 0.1  # all have a gradient, and the reference runs
    assert update_work(cfg, assume) == (once * 3 + once_more) * 16 + once * 32
    cfg.learner.activation_checkpointing = True  # blocks once more as well
    assert update_work(cfg, assume) == (once * 4) * 16 + once * 32
    cfg.learner.micro_batch_tokens = 17
    shared = Work(
        8.5, (6 + 2 * 49) / 2, 6
    )  # of two: 1 + 2 + 3 pairs of the prompt's first three tokens, twice 4 + ... + 10
    assert update_work(cfg, assume) == (shared * 4) * 16 + shared * 32


@cache
def default_learner():
    return composed()[0].learner


def work(estimator, lengths=LENGTHS, *, checkpointing=False, dtype="float32", updates=1):
    learner = replace(
        default_learner(), activation_checkpointing=checkpointing, compute_dtype=dtype, updates_per_rollout=updates
    )
    return importance_work(estimator, lengths, learner)


@pytest.mark.parametrize(
    "estimator",
    [
        PerturbationImportance(),
        PerturbationImportance(window=0),
        PerturbationImportance(window=3),
        PerturbationImportance(window=0, routes=2),
        PerturbationImportance(window=2, routes=50),
        GradientImportance(noise_draws=3),
    ],
    ids=str,
)
def test_tokens_run_again_are_those_the_estimator_runs(estimator, monkeypatch):
    """Completions one by one, and every position that is really recomputed is counted."""
    ran = []
    for module in (perturbation_module, gradient_module):
        real = module.recompute

        def counting(model, keys, job, real=real):
            ran.append(int(job.valid.sum()))
            return real(model, keys, job)

        monkeypatch.setattr(module, "recompute", counting)
    batch = random_batch(3, rows=5)
    # Beside the counted forwards OAR-G's backward counts as one; in half precision there are two forwards and it.
    passes = {"float32": 2, "bfloat16": 1.5} if isinstance(estimator, GradientImportance) else {"float32": 1}
    for dtype, factor in passes.items():
        inputs = credit_inputs(batch, AnswerMeanProbe(), model=tiny_model().to(getattr(torch, dtype)))
        for row in range(len(batch)):
            ran.clear()
            estimator(inputs.rows(torch.tensor([row])))
            masks = batch.reasoning_mask, batch.marker_mask, batch.answer_mask
            lengths = Lengths(int(batch.prompt_lengths[row]), *(int(mask[row].sum()) for mask in masks))
            assert work(estimator, lengths, dtype=dtype).tokens == pytest.approx(factor * sum(ran))


# The first four tokens of the prompt once; its last one, marker and answer behind 0 and 10 tokens of reasoning.
PREFIXES = forward(4, 0) + Work(5, 5 * 4 + 15, 3) + Work(15, 15 * 4 + 120, 3)
PAIRS = 14 * 19  # OAR-G's: reasoning and tail meet all that is shown


@pytest.mark.parametrize(
    ("estimator", "settings", "expected"),
    [
        (EntropyImportance(), {}, Work()),
        (PerturbationImportance(), {}, Work(55 + 40, 95 * 19, 30)),
        (InvertedImportance(PerturbationImportance()), {}, Work(95, 95 * 19, 30)),
        # Two positions for nine of the tokens, one for the last: 19, and a tail each; half of 190 + 190 pairs for the routes.
        (PerturbationImportance(window=0, routes=1), {}, Work(59, 59 * 19 + 190, 30)),
        (PerturbationImportance(budget=4), {}, Work(19 + 38, 380 + 38 * 19, 3 + 12)),
        (GradientNormImportance(), {}, Work(19, 2 * 190, 3)),
        (
            AttentionGradientImportance(),
            {},
            Work(19, 2 * 190 + PAIRS, 3),
        ),  # scores and <g, v> of reasoning and tail once more
        (SelfDistilledWeights(context="answer"), {}, forward(5 + 16, 16)),  # reasoning, marker, answer and EOS
        (ActionWeights(SelfDistilledWeights()), {}, forward(5 + 5 + 10 + 16, 16)),  # and the question once more
        (ImplicitRewardAdvantages(ImplicitReward()), {}, forward(21, 16) * 7 + Work(read=16)),
        # One step: 0 and 10 tokens; all are scored before.
        (InformationAdvantages(), {}, PREFIXES + forward(21, 16)),
        (InformationAdvantages(), {"updates": 2}, PREFIXES),
        (GradientNormImportance(), {"checkpointing": True}, Work(38, 3 * 190, 3)),
        (GradientImportance(), {}, Work(28, 3 * PAIRS, 6)),
        (GradientImportance(), {"checkpointing": True}, Work(42, 4 * PAIRS, 6)),
        # Beside the clean one, once more: whose logits and blocks have no backward, but whose attention is in that of both.
        (GradientImportance(), {"dtype": "bfloat16"}, Work(42, 6 * PAIRS, 9)),
        (GradientImportance(), {"dtype": "bfloat16", "checkpointing": True}, Work(70, 8 * PAIRS, 9)),
        # 21 tokens, 231 pairs, and 16 completion tokens whose logits are computed, computed again, and multiplied by twice.
        (GrailWeights(), {}, Work(21, 2 * 231, 3 * 16)),
        (GrailWeights(), {"checkpointing": True}, Work(42, 3 * 231, 3 * 16)),
        (GrailWeights(), {"updates": 2}, Work(42, 3 * 231, 4 * 16)),
        (GrailWeights(leaf="last"), {}, Work(42, 3 * 231, 4 * 16)),
        (EntropyBonusWeights(), {}, Work()),
        (HighEntropyWeights(), {}, Work(21, 231, 16)),
        (HighEntropyWeights(), {"updates": 2}, Work()),
        (ContinuationAdvantages(), {}, Work(21, 231, 16)),
        (ShearWeights(), {}, Work(42, 462, 16)),
        (ShearWeights(), {"updates": 2}, Work(21, 231, 0)),
        (TokenBaseline(), {}, Work(42, 462, 32)),
    ],
)
def test_work_of_signals_by_hand(estimator, settings, expected):
    assert work(estimator, **settings) == expected


def test_work_of_losses_by_hand():
    by_teacher = forward(5 + 16, 16) + Work(read=5 * 16)
    start = forward(5 + 16, 16)
    for loss, expected in (
        (None, Work()),
        (TeacherDivergence(), by_teacher + start),
        (TeacherDivergence(reference=0.0), by_teacher),
        (TopDivergence(), forward(5 + 5 + 10 + 16, 16) + Work(read=5 * 16)),
        (KlByClass(), start),
        (CertifiedCloning(), Work()),
        (CertifiedCloning(gate="mig_positive"), work(InformationAdvantages(), updates=2)),
    ):
        assert auxiliary_work(loss, LENGTHS, default_learner()) == expected


@pytest.mark.parametrize(
    ("method", "bounds"),
    [
        *(
            (name, (0.9, 1.1))
            for name in ("oar_gn", "oar_ga", "oar_p_routes", "oar_s_routes", "grail", "entropy_mask", "shear")
        ),
        *((name, (0.9, 1.1)) for name in ("token_baseline", "grpo_lambda", "spo", "rlsd", "sdpg", "prime")),
        ("crpo", (0.85, 1.1)),  # a generic completion has a prompt of its own
        ("oar_g", (0.75, 1.0)),  # what is run again is padded to the longest
        ("serl", (1.0, 2.5)),  # wrong completions alone have feedback
        ("sdpo", (1.0, 2.0)),  # one without a right peer is shown none
        ("mig", (0.6, 1.0)),  # a sentence of word problems is shorter than the step that is assumed
    ],
)
def test_tokens_of_a_step_are_those_the_plan_says(method, bounds, tmp_path):
    """Through every model of a learner, backwards to the embeddings included; beyond those of the update."""
    cfg, _, _ = composed(*STEP, f"method={method}")
    learner = learner_of(cfg, start_model(tmp_path), ALONE)
    beside = learner.beside
    learned = None if beside.reward_model is None else beside.reward_model.model
    models = {id(one): one for one in (learner.model, beside.reference, beside.teacher, learned) if one is not None}
    with ExitStack() as stack:
        counts = {key: stack.enter_context(counted_tokens(one)) for key, one in models.items()}
        report = learner.training_step()
    batch, advantages, built = report.graded.batch, report.advantages, learner.method
    marker, answer = batch.marker_mask.sum(dim=1), batch.answer_mask.sum(dim=1)
    # Without an answer all is reasoning.
    reasoning = torch.where(batch.has_answer, batch.reasoning_mask.sum(dim=1), batch.completion_lengths - 1)
    together = torch.full_like(reasoning, cfg.learner.num_generations)
    lengths = batch.prompt_lengths, reasoning, marker, answer, together
    learning = (advantages != 0) | built.all_contribute
    credited = learning & (batch.has_answer | (gives(built.signal) != "importance"))
    foretold = 0.0
    for row in credited.nonzero()[:, 0].tolist():
        own = Lengths(*(int(count[row]) for count in lengths))
        foretold += importance_work(built.signal, own, cfg.learner).tokens
        foretold += auxiliary_work(built.auxiliary, own, cfg.learner).tokens
    forwards = (report.scored & ~learning, learning, learning)
    update = sum(len(pack_completions(batch.rows(rows))[0]) for rows in forwards if rows.any())
    of_weights = counts[id(learned)].backward if learned is not None else 0  # which cost a backward once more
    measured = sum(count.forward + count.backward for count in counts.values()) + of_weights - update
    assert bounds[0] * measured <= foretold <= bounds[1] * measured
    assert (measured > 0) == (method != "grpo_lambda")


def test_a_window_beyond_the_reasoning_is_no_window():
    assert (
        recomputed(PerturbationImportance(window=99), LENGTHS) == recomputed(PerturbationImportance(), LENGTHS) == 9.5
    )


def test_an_estimator_of_somebody_else_says_what_it_costs_or_counts_as_nothing():
    class Mine:
        def __call__(self, inputs):
            return inputs.batch.reasoning_mask.float()

    class Costly(Mine):
        def work(self, lengths):
            return Work(tokens=2 * lengths.shown)

    class Made(Costly):
        of = PerturbationImportance()

    assert work(Mine()) == Work()
    assert work(Costly()) == work(ShuffledImportance(Costly())) == work(Made()) == Work(tokens=38)
    unknown = (Mine(), ShuffledImportance(Mine()), SignMatchedImportance(Mine()))
    assert [is_known(one) for one in (*unknown, Costly(), Made())] == [False, False, False, True, True]


def test_what_a_probe_without_an_answer_span_costs_by_hand():
    """A clean forward of its own over what it shows; a reward model has the policy's sizes here, and a head of one row."""
    shown = {
        "reward_model": Lengths(5, 10, 2, 5),  # the answer's last token and EOS too: 21 positions
        "solution": Lengths(5, 10, 2, 10),
        "answer": LENGTHS,
    }
    for name, lengths in shown.items():
        reference = None if name == "reward_model" else name
        probe = ProbeConfig((reference and "reference") or name, 0, None, None if reference else "folder", reference)
        assert probed(probe, LENGTHS) == (lengths, forward(lengths.shown, lengths.answer))
    assert probed(ProbeConfig("as_mean", 0, None), LENGTHS) == (LENGTHS, Work())
    oar_p = PerturbationImportance()
    signed = SignMatchedImportance(CounterfactualDrop(oar_p))  # reads the right answer, whatever the probe is
    read = [reads_outcome(one) for one in (ShuffledImportance(oar_p), EntropyImportance(), signed)]
    assert read == [True, False, False]


def test_a_plan_holds_the_reward_model_and_computes_with_its_sizes():
    sizes = Architecture(3, 128, 4, 2, 256, 113, False, 1024)
    larger = replace(sizes, layers=6)
    estimator = PerturbationImportance()

    def planned(probe, scorer=None):
        cfg, assume, _ = composed(f"probe={probe}", *(["probe.path=folder"] if scorer else []))
        costs = step_costs(cfg, sizes, assume, estimator, 0.0, scorer)
        return memory_of(cfg, sizes, assume, estimator, scorer).learner, costs["importance"]

    plain, small, large = planned("as_mean"), planned("reward_model", sizes), planned("reward_model", larger)
    assert "scorer" not in plain[0]
    assert small[0]["scorer"] == 4 * (sizes.parameters - 113 * 128)
    assert large[1] == pytest.approx(2 * small[1], rel=0.01)
    assert 1 < small[1] / plain[1] < 1.5


def test_steps_cost_what_was_measured():
    """The embedded assumptions come from GRPO's seconds alone; what other methods cost beside it is foretold by the plan."""
    with (ROOT / "results" / "bench_importance" / "bench_importance.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "steps" and row["metric"] == "step_ratio"]
    measured = {row["method"]: float(row["value"]) for row in rows}
    in_bench = {"oar_p_window": "window8", "oar_p_routes": "routes4"}
    names = ("oar_g", "oar_gn", "oar_p", *in_bench)
    estimators = {name: build("it", composed(f"method={name}")[0].method.estimator) for name in names}
    cfg, assume, _ = composed()
    sizes = Architecture(3, 128, 4, 2, 256, 113, False, 1024)
    methods = plan_run(cfg, sizes, assume, {**estimators, "grpo": GRPO}, {}).methods
    for name in names:
        assert methods[name]["step_of_grpo"] == pytest.approx(measured[in_bench.get(name, name)], rel=0.25)
