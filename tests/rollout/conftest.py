"""Fake engines that end with their test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.conftest import start_fake_engine


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start a fake engine with a fault; returns its URL. All are ended after the test."""
    numbers = count(1)
    with ExitStack() as stack:

        def start(*arguments: str) -> str:
            process, url = start_fake_engine(tmp_path / f"fake{next(numbers)}.log", *arguments)
            stack.enter_context(process)
            return url

        yield start
