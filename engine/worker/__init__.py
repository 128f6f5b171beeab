"""The only processes: the launcher, the jails it makes, and the children that run tool code."""
