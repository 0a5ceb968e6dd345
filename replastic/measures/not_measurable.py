"""Errors of measures that cannot be computed."""


class NotMeasurable(ValueError):
    """A measure cannot be computed for this probe; the message says what it needs."""


class NotApplicable(NotMeasurable):
    """A measure does not apply to this kind of model. In a family, such measures are skipped with a warning."""
