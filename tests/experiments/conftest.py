import pytest


@pytest.fixture(autouse=True)
def small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn fast: what they show does not hang on their size."""
    monkeypatch.setattr("oar.analysis.reports.figures.DPI", 20)
