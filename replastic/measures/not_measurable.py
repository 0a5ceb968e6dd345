"""What is raised where a measure cannot be taken."""


class NotMeasurable(ValueError):
    """A measure that cannot be taken of this probe, and what it would need."""


class NotApplicable(NotMeasurable):
    """A measure that this model has nothing for, whatever the probe is given: a family leaves it out, with a warning."""
