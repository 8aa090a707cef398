"""The error tree; every message says what happened, to whom, and what to do.

RmPluginsError
├── LookupFailure (also LookupError)
│   ├── UnknownFamilyError        no installed family has that name, or it failed to load
│   ├── UnknownModelError         no folder, record, package or hub repository has that name
│   └── AmbiguousFamilyError      two plugins claim the name
├── CheckpointError               files are missing, corrupt, gated or out of reach
│   └── HeadError                 no reward head, a random one, or one that the family does not read
│       └── WrongFamilyError      the checkpoint belongs to another family
├── OptionError (also ValueError) an option the family does not have, or a value out of range
├── ConversationError (also ValueError)  no assistant turn, unequal counts, unknown content
├── TextError                     the model's template or tokenizer cannot take this conversation
├── ScoringError                  a reward could not be computed and the caller asked to be told
└── MissingExtraError (also ImportError)  an optional dependency is not installed
"""


class RmPluginsError(Exception):
    """Base of every error this library raises on purpose."""


class LookupFailure(RmPluginsError, LookupError):
    """Nothing goes by that name."""


class UnknownFamilyError(LookupFailure):
    """No installed family has the name, or the plugin that has it failed to load."""


class UnknownModelError(LookupFailure):
    """No folder, record, package or hub repository has the name."""


class AmbiguousFamilyError(LookupFailure):
    """Two plugins claim one family name."""


class CheckpointError(RmPluginsError):
    """A checkpoint's files are missing, corrupt, gated or out of reach."""


class HeadError(CheckpointError):
    """The reward head is missing, random, of the wrong shape, or not read by the family."""


class WrongFamilyError(HeadError):
    """The checkpoint was made for another family's head."""


class OptionError(RmPluginsError, ValueError):
    """An option is unknown or out of range."""


class ConversationError(RmPluginsError, ValueError):
    """The conversation cannot be scored by any model: its form is wrong."""


class TextError(RmPluginsError):
    """This model's template or tokenizer cannot take the conversation."""


class ScoringError(RmPluginsError):
    """A reward could not be computed, and the caller asked for an error instead of None."""


class MissingExtraError(RmPluginsError, ImportError):
    """An optional dependency is needed and not installed."""
