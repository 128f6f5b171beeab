"""The certificates that a profile trusts, as they were when its policy was read.

Its job: the file's content, or a refusal when it has become another.
Not its job: whether the content is one of certificates (``profiles.py``), who is shown it (``jail/network.py``, ``egress/way.py``).
Laws:
1. No content but the one of the digest is given (tests/unit/test_plan_network.py).
"""

import hashlib
from pathlib import Path

from engine.errors import PolicyError


def certificates(trust: str, digest: str | None) -> bytes:
    """The content of that file. Raises PolicyError ``refused.policy`` when it is gone or its digest is another one."""
    try:
        data = Path(trust).read_bytes()
    except OSError:
        raise PolicyError("refused.policy", "trust: the file of certificates cannot be read") from None
    # security: what is written to it later was in no policy: an authority of somebody else's, or a key that tools would be shown
    if digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
        raise PolicyError("refused.policy", "trust: the certificates changed since the policy was read: load again")
    return data
