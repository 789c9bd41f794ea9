"""Names that changed for the better: the old ones work, and say the new one."""

import numpy as np
import pytest

from anchorwatch import studies
from anchorwatch.studies.verdict import JudgedClaim
from anchorwatch.training.held_out import NLLBound


def test_a_claim_s_measure():
    (claim,) = studies.claims(["sinks/H3"])
    with pytest.warns(DeprecationWarning, match=r"is now Claim\.measure"):
        assert claim.judge is claim.measure


def test_a_judged_claim_s_binding_criterion():
    (claim,) = studies.claims(["sinks/H3"])
    judged = JudgedClaim(claim)
    with pytest.warns(DeprecationWarning, match="is now JudgedClaim.binding_criterion"):
        assert judged.binding is None


def test_a_bound_s_masked_tokens():
    ones = np.ones((1, 2))
    bound = NLLBound(nats=ones, scored=ones[0], t=ones, plain=ones, masked=ones, vocab_size=8)
    with pytest.warns(DeprecationWarning, match=r"is now NLLBound\.masked"):
        assert bound.asked is bound.masked
