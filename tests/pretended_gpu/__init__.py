"""A GPU that is not there: tensors that say they live on cuda:0, and every operation refused that CUDA would refuse."""

from tests.pretended_gpu.modes import PretendedGpu, pretended_gpu
from tests.pretended_gpu.rules import MixedDevicesError

__all__ = ["MixedDevicesError", "PretendedGpu", "pretended_gpu"]
