"""The bench: what a user of the engine pays, measured in fresh processes beside its rivals."""
