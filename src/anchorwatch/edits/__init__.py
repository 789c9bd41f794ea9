"""What to change (`spec`, re-exported here), and how it is applied and verified."""

from anchorwatch.edits.spec import *  # noqa: F403
from anchorwatch.edits.spec import __all__ as __all__
