"""The proxy passes on what it is not to damage, and what it damages is what the client must refuse."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.fault_drills.proxy import DAMAGE, DamagingProxy, damaging_proxy
from oar.common.errors import EngineError
from oar.config.evaluation import Sampling
from oar.rollout.client.vllm import EngineClient
from tests.conftest import start_fake_engine

SAMPLING = Sampling(n=4, temperature=1.0, max_new_tokens=4)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[DamagingProxy]:
    process, url = start_fake_engine(tmp_path / "fake.log")
    with process, damaging_proxy(url) as proxy:
        yield proxy


@pytest.mark.parametrize("fault", DAMAGE)
def test_answers_are_damaged_from_the_moment_it_is_armed(proxy: DamagingProxy, fault: str) -> None:
    client = EngineClient(proxy.url, 30.0)
    client.set_weight_version(3)
    assert len(client.generate([[5, 6], [7]], SAMPLING, seed=1, expected_version=3)) == 2
    assert proxy.struck_at is None
    proxy.fault = fault
    with pytest.raises(EngineError, match=DAMAGE[fault].says):
        client.generate([[5, 6], [7]], SAMPLING, seed=1, expected_version=3)
    assert proxy.struck_at is not None
