"""Everything anchorwatch raises on purpose; each message says what would have worked.

AnchorwatchError
├── SpecError (ValueError)      a value that asks for the impossible: a decoding, a rule, an option
│   ├── PromptError             the prompt or canvas cannot be given to this model
│   ├── ItemError               an item of a task cannot be asked in this way
│   └── MissingDataError        a figure or table of a paper needs a model or data not given
├── ModelError (RuntimeError)   a checkpoint that cannot be loaded or does not prove itself
│   ├── FamilyError             no family reads this architecture
│   └── WeightsError            the tensors are not what the family expects
├── TraceError (RuntimeError)   a trace that is missing, damaged or of another kind
├── EvidenceError (RuntimeError)  evidence that cannot carry a claim, such as a model at the floor
└── TrainingError (RuntimeError)  a training run that cannot go on
"""


class AnchorwatchError(Exception):
    """The root: catch this to catch everything anchorwatch raises on purpose."""


class SpecError(AnchorwatchError, ValueError):
    """A value that asks for the impossible."""


class PromptError(SpecError):
    """The prompt or canvas cannot be given to this model."""


class ItemError(SpecError):
    """An item of a task cannot be asked in this way; an evaluation counts it."""


class MissingDataError(SpecError):
    """A figure or table of a paper needs a model or data; the message has the command with it."""


class ModelError(AnchorwatchError, RuntimeError):
    """A checkpoint that cannot be loaded or does not prove itself."""


class FamilyError(ModelError):
    """No family reads this architecture."""


class WeightsError(ModelError):
    """The tensors are not what the family expects."""


class TraceError(AnchorwatchError, RuntimeError):
    """A trace that is missing, damaged or of another kind."""


class EvidenceError(AnchorwatchError, RuntimeError):
    """Evidence that cannot carry a claim; a study lists the claim with what it lacks."""


class TrainingError(AnchorwatchError, RuntimeError):
    """A training run that cannot go on; its last good checkpoint is kept."""


class AnchorwatchWarning(UserWarning):
    """Something was ignored or assumed; the manifest records it too."""
