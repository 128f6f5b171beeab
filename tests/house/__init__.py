"""The house rules, each a check over a tree that is run on this tree and on a small bad one."""
