"""Where the project's own data lies: in a checkout beside ``engine/``, in a wheel below ``engine/_data/``.

Not its job: the user's state folder (``state.py``), reading what lies there.
"""

from pathlib import Path
from typing import Literal

_HERE = Path(__file__).resolve().parent


def data_dir(kind: Literal["policies", "worker_images"]) -> Path:
    """The folder of that kind. Raises FileNotFoundError when the installation is incomplete."""
    for folder in (_HERE / "_data" / kind, _HERE.parent / kind):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the installation lacks its {kind} folder: install stockade again")
