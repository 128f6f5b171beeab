"""``python -m engine`` is the command ``stockade``."""

from engine.faces.cli import main

if __name__ == "__main__":
    main()
