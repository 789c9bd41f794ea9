"""What to measure (`spec`, re-exported here), and how it is measured during a forward pass."""

from anchorwatch.probes.spec import *  # noqa: F403
from anchorwatch.probes.spec import __all__ as __all__
