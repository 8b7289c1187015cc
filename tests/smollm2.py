"""The pretrained model of `make smollm2`, for tests that look at real text: they are skipped where it has not been fetched."""

from pathlib import Path

import pytest

SMOLLM2 = Path(__file__).parents[1] / "artifacts" / "smollm2"
needs_smollm2 = pytest.mark.skipif(
    not SMOLLM2.exists(), reason="artifacts/smollm2 is not there: `make smollm2` fetches it"
)
