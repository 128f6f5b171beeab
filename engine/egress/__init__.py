"""The way out of a jail: connections of tools are accepted here, judged, and carried to exactly the places that were granted."""
