"""How far two different computations of one number may differ. A test never writes its own number."""

GOLDEN_LOGITS = 1e-5
"""Logits against the golden records, float32 on a CPU: 0.0 where they were made, rounding elsewhere."""

SAME_MATHS = 2e-5
"""One formula by two kernels (fused and dense), float32, values of order one."""

PADDED = 1e-4
"""A padded row against the same row alone: other shapes, other blocking of the same sums."""
