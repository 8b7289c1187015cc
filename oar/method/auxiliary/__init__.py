"""Losses per token that stand beside the policy's: one file each, one Protocol (`base.py`; docs/METHODS.md)."""

from oar.method.auxiliary.base import AuxiliaryLoss
from oar.method.auxiliary.certified import CertifiedCloning
from oar.method.auxiliary.crpo import KlByClass
from oar.method.auxiliary.sdpg import TeacherDivergence
from oar.method.auxiliary.sdpo import NoPolicyLoss, TopDivergence

__all__ = ["AuxiliaryLoss", "CertifiedCloning", "KlByClass", "NoPolicyLoss", "TeacherDivergence", "TopDivergence"]
