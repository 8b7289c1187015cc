"""The credit inspector on a real run: what it computes anew is what the run logged, and goes to the run's W&B run."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.programs import run
from tests.runs.test_tracking_wandb import logged_to_wandb
from tests.system.conftest import FinishedRun

pytestmark = [pytest.mark.engine, pytest.mark.system]


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_page_of_a_real_run(finished_run: FinishedRun, base_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished_run.folder, tmp_path / "run")
    code, output = run("inspect_credit", f"run={folder}", f"against={base_model}", "~signals.oar_gn")
    assert code == 0, output
    assert "step_000004.html: 12 completions, 21 signals" in output
    data = data_of(folder / "inspector" / "step_000004.html")
    assert "after 3 updates; the completions were drawn after 3" in data["notes"][0]  # the weights that drew them
    at = {(signal["name"], signal["source"]): index for index, signal in enumerate(data["signals"])}
    weights = [index for index, signal in enumerate(data["signals"]) if signal["kind"] == "weight"]
    logged, again = (weights.index(at["OAR-G", source]) for source in ("as the run logged it", "after 3 updates"))
    ratio, drifted = at["ratio", "after 3 updates"], at["ratio", "the taught base model"]
    for completion in data["completions"]:
        assert completion["advantage"] != 0
        # Noise of 1e-3 in float32: the gradient differs a little with the rows that are forwarded together.
        first = completion["importance"][logged]
        np.testing.assert_allclose(completion["importance"][again], first, rtol=0.05, atol=0.01 * max(first))
        np.testing.assert_allclose(completion["values"][ratio], 1, rtol=1e-3)
    assert any(abs(value - 1) > 0.01 for completion in data["completions"] for value in completion["values"][drifted])
    agreement = {(one, other): values for one, other, values in data["agreement"]}
    assert np.mean(agreement[at["OAR-G", "as the run logged it"], at["OAR-G", "after 3 updates"]]) > 0.99
    assert data["provenance"]["command"].startswith("python -m experiments.inspect_credit")
    run_id = (folder / "wandb_run_id.txt").read_text().strip()
    _, _, artifacts = logged_to_wandb(sorted(folder.glob("wandb/offline-run-*"))[-1])
    assert list(artifacts) == [f"{run_id}-inspector-step_000004"]
