"""What a tool says of itself: standard library only; the guest carries these files as they are."""
