"""Evaluation with the real engine: an interrupted one goes on to the same bytes, and texts give what token ids give."""

import os
import signal
from pathlib import Path

import pandas as pd
import pytest

from oar.rollout.server.engine import VllmEngine
from tests.programs import run, start, wait_for

pytestmark = [pytest.mark.engine, pytest.mark.system]


def options(base_model: Path, base_engine: VllmEngine, folder: Path, *more: str) -> list[str]:
    model = [f"model.path={base_model}", "model.teach=null", f"rollout.url={base_engine.url}"]
    return [*model, "benchmark.sets=[words1,words3]", f"output_dir={folder}", *more]


@pytest.mark.slow
def test_interrupted_goes_on_to_the_same_bytes(base_engine: VllmEngine, base_model: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    code, output = run("evaluate", *options(base_model, base_engine, whole))
    assert code == 0, output
    assert "token ids are drawn" in output

    process = start("evaluate", *options(base_model, base_engine, broken))
    wait_for(lambda: sum(file.stat().st_size for file in broken.glob("completions/*")) > 20_000, process)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert not (broken / "evaluation.json").exists()
    kept = sum(len(file.read_text().splitlines()) for file in broken.glob("completions/*"))
    assert 0 < kept < 4 * 200

    code, output = run("evaluate", *options(base_model, base_engine, broken))
    assert code == 0, output
    for name in ("samples.parquet", "evaluation.csv"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


def test_texts_are_graded_as_token_ids_are(base_engine: VllmEngine, base_model: Path, tmp_path: Path) -> None:
    """The same server by its own routes and as any server: greedy answers do not depend on the seed."""
    frames = []
    for api in ("vllm", "openai"):
        more = (f"api={api}", "evaluation.final_problems=40", "evaluation.k=1")
        code, output = run("evaluate", *options(base_model, base_engine, tmp_path / api, *more))
        assert code == 0, output
        frames.append(pd.read_parquet(tmp_path / api / "samples.parquet").query("metric == 'pass@1'"))
    ids, texts = (frame.set_index(["benchmark", "problem_id"]).sort_index() for frame in frames)
    assert ids["answer"].notna().mean() > 0.5
    for column in ("gold", "answer", "correct", "finish_reason"):
        assert ids[column].equals(texts[column]), column
    stopped = ids["finish_reason"] == "stop"
    assert (ids["completion_tokens"] - texts["completion_tokens"])[stopped].eq(1).all()  # the EOS
