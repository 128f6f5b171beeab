"""What ``stockade doctor`` runs in a jail: one tool that tries to get out of it, and two that do not stop."""

from selfcheck.attempts import Tried, try_all
from selfcheck.endless import print_on, spin

__all__ = ["Tried", "print_on", "spin", "try_all"]
