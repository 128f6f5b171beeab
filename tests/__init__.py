"""The proofs: house rules, parts, contract, security, agreement, fuzz and end to end."""
