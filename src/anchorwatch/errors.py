"""Everything anchorwatch raises on purpose; each message says what would have worked.

AnchorwatchError
├── SpecError (ValueError)      a value that asks for the impossible: a decoding, a rule, an option
│   └── PromptError             the prompt or canvas cannot be given to this model
├── ModelError (RuntimeError)   a checkpoint that cannot be loaded or does not prove itself
│   ├── FamilyError             no family reads this architecture
│   └── WeightsError            the tensors are not what the family expects
└── TraceError (RuntimeError)   a trace that is missing, damaged or of another kind
"""


class AnchorwatchError(Exception):
    """The root: catch this to catch everything anchorwatch raises on purpose."""


class SpecError(AnchorwatchError, ValueError):
    """A value that asks for the impossible."""


class PromptError(SpecError):
    """The prompt or canvas cannot be given to this model."""


class ModelError(AnchorwatchError, RuntimeError):
    """A checkpoint that cannot be loaded or does not prove itself."""


class FamilyError(ModelError):
    """No family reads this architecture."""


class WeightsError(ModelError):
    """The tensors are not what the family expects."""


class TraceError(AnchorwatchError, RuntimeError):
    """A trace that is missing, damaged or of another kind."""


class AnchorwatchWarning(UserWarning):
    """Something was ignored or assumed; the manifest records it too."""
