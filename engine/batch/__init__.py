"""Many calls out of one file, their outcomes into another: reading, keeping count of what is done, calling, telling."""
