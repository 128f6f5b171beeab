"""The bytes between host and worker: sans-io, pure, and the only place that decodes what a worker sent."""
