"""The rivals: each file is a program that does one job in a process of its own, where it can in an environment of its own."""
